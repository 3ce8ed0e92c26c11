// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Keys in parts, for chunks of queries that alone do not fill a GPU.

#include <pipe/attention/parameters.hpp>

#include <cstdint>
#include <string>

namespace pipelining::inline v0_3::attention::detail {

//! Memory for the results of a forward call after each part of the keys.
struct key_splits {
  float* output = nullptr;      //!< [count, batch, heads, query_length, value_dim], dense
  float* log_sum_exp = nullptr; //!< [count, batch, heads, query_length], dense
  std::int32_t count = 1;       //!< parts, of tiles as equal in number as can be

  //! Numbers that output and log_sum_exp have to hold, together.
  [[nodiscard]] static constexpr std::int64_t scratch(parameters const& p, std::int32_t count) {
    return count * p.batch * p.heads * p.query_length * (p.dim_of_values() + 1);
  }

  //! The parts in scratch(p, count) numbers from `start` on.
  [[nodiscard]] static constexpr key_splits
  in(float* start, parameters const& p, std::int32_t count) {
    auto const rows = count * p.batch * p.heads * p.query_length;
    return {start, start + rows * p.dim_of_values(), count};
  }
};

//! All keys at once.
struct no_key_splits {
  static constexpr std::int32_t count = 1; //!< parts that the keys are cut into
};

//! Into how many parts to cut the keys, so that pieces of work fill the rounds of a GPU.
//!
//! As many as take the least time, counted in tiles of keys: those of a part and three around
//! them, in each round; and where there are parts, six to launch their merge, and one for what 32
//! of them write and read. A part has at least two tiles.
//! @param work            pieces of work without parts: tiles of queries, times heads and sequences
//! @param tiles           of keys
//! @param multiprocessors of the GPU; each does one piece at a time
//! @source own derivation; the three and the six from times on an H200
[[nodiscard]] constexpr std::int32_t
choose_key_splits(std::int64_t work, std::int64_t tiles, std::int64_t multiprocessors) {
  auto const merge = [&](std::int64_t count) { return count == 1 ? 0 : 6 + work * count / 32; };
  auto const time = [&](std::int64_t count) {
    auto const rounds = (work * count + multiprocessors - 1) / multiprocessors;
    return rounds * ((tiles + count - 1) / count + 3) + merge(count);
  };
  std::int64_t best = 1;
  auto least = time(best);
  std::int64_t const most = tiles / 2 < 1 ? 1 : tiles / 2 > 256 ? 256 : tiles / 2;
  for (std::int64_t count = 2; work > 0 && count <= most; ++count) {
    // So many parts, and more, take full rounds at least. The rule is asked at each call.
    if (work * (tiles + 3 * count) / multiprocessors + merge(count) >= least) {
      break;
    }
    if (auto const of_count = time(count); of_count < least) {
      best = count;
      least = of_count;
    }
  }
  return static_cast<std::int32_t>(best);
}

//! Pieces of work of forward without parts: tiles of queries, times heads and sequences.
//! @tparam Shape of the kernel: queries and keys of a tile
template <class Shape>
[[nodiscard]] constexpr std::int64_t pieces_of(parameters const& p) {
  return (p.query_length + Shape::queries - 1) / Shape::queries * p.heads * p.batch;
}

//! As many parts as choose_key_splits says, for a call.
//! @param held   multiprocessors that other kernels hold
//! @param blocks that a multiprocessor runs at a time
template <class Shape>
[[nodiscard]] constexpr std::int32_t choose_key_splits(parameters const& p,
                                                       std::int64_t multiprocessors,
                                                       std::int64_t held,
                                                       std::int64_t blocks = 1) {
  auto const free = multiprocessors > held ? multiprocessors - held : 1;
  return choose_key_splits(
    pieces_of<Shape>(p), (p.key_length + Shape::keys - 1) / Shape::keys, free * blocks);
}

} // namespace pipelining::inline v0_3::attention::detail
