// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Groups of heads that the kernels for Hopper work on together, and their parts, so that
//! a GPU is full and reads from its L2.

#include <pipe/attention/parameters.hpp>
#include <pipe/attention/query_sums.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

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
  return static_cast<std::int32_t>((fit < 1 ? 1 : fit) * p.group());
}

//! Into how many parts the heads of a group are cut: a head each where queries are at least half as
//! many as keys, since heads that follow each other make blocks wait for dQ; else so many that
//! there are three blocks for each multiprocessor, as far as there are heads, and that all have as
//! many heads.
//! @param keys of a tile
[[nodiscard]] constexpr std::int32_t
parts_of_groups(parameters const& p, int keys, std::int64_t multiprocessors) {
  auto const blocks = query_sums::key_tiles(p, keys);
  if (blocks == 0) {
    return 1;
  }
  auto const full = (3 * multiprocessors + blocks - 1) / blocks;
  auto const wanted = 2 * p.query_length >= p.key_length ? p.group() : full;
  for (auto parts = wanted; parts < p.group(); ++parts) {
    if (p.group() % parts == 0) {
      return static_cast<std::int32_t>(parts);
    }
  }
  return static_cast<std::int32_t>(p.group());
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
  return static_cast<std::int32_t>(fit < 1 ? 1 : fit);
}

} // namespace pipelining::inline v0_3::attention::detail
