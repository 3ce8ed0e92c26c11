// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The tile of keys of a block of backward, and the order in which blocks add to dQ: to
//! each step the tiles of keys that see it, first tile first, or as they come once the first one
//! has cleared the sums.

#include <pipe/attention/mask.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/query_sums.hpp>
#include <pipe/config.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

//! A tile of keys of one key head.
struct key_work {
  int batch;
  int key_head;
  int first;     // key of the call
  int rows;      // that exist; 0: there is no work
  int part;      // pieces of this tile before it
  int begin = 0; // first step of queries
  int end = 0;   // one after the last
  int head = 0;  // first head of queries
  int heads = 0; // one after the last
};

//! Whether the kernels for Hopper ask who is the first tile of keys of a step, and wait for it: not
//! where the order is free and a mask does not say so soon.
template <query_order Order, class Mask>
inline constexpr bool takes_turns = Order == query_order::kept || band_mask<Mask>;

//! The number of the next piece of work; asked by one thread. Blocks start in any order; whoever
//! waits for another has to know that it has started.
__device__ __forceinline__ int take_piece(query_sums const& sums) {
  return static_cast<int>(atomicAdd(sums.ticket, 1u));
}

//! The tile of keys of piece n. In order of n: section by section of key heads; range by range of
//! steps, early ones first; early keys first, which most queries see where a mask is causal; part
//! by part of a group; and then likewise those of tiles that are not in parts. So they add to dQ,
//! and to dK and dV, where the order is kept: blocks only wait for pieces taken before theirs.
template <int Keys>
PIPELINING_HOST_DEVICE __forceinline__ key_work work_of_piece(parameters const& p,
                                                              query_sums const& sums,
                                                              int n) {
  using number = std::uint32_t; // whose divisions take few registers
  auto const heads = static_cast<number>(p.key_heads);
  auto const length = static_cast<number>(p.key_length);
  auto const group = static_cast<number>(p.heads) / heads;
  auto const section_of_all = static_cast<number>(sums.section);
  auto const streams = heads * static_cast<number>(p.batch);
  auto tiles = min((length + Keys - 1) / Keys, static_cast<number>(sums.cut_tiles));
  auto rest = static_cast<number>(n);
  number first_tile = 0;
  auto ranges = static_cast<number>(sums.ranges);
  auto parts = static_cast<number>(sums.parts);
  if (auto const in_parts = streams * tiles * ranges * parts; rest >= in_parts) {
    rest -= in_parts;
    first_tile = tiles;
    tiles = (length + Keys - 1) / Keys - first_tile;
    ranges = 1;
    parts = group;
  }
  auto const part = rest % parts;
  rest /= parts;
  auto const begin = rest / (tiles * ranges * section_of_all) * section_of_all; // of the section
  auto const section = min(section_of_all, streams - begin);
  rest -= begin * (tiles * ranges);
  auto const stream = begin + rest % section;
  rest /= section;
  auto const first = static_cast<int>((first_tile + rest % tiles) * Keys);
  auto const range = rest / tiles;
  int const end = sums.steps - static_cast<int>(ranges - 1 - range) * sums.cut;
  auto const head = stream % heads * group;
  return {static_cast<int>(stream / heads),
          static_cast<int>(stream % heads),
          first,
          min(Keys, static_cast<int>(length) - first),
          static_cast<int>(range * parts + part),
          ranges == 1 ? 0 : max(0, end - sums.cut),
          end,
          static_cast<int>(head + group * part / parts),
          static_cast<int>(head + group * (part + 1) / parts)};
}

//! Where the pieces of a tile that have added to its slices are counted.
template <int Keys>
__device__ inline std::int32_t*
written_of(parameters const& p, query_sums const& sums, key_work const& work) {
  int const tiles = (static_cast<int>(p.key_length) + Keys - 1) / Keys;
  int const head = work.batch * static_cast<int>(p.key_heads) + work.key_head;
  return sums.written + (head * tiles + work.first / Keys) * query_sums::slices;
}

//! 1 + the last tile of keys before `tile` that sees a step, or 0: after it this tile adds. By all
//! lanes of a warp.
//! @tparam Band whether the tiles that see a step follow each other
//! @param sees of a tile of keys
template <bool Band, class Sees>
__device__ __forceinline__ int tile_before(int tile, int lane, Sees const& sees) {
  if constexpr (Band) {
    bool const is_next = tile > 0 && sees(tile - 1);
    return __any_sync(0xffffffffu, is_next) ? tile : 0;
  }
  int next = tile - 1; // a tile for each lane
  unsigned seen = 0;
#pragma unroll 1
  while (seen == 0 && next >= 0) {
    int const mine = next - lane;
    seen = __ballot_sync(0xffffffffu, mine >= 0 && sees(mine));
    next -= 32;
  }
  return seen == 0 ? 0 : next + 34 - __ffs(seen);
}

__device__ inline int read_after(std::int32_t const* from) {
  int tile;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
               : "=r"(tile)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return tile;
}

//! Waits until the tile before, or the part before, has added.
__device__ inline void wait_for_tile(std::int32_t const* after, int before) {
  while (read_after(after) != before) {
  }
}

//! Waits until a tile may add to a step: once the one before has, or, in a free order, once the
//! first one has cleared the sums.
template <query_order Order>
__device__ inline void wait_for_turn(std::int32_t const* after, int before) {
  if constexpr (Order == query_order::kept) {
    wait_for_tile(after, before);
  } else {
    while (read_after(after) == 0) {
    }
  }
}

//! Says that this tile has added.
__device__ inline void write_after(std::int32_t* to, int tile) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
               "r"(tile + 1)
               : "memory");
}

//! The same in a free order, where tiles are counted from the first one on: 2 + the last tile is
//! there once all have added.
__device__ inline void count_after(std::int32_t* to, int tiles) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
               "r"(tiles)
               : "memory");
}

} // namespace pipelining::inline v0_3::attention::detail
