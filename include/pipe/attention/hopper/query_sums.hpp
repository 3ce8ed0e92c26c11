// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where the sums of dQ lie while backward for Hopper runs.

#include <pipe/attention/parameters.hpp>
#include <pipe/config.hpp>

#include <cstdint>

namespace pipelining::inline v0_2::attention {

//! @brief In which order blocks of keys add to dQ in the backward kernel for Hopper.
enum class query_order : std::uint8_t {
  kept, //!< last keys first: the same call gives the same bits
  free  //!< as they come: nobody waits, and dQ differs in its last bits from call to call
};

//! @brief Queries of one step of the backward kernel for Hopper.
template <int Dim>
inline constexpr int hopper_queries_of_step = Dim == 64 ? 128 : 64;

//! @brief Scratch of the backward kernel for Hopper. Sums lie as accumulators of wgmma do, so that
//! every lane adds four neighbours: [batch, heads, steps, tiles, part 8, thread 128, 4]. The tiles
//! are halves of the queries at head dim 64, halves of the head dim at 128, quarters of it at 256.
struct hopper_query_sums {
  static constexpr int tile = 64 * 64; //!< floats of one tile

  //! Tiles of one step.
  [[nodiscard]] PIPELINING_HOST_DEVICE static constexpr int tiles_of_step(std::int64_t head_dim) {
    return head_dim == 256 ? 4 : 2;
  }

  float* sums = nullptr;           //!< begins at a multiple of 16 bytes
  std::int32_t* after = nullptr;   //!< [batch, heads, steps]: 1 + the tile of keys that added last
  std::uint32_t* ticket = nullptr; //!< the next piece of work
  std::int32_t steps = 0;          //!< of the queries of a head

  //! Steps of the queries of a head.
  [[nodiscard]] static constexpr std::int64_t steps_of(parameters const& p) {
    auto const step = p.head_dim == 64 ? hopper_queries_of_step<64> : hopper_queries_of_step<128>;
    return (p.query_length + step - 1) / step;
  }
  //! Numbers of 4 bytes that it takes.
  [[nodiscard]] static constexpr std::int64_t scratch(parameters const& p) {
    return p.batch * p.heads * steps_of(p) * (tiles_of_step(p.head_dim) * tile + 1) + 1;
  }
  //! Takes its place at the start of scratch.
  //! @param data begins at a multiple of 16 bytes and holds scratch(p) numbers
  [[nodiscard]] static hopper_query_sums in(float* data, parameters const& p) {
    auto const count = p.batch * p.heads * steps_of(p);
    auto* const after =
      reinterpret_cast<std::int32_t*>(data + count * tiles_of_step(p.head_dim) * tile);
    return {data,
            after,
            reinterpret_cast<std::uint32_t*>(after + count),
            static_cast<std::int32_t>(steps_of(p))};
  }
  //! The number of the first step of a head.
  [[nodiscard]] PIPELINING_HOST_DEVICE std::int32_t
  first_step(parameters const& p, std::int32_t batch, std::int32_t head) const {
    return (batch * static_cast<std::int32_t>(p.heads) + head) * steps;
  }
};

} // namespace pipelining::inline v0_2::attention
