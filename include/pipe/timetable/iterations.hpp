// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How soon one iteration may follow another. Header for pipelining::post_validated_period
//! and pipelining::detail::may_run_again.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>

namespace pipelining::inline v0_3 {

namespace detail {

//! True for a pass that a device may run before it knows whether the step of the optimizer
//! was right: a forward pass of its lowest stage, which needs nothing of this iteration but such
//! passes, and can run again.
[[nodiscard]] constexpr bool
may_run_again(pipeline_view const& over, int device, pass const& what) noexcept {
  if ((*over.declared)[what.kind].calls != stage_call::forward)
    return false;
  for (int stage = 0; stage < what.stage; ++stage)
    if (device_of(over, stage) == device)
      return false;
  return true;
}

//! When a device begins the first pass that cannot run again, on whichever engine.
[[nodiscard]] constexpr double first_final_start(timetable_view table, int device) noexcept {
  double first = last_end(table, device);
  for (int row = device; row < table.rows(); row += table.over.extents.devices)
    for (int i = table.offsets[row]; i < table.offsets[row + 1]; ++i)
      if (table.starts[i] < first && !may_run_again(table.over, device, table.passes[i]))
        first = table.starts[i];
  return first;
}

} // namespace detail

//! @brief The time from the start of one iteration to that of the next, where every device begins
//! the next one when it has ended this one, and has the totals of all devices before the first pass
//! that cannot run again. With a barrier between iterations it is the makespan.
//!
//! No less than the span of the timetable: a device is busy with one iteration at a time. No less
//! than from a device's first such pass to the last end on any device: then the totals are
//! complete. Where every iteration has the times of the table, these bounds are met. n iterations
//! take (n - 1) periods and a makespan. Messages with totals take no time.
//! @complexity O(n S) for n passes.
//! @source own derivation
[[nodiscard]] constexpr double post_validated_period(timetable_view table) noexcept {
  double period = span_of(table);
  double complete = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    complete =
      detail::last_end(table, device) > complete ? detail::last_end(table, device) : complete;
  for (int device = 0; device < table.over.extents.devices; ++device)
    if (double const wait = complete - detail::first_final_start(table, device); wait > period)
      period = wait;
  return period;
}

} // namespace pipelining::inline v0_3
