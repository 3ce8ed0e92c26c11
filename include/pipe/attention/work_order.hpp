// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Groups of heads that the kernels for Hopper work on together, and their parts, so that
//! a GPU is full and reads from its L2.

#include <pipe/attention/mask.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/query_sums.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

//! Streams of a section, of as few as can be, all alike: at most `fit`, at least one. A short last
//! one would bring its long pieces late.
[[nodiscard]] constexpr std::int64_t in_even_sections(std::int64_t streams, std::int64_t fit) {
  auto const sections = fit < 1 ? streams : (streams + fit - 1) / fit;
  return (streams + sections - 1) / sections;
}

//! Query heads that are worked on together, see piece_order. All of them where their keys and
//! values fit into five eighths of the L2, or where two blocks or more read the same ones at a
//! time.
[[nodiscard]] constexpr std::int32_t
heads_together(parameters const& p, std::int64_t multiprocessors, std::int64_t cache_bytes) {
  auto const streams = p.batch * p.key_heads;
  auto const bytes = p.key_length * (p.head_dim + p.dim_of_values()) * 2;
  auto const fit = bytes == 0 ? streams : cache_bytes / 8 * 5 / bytes;
  if (2 * streams <= multiprocessors || streams <= fit) {
    return static_cast<std::int32_t>(p.batch * p.heads);
  }
  return static_cast<std::int32_t>(in_even_sections(streams, fit) * p.group());
}

//! Key heads that are worked on together, see query_sums::section: as many as have their queries,
//! dO and sums of dQ in three quarters of the L2. All where that is no gain: where they fit, and
//! where the order is free and two blocks or more read the same queries at a time.
[[nodiscard]] constexpr std::int32_t key_heads_together(parameters const& p,
                                                        query_order order,
                                                        std::int64_t multiprocessors,
                                                        std::int64_t cache_bytes) {
  auto const streams = p.batch * p.key_heads;
  // 2 and 4 of each number of a query and of dQ, 2 of dO.
  auto const bytes = p.group() * p.query_length * (p.head_dim * 6 + p.dim_of_values() * 2);
  auto const fit = bytes == 0 ? streams : cache_bytes / 4 * 3 / bytes;
  bool const is_shared = order == query_order::free && 2 * p.batch * p.heads <= multiprocessors;
  if (is_shared || streams <= fit) {
    return static_cast<std::int32_t>(streams);
  }
  return static_cast<std::int32_t>(in_even_sections(streams, fit));
}

//! Whether blocks round the sums of dQ, see query_sums::is_rounded: where each query sees a key, so
//! that each step has a last tile, and no tile is the last of very many.
template <mask Mask>
[[nodiscard]] constexpr bool rounds_sums(parameters const& p, Mask const& m) {
  auto const end = end_seen(m);
  return end.is_beyond_query && end.follows_query && p.query_offset >= p.key_offset &&
         p.query_offset + p.query_length <= p.key_offset + p.key_length;
}

//! Tile sizes of a backward kernel.
struct backward_tile_sizes {
  int keys; //!< of a block
  int step; //!< queries of a step
};

//! Twice the steps that a multiprocessor has on average where a mask is causal.
[[nodiscard]] constexpr std::int64_t steps_of_multiprocessor(query_sums const& sums,
                                                             parameters const& p,
                                                             backward_tile_sizes const& tile,
                                                             std::int64_t multiprocessors) {
  auto const before = p.query_offset - p.key_offset;
  std::int64_t of_head = 0;
  for (std::int64_t key = 0; key < p.key_length; key += tile.keys) {
    auto const first = key > before ? (key - before) / tile.step : 0;
    of_head += first < sums.steps ? sums.steps - first : 0;
  }
  return 2 * p.batch * p.heads * of_head / multiprocessors;
}

//! The least number of parts that a group can be cut into, all with as many heads, and that
//! suffices; else a part for each head.
template <class Suffices>
[[nodiscard]] constexpr std::int32_t parts_of_group(parameters const& p, Suffices const& suffices) {
  std::int64_t parts = 1;
  while (parts < p.group() && (p.group() % parts != 0 || !suffices(parts))) {
    ++parts;
  }
  return static_cast<std::int32_t>(parts);
}

//! Shares the work of backward: sets query_sums::section, parts and cut.
//!
//! Blocks cost time to start and to end, and those of a tile of keys add to its dK and dV one after
//! the other. Where a block for each query head makes two for each multiprocessor at most, one for
//! each is made, and none has more steps than a multiprocessor has on average, and three halves.
//! Else, where queries are at least half as many as keys, about two are made for each, and about
//! one of those whose queries fit the L2; for chunks five. In a kept order blocks of a head go
//! through its steps together, and few of these are in the L2 at a time: a section has eight heads
//! at least, and about two blocks for each multiprocessor.
//! @source own derivation, on the simulation of simulators/whole_gpu
constexpr void share_work(query_sums& sums,
                          parameters const& p,
                          query_order order,
                          backward_tile_sizes const& tile,
                          std::int64_t multiprocessors,
                          std::int64_t cache_bytes) {
  sums.section = key_heads_together(p, order, multiprocessors, cache_bytes);
  auto const tiles = query_sums::key_tiles(p, tile.keys);
  if (tiles == 0) {
    return;
  }
  bool const is_square = 2 * p.query_length >= p.key_length;
  if (tiles * p.group() <= 2 * multiprocessors) {
    sums.parts = parts_of_group(p, [&](auto parts) { return 2 * tiles * parts > multiprocessors; });
    auto const heads = 2 * p.group() / sums.parts;
    auto const each = steps_of_multiprocessor(sums, p, tile, multiprocessors) + 3;
    auto const cut = static_cast<std::int32_t>((each + heads - 1) / heads);
    sums.cut = cut < sums.steps ? cut : 0;
  } else if (is_square) {
    auto const fit = key_heads_together(p, query_order::kept, multiprocessors, cache_bytes);
    auto const fitting = tiles / (p.batch * p.key_heads) * fit;
    sums.parts = parts_of_group(p, [&](auto parts) {
      return 8 * tiles * parts >= 15 * multiprocessors &&
             16 * fitting * parts >= 15 * multiprocessors;
    });
  } else {
    sums.parts =
      parts_of_group(p, [&](auto parts) { return tiles * parts >= 5 * multiprocessors; });
  }
  if (order == query_order::kept) {
    auto const streams = p.batch * p.key_heads;
    auto const of_stream = 8 * (tiles / streams) * sums.parts;
    auto const full = (15 * multiprocessors + of_stream - 1) / of_stream;
    auto const least = in_even_sections(streams, full < 8 ? 8 : full);
    sums.section = sums.section < least ? static_cast<std::int32_t>(least) : sums.section;
  }
}

} // namespace pipelining::inline v0_3::attention::detail
