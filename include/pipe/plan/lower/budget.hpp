// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Does every arena fit, and if not, what takes the room? Header for
//! pipelining::detail::find_over_budget.

#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/arena.hpp>
#include <pipe/plan/plan.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! The first device whose arena is larger than the limit, with the class that takes the most
//! of it and the pass at which that class reaches its peak.
struct over_budget {
  int device = nothing;                        //!< the device; `nothing` where all fit
  slot_class largest = slot_class::activation; //!< the class that takes the most
  int slots = 0;                               //!< of the class
  std::int64_t slot_bytes = 0;                 //!< of one of them
  std::int64_t arena_bytes = 0;                //!< of the device
  pass peak{};                   //!< the pass at which all slots of the class are in use
  subject about = subject::pass; //!< of the step at the peak

  //! True when every device keeps to the limit.
  [[nodiscard]] constexpr bool fits() const noexcept { return device == nothing; }
};

//! @param limit the most bytes of an arena.
//! @complexity O(P).
[[nodiscard]] constexpr over_budget find_over_budget(plan_view work, std::int64_t limit) noexcept {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    bool const counted = work.arena_bytes[device] < most_bytes;
    if (counted && work.arena_bytes[device] <= limit)
      continue;
    over_budget found{device};
    found.arena_bytes = work.arena_bytes[device];
    for (int of = 0; of < slot_classes; ++of) {
      slot_layout const& layout = work.layout(device, static_cast<slot_class>(of));
      if (times(layout.bytes, layout.count) <= times(found.slot_bytes, found.slots) ||
          lies_on_host(*work.over.declared, of))
        continue;
      found.largest = static_cast<slot_class>(of);
      found.slots = layout.count;
      found.slot_bytes = layout.bytes;
      item const& first = work.program_of(device)[static_cast<std::size_t>(layout.peak_item)];
      found.peak = first.work;
      found.about = first.about;
    }
    return found;
  }
  return {};
}

} // namespace pipelining::inline v0_3::detail
