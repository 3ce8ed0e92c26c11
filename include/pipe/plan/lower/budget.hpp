// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Does every arena fit, and if not, what takes the room? Header for
//! pipelining::detail::check_budget.

#include <pipe/plan/describe.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/arena.hpp>
#include <pipe/plan/plan.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3::detail {

//! @param limit the most bytes of an arena.
//! @throws std::length_error with a sentence for the first device whose arena is larger. It names
//! the class with the most bytes, and the step at which all of its slots are in use.
//! @complexity O(P).
inline void check_budget(plan_view work, std::int64_t limit) {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    bool const counted = work.arena_bytes[device] < most_bytes;
    if (counted && work.arena_bytes[device] <= limit)
      continue;
    auto largest = slot_class::activation;
    auto const bytes_of = [&](slot_class of) {
      slot_layout const& layout = work.layout(device, of);
      return lies_on_host(*work.over.declared, static_cast<int>(of))
               ? 0
               : times(layout.bytes, layout.count);
    };
    for (int of = 0; of < slot_classes; ++of)
      if (auto const other = static_cast<slot_class>(of); bytes_of(other) > bytes_of(largest))
        largest = other;
    slot_layout const& layout = work.layout(device, largest);
    item const& peak = work.program_of(device)[static_cast<std::size_t>(layout.peak_item)];
    throw std::length_error(
      "plan: an arena is over the memory limit (device " + std::to_string(device) + ": " +
      std::to_string(work.arena_bytes[device]) + " of " + std::to_string(limit) +
      " bytes; most of it for class " + word(largest) + ", " + std::to_string(layout.count) +
      " slots of " + std::to_string(layout.bytes) + " bytes, first in use together at the " +
      describe_subject(peak, work.over) + ")");
  }
}

} // namespace pipelining::inline v0_3::detail
