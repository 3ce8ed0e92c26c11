// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The tiles that a block visits, and where in a tile the numbers of a lane lie.

#include <pipe/attention/mask.hpp>
#include <pipe/attention/parameters.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

//! A slot without a tile. With one, it holds 2 * tile, + 1 where every pair has to be asked.
inline constexpr int no_more_tiles = -1;

//! parameters::group, by a division of 32 bits. A division of 64 bits takes more registers than
//! copying warps have.
__device__ inline int group_of(parameters const& p) {
  return static_cast<int>(p.heads) / static_cast<int>(p.key_heads);
}

//! A tile of keys that the mask does not skip, or index = count where there is none.
struct next_tile {
  int index;
  tile_cover cover;
};

//! First tile of keys at or after `index`, of the first `length` keys, that a tile of queries has
//! to visit.
template <int Keys, mask Mask>
__device__ inline next_tile
find_key_tile(parameters const& p, Mask const& m, tile_position at, int index, int length) {
  auto const offset = static_cast<std::int32_t>(p.key_offset);
  for (; index * Keys < length; ++index) {
    int const end = min(length, (index + 1) * Keys);
    at.key_begin = offset + index * Keys;
    at.key_end = offset + end;
    auto const cover = attention::cover(m, at);
    if (cover != tile_cover::skip) {
      bool const whole = end == (index + 1) * Keys;
      return {index, whole ? cover : tile_cover::partial};
    }
  }
  return {index, tile_cover::skip};
}

//! Where a lane's numbers of a 16 x Columns product lie: rows and columns within the tile pair.
struct lane_place {
  int row;    //!< first row; the second half is 8 further down
  int column; //!< first column; then 8 further right for each part
};

//! A tile of queries of one head that the mask does not skip; head = group where there is none.
struct next_queries {
  int head; //!< within the group that shares the key head
  int index;
  tile_cover cover;
};

//! First tile of queries that a tile of keys has to visit: of `head` from tile `index` down, then
//! of each head after it, last tile first.
//! @param at batch, first query head of the group, keys of the tile
template <int Queries, mask Mask>
__device__ inline next_queries
find_query_tile(parameters const& p, Mask const& m, tile_position at, int head, int index) {
  int const length = static_cast<int>(p.query_length);
  auto const offset = static_cast<std::int32_t>(p.query_offset);
  auto const first_head = at.head;
  int const last = (length + Queries - 1) / Queries - 1;
  for (; head < static_cast<int>(p.group()); ++head, index = last) {
    for (; index >= 0; --index) {
      int const end = min(length, (index + 1) * Queries);
      at.head = first_head + head;
      at.query_begin = offset + index * Queries;
      at.query_end = offset + end;
      auto const cover = attention::cover(m, at);
      if (cover != tile_cover::skip) {
        bool const whole = end == (index + 1) * Queries;
        return {head, index, whole ? cover : tile_cover::partial};
      }
    }
  }
  return {head, 0, tile_cover::skip};
}

} // namespace pipelining::inline v0_3::attention::detail
