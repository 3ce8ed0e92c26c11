// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The place of the sums of dQ while backward runs on a GPU.

#include <pipe/attention/kernel_choice.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/config.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention {

//! @brief In which order blocks of keys add to dQ in the backward kernels.
enum class query_order : std::uint8_t {
  kept, //!< first keys first: the same call gives the same bits
  free  //!< as they come: dQ differs in its last bits from call to call
};

namespace detail {

//! Queries of one step of a backward kernel.
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr int queries_of_step(kernel_family family,
                                                                   std::int64_t dim) {
  if (family == kernel_family::hopper) {
    return dim == 64 ? 128 : 64;
  }
  return dim > 128 ? 32 : 64;
}

//! Scratch of the backward kernels: sums of dQ, [batch, heads, steps, queries of a step
//! times head_dim], each step in the order in which lanes add to it, and what is known of each
//! query.
struct query_sums {
  float* sums = nullptr;           //!< begins at a multiple of 16 bytes
  float* numbers = nullptr;        //!< two of each query: log-sum-exp times log2 e, and dO . O
  std::int32_t* after = nullptr;   //!< of each step and half: 1 + the tile of keys that added last
  std::uint32_t* ticket = nullptr; //!< the next piece of work
  std::int32_t* written = nullptr; //!< of slices of tiles of keys: pieces that have added
  std::int32_t steps = 0;          //!< of the queries of a head
  std::int32_t parts = 1;          //!< the heads of a group are cut into so many, for a block each
  std::int32_t section = 1;        //!< key heads, of all sequences, that are worked on together
  std::int32_t cut = 0;            //!< steps of a piece of work at most; 0: all that there are
  std::int32_t ranges = 1;         //!< of steps, for a piece each
  //! Tiles of keys of a head in such pieces; those after them have one for each query head.
  std::int32_t cut_tiles = 0x7fffffff;
  std::int32_t pieces = 0; //!< of work, where blocks stay until none is left
  bool starts_at_0 = true; //!< sums do; else whoever adds to a step first clears it
  bool is_rounded = false; //!< whoever adds to a step last writes its dQ, no kernel after it

  //! Slices of dK and dV of a tile, in which its pieces of work add one after the other.
  static constexpr int slices = 8;

  //! Blocks that share the columns of a head: their sums have an order each.
  [[nodiscard]] PIPELINING_HOST_DEVICE static constexpr int halves(kernel_family family,
                                                                   std::int64_t dim) {
    return family == kernel_family::portable && dim == 256 ? 2 : 1;
  }
  //! Steps of the queries of a head.
  [[nodiscard]] static constexpr std::int64_t steps_of(parameters const& p, kernel_family family) {
    auto const step = queries_of_step(family, p.head_dim);
    return (p.query_length + step - 1) / step;
  }
  //! Tiles of keys, of all key heads and sequences. @param keys of a tile; else of the smallest
  [[nodiscard]] PIPELINING_HOST_DEVICE static constexpr std::int64_t key_tiles(parameters const& p,
                                                                               int keys = 64) {
    return p.batch * p.key_heads * ((p.key_length + keys - 1) / keys);
  }
  //! Cuts pieces of work to so many steps, the earliest to fewer; 0: not.
  constexpr void cut_to(std::int32_t most) {
    cut = most;
    ranges = most == 0 ? 1 : (steps + most - 1) / most;
  }
  //! Whether a tile has several pieces of work.
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr bool has_parts() const {
    return parts * ranges > 1 || cut_tiles < 0x7fffffff;
  }
  //! Blocks of a backward kernel. @param keys of a tile
  [[nodiscard]] constexpr std::int64_t
  blocks(parameters const& p, int keys, kernel_family family) const {
    auto const tiles = (p.key_length + keys - 1) / keys;
    auto const in_parts = tiles < cut_tiles ? tiles : cut_tiles;
    return p.batch * p.key_heads * halves(family, p.head_dim) *
           (in_parts * parts * ranges + (tiles - in_parts) * p.group());
  }
  //! Numbers of 4 bytes that it takes.
  [[nodiscard]] static constexpr std::int64_t scratch(parameters const& p, kernel_family family) {
    auto const step = queries_of_step(family, p.head_dim);
    return p.batch * p.heads * steps_of(p, family) *
             (step * (p.head_dim + 2) + halves(family, p.head_dim)) +
           key_tiles(p) * slices + 1;
  }
  //! Takes its place at the start of scratch.
  //! @param data begins at a multiple of 16 bytes and holds scratch(p, family) numbers
  [[nodiscard]] static query_sums in(float* data, parameters const& p, kernel_family family) {
    auto const steps = p.batch * p.heads * steps_of(p, family);
    auto const queries = steps * queries_of_step(family, p.head_dim);
    auto* const numbers = data + queries * p.head_dim;
    auto* const after = reinterpret_cast<std::int32_t*>(numbers + queries * 2);
    auto* const written = after + steps * halves(family, p.head_dim);
    return {data,
            numbers,
            after,
            reinterpret_cast<std::uint32_t*>(written + key_tiles(p) * slices),
            written,
            static_cast<std::int32_t>(steps_of(p, family)),
            1,
            static_cast<std::int32_t>(p.batch * p.key_heads)};
  }
  //! The number of the first step of a head.
  [[nodiscard]] PIPELINING_HOST_DEVICE std::int32_t
  first_step(parameters const& p, std::int32_t batch, std::int32_t head) const {
    return (batch * static_cast<std::int32_t>(p.heads) + head) * steps;
  }
};

} // namespace detail

} // namespace pipelining::inline v0_3::attention
