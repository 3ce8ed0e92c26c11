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

//! Streams of a section: at most `fit`, at least one. If more than half of `fit` can be, sections
//! are alike and even in number: whoever has the long pieces of one has the short ones of the next,
//! and a short last one would bring its long pieces late.
[[nodiscard]] constexpr std::int64_t in_even_sections(std::int64_t streams, std::int64_t fit) {
  for (auto each = fit; 2 * each > fit && each > 0; --each) {
    if (streams % (2 * each) == 0) {
      return each;
    }
  }
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

//! Bytes of a query of a head in backward: 2 and 4 of each number of it and of its dQ, 2 of dO.
[[nodiscard]] constexpr std::int64_t bytes_of_query(parameters const& p) {
  return p.head_dim * 6 + p.dim_of_values() * 2;
}

//! Key heads whose queries, dO and sums of dQ fit so many bytes, at least one; or all.
[[nodiscard]] constexpr std::int64_t streams_within(parameters const& p, std::int64_t bytes) {
  auto const each = p.group() * p.query_length * bytes_of_query(p);
  auto const streams = p.batch * p.key_heads;
  return streams * each <= bytes ? streams : each <= bytes ? bytes / each : 1;
}

//! Key heads that are worked on together, see query_sums::section: as many as fit five eighths of
//! the L2. All where that is no gain: where they fit three quarters, and where the order is free
//! and two blocks or more read the same queries at a time.
[[nodiscard]] constexpr std::int32_t key_heads_together(parameters const& p,
                                                        query_order order,
                                                        std::int64_t multiprocessors,
                                                        std::int64_t cache_bytes) {
  auto const streams = p.batch * p.key_heads;
  bool const is_shared = order == query_order::free && 2 * p.batch * p.heads <= multiprocessors;
  if (is_shared || streams_within(p, cache_bytes / 4 * 3) == streams) {
    return static_cast<std::int32_t>(streams);
  }
  return static_cast<std::int32_t>(
    in_even_sections(streams, streams_within(p, cache_bytes / 8 * 5)));
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

//! Steps that all tiles of keys of a query head see where a mask is causal.
[[nodiscard]] constexpr std::int64_t
steps_of_head(query_sums const& sums, parameters const& p, backward_tile_sizes const& tile) {
  auto const before = p.query_offset - p.key_offset;
  std::int64_t of_head = 0;
  for (std::int64_t key = 0; key < p.key_length; key += tile.keys) {
    auto const first = key > before ? (key - before) / tile.step : 0;
    of_head += first < sums.steps ? sums.steps - first : 0;
  }
  return of_head;
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

//! Cuts pieces to so many steps, of all their heads.
constexpr void cut_steps(query_sums& sums, parameters const& p, std::int64_t steps) {
  auto const heads = p.group() / sums.parts;
  auto const cut = (steps + heads - 1) / heads;
  sums.cut_to(cut < sums.steps ? static_cast<std::int32_t>(cut) : 0);
}

//! Parts of a group where queries are at least half as many as keys: two blocks for each
//! multiprocessor at least, in a kept order four where these have many steps, since the long ones
//! of the first wait for their turn. Not three: a third round of blocks, long ones first, ends at
//! different times. Where a mask is causal, blocks are as many steps apart as their keys have: a
//! block has as few heads as keep all these steps in three quarters of the L2.
[[nodiscard]] constexpr std::int32_t parts_of_square(parameters const& p,
                                                     query_order order,
                                                     backward_tile_sizes const& tile,
                                                     std::int64_t of_head,
                                                     std::int64_t multiprocessors,
                                                     std::int64_t cache_bytes) {
  auto const of_one_head = multiprocessors * tile.keys * bytes_of_query(p);
  return parts_of_group(p, [&](auto parts) {
    auto const blocks = query_sums::key_tiles(p, tile.keys) * parts;
    bool const is_long = order == query_order::kept && p.batch * p.heads * of_head >= 120 * blocks;
    auto const eighths = 8 * blocks / multiprocessors; // of a round
    return p.group() / parts * of_one_head <= cache_bytes / 4 * 3 &&
           eighths >= (is_long ? 30 : 15) && (eighths < 18 || eighths >= 28);
  });
}

//! Shares a chunk of few heads, many to a key head: large pieces, and then one for each head of a
//! tile, so that blocks start and end seldom, and all at one time. In a free order large ones are
//! of half a group, and of 44 % of the steps of a multiprocessor; in a kept one of two heads, in
//! all whole rounds that there are, since blocks that start at one time wait least.
constexpr void share_few_heads(query_sums& sums,
                               parameters const& p,
                               query_order order,
                               std::int64_t of_head,
                               std::int64_t multiprocessors) {
  auto const tiles = of_head / sums.steps; // that see all steps, in effect
  if (order == query_order::free) {
    sums.parts = parts_of_group(p, [&](auto parts) { return parts > 1; });
    sums.cut_tiles = static_cast<std::int32_t>(tiles * 11 / 20);
    cut_steps(sums, p, p.batch * p.heads * of_head * 11 / 25 / multiprocessors);
  } else {
    sums.parts = parts_of_group(p, [&](auto parts) { return 2 * parts >= p.group(); });
    auto const of_tile = p.batch * p.key_heads * sums.parts;
    auto const rounds = tiles * of_tile / multiprocessors;
    sums.cut_tiles = static_cast<std::int32_t>(rounds * multiprocessors / of_tile);
  }
}

//! Shares the work of backward: sets query_sums::section, parts, cut and cut_tiles.
//!
//! Blocks cost time to start and to end, and those of a tile of keys add to its dK and dV one after
//! the other. Where a block for each query head makes two for each multiprocessor at most, one for
//! each multiprocessor is made, in a free order one for each query head, and none has more steps
//! than a multiprocessor has on average, and three halves. Else see parts_of_square; for chunks
//! five are made for each, or as share_few_heads does it. In a kept order blocks of a head go
//! through its steps together, and few of these are in the L2 at a time: a section has about eight
//! heads at least, and two blocks for each multiprocessor.
//! @source own derivation, on the simulation of simulators/whole_gpu
constexpr void share_work(query_sums& sums,
                          parameters const& p,
                          query_order order,
                          backward_tile_sizes const& tile,
                          std::int64_t multiprocessors,
                          std::int64_t cache_bytes) {
  sums.section = key_heads_together(p, order, multiprocessors, cache_bytes);
  auto const tiles = query_sums::key_tiles(p, tile.keys);
  if (tiles * sums.steps == 0) {
    return;
  }
  bool const is_square = 2 * p.query_length >= p.key_length;
  auto const of_head = steps_of_head(sums, p, tile);
  if (tiles * p.group() <= 2 * multiprocessors) {
    sums.parts = parts_of_group(p, [&](auto parts) {
      return order == query_order::kept && 2 * tiles * parts > multiprocessors;
    });
    cut_steps(sums, p, p.batch * p.heads * of_head / multiprocessors + 2);
  } else if (is_square) {
    sums.parts = parts_of_square(p, order, tile, of_head, multiprocessors, cache_bytes);
  } else if (p.group() >= 8 && tiles * p.group() <= 16 * multiprocessors) {
    share_few_heads(sums, p, order, of_head, multiprocessors);
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
