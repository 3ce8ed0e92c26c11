// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What schedules say of their pipeline beside the extents, in tables.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! How many entries the table of a schedule's own placement has, or of its own numbers of chunks.
template <class Schedule>
[[nodiscard]] constexpr int holder_count(shape const& extents) noexcept {
  return places_stages<adapted_type<Schedule>> ? stages(extents) * routes(extents) : 0;
}
template <class Schedule>
[[nodiscard]] constexpr int first_unit_count(shape const& extents) noexcept {
  return counts_chunks<adapted_type<Schedule>> ? extents.microbatches + 1 : 0;
}

//! Writes where stages are: [routes][S].
//! @throws std::invalid_argument for a device that there is not.
template <class Schedule>
constexpr void write_holders(Schedule const& plan, shape const& extents, std::uint16_t* holders) {
  if constexpr (places_stages<adapted_type<Schedule>>) {
    for (int i = 0; i < holder_count<Schedule>(extents); ++i) {
      int const stage = i % stages(extents);
      int const device = adapted(plan).device_of(extents, stage, i / stages(extents));
      check_holder(extents, stage, device);
      holders[i] = static_cast<std::uint16_t>(device);
    }
  } else {
    check_named_placement(extents);
  }
}

//! Writes where the units of microbatches begin: [M + 1].
//! @throws std::invalid_argument for a number of chunks that cannot be.
template <class Schedule>
constexpr void write_first_units(Schedule const& plan, shape const& extents, int* first_units) {
  if constexpr (counts_chunks<adapted_type<Schedule>>)
    for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch) {
      int const chunks = adapted(plan).chunks_of(extents, microbatch);
      check_chunk_count(extents, microbatch, chunks);
      first_units[microbatch + 1] = first_units[microbatch] + chunks;
    }
}

} // namespace pipelining::inline v0_3::detail
