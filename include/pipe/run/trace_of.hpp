// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Passes as they ran, as a timetable. Header for pipelining::detail::trace_of.

#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! The passes of a plan with the times at which they ran. Hooks are not among them.
//! @param time `time(device, item, end)` is when the item of that number of the device began, or
//! ended where `end` is true.
//! @complexity O(n E) for n items and E engines.
template <class Time>
[[nodiscard]] dynamic_timetable trace_of(plan const& ran, Time time) {
  plan_view const view = ran.view();
  dynamic_timetable result{.over = ran.over};
  result.offsets.push_back(0);
  for (int row = 0; row < view.over.row_count(); ++row) {
    int const device = row % view.over.extents.devices;
    auto const steps = view.program_of(device);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].what != operation::run || steps[i].about != subject::pass ||
          view.over.row_of(steps[i].work) != row)
        continue;
      result.passes.push_back(steps[i].work);
      result.starts.push_back(time(device, i, false));
      result.ends.push_back(time(device, i, true));
    }
    result.offsets.push_back(static_cast<int>(result.passes.size()));
  }
  return result;
}

} // namespace pipelining::inline v0_3::detail
