// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The global order with the steps that follow complete gradients, as it is written; devices
//! validate the step before in it.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>

namespace pipelining::inline v0_3::detail {

//! @brief Places the steps that follow complete gradients into the global order of passes and
//! messages.
//!
//! Copies of a stage add up their gradients as soon as all of them are complete, then tied ends,
//! then come totals. The gradient of a tied weight is handed over and sent as soon as its stage is
//! complete, so that the last stage's travels while earlier stages still run. Totals come after
//! all passes: rows go from device to device towards device 0, which completes its gradients last,
//! then all of them back. Last come the steps of the optimizer. With early steps rows go to the
//! last device, and come back in the plan that follows. Works on arrays of the caller.
struct hook_placement {
  timetable_view table; //!< what the plan is made of
  bool tied;            //!< first and last stage share a weight
  bool totals;          //!< stages contribute rows
  event const* events;  //!< [count], the global order of passes and messages
  int count;            //!< of events
  event* placed;        //!< [count + hook_capacity(extents)]
  //! [S], the event after which all copies of a stage have complete gradients; null where every
  //! stage has one.
  int const* completing = nullptr;
  int written = 0;     //!< of placed
  int messages = 0;    //!< placed that no pass makes
  bool updates = true; //!< steps of the optimizer come last; an evaluation has none
  step_validation validation = step_validation::at_once; //!< of these steps
  int unvalidated = 0; //!< devices, from device 0 on, that have not validated the step before
};

//! @brief The most events that `place_hooks` adds.
[[nodiscard]] constexpr int hook_capacity(shape const& extents) noexcept {
  int const rows = extents.stages();
  int const copies = most_copies(extents);
  return 6 * copies + 3 * rows * copies + (extents.devices - 1) * (rows + 1) +
         (copies > 1 ? rows * copies * (copies + 1) : 0);
}

constexpr void push(hook_placement& work, event const& what) noexcept {
  work.placed[work.written] = what;
  ++work.written;
}

//! @param microbatch takes the copy of the stage
constexpr void
push_step(hook_placement& work, subject about, int stage, int microbatch = 0) noexcept {
  push(work,
       {.entry = microbatch,
        .device = device_of(work.table, stage, microbatch),
        .about = about,
        .stage = stage});
}

constexpr void push_message(hook_placement& work,
                            subject about,
                            int from,
                            int to,
                            int stage,
                            int rows,
                            int microbatch = 0) noexcept {
  push(work,
       {.entry = microbatch,
        .device = from,
        .to = to,
        .about = about,
        .stage = stage,
        .rows = rows,
        .number = work.messages});
  ++work.messages;
}

//! Validates the step before on all devices down to one, from the last one on: each hands the rows
//! on, then looks at them.
constexpr void place_validations(hook_placement& work, int device) noexcept {
  shape const& extents = work.table.over.extents;
  for (; work.unvalidated > device; --work.unvalidated) {
    int const next = work.unvalidated - 1;
    if (next > 0)
      push_message(work, subject::spread, next, next - 1, 0, extents.stages());
    for (int stage = 0; stage < extents.stages(); ++stage)
      if (device_of(work.table, stage) == next)
        push_step(work, subject::validation, stage);
  }
}

//! Validates the receiver of a message if the sender has validated.
constexpr void validate_receiver(hook_placement& work, int from, int to) noexcept {
  if (from >= work.unvalidated)
    place_validations(work, to);
}

//! The halves of a composite pass stay together.
[[nodiscard]] constexpr bool is_half(hook_placement const& work, int index) noexcept {
  auto const overlaps = [&work](int at) {
    return at < work.count && work.events[at].to == nothing &&
           work.table.passes[work.events[at].entry].overlapped;
  };
  return overlaps(index) || overlaps(index + 1);
}

//! Takes an event over; a device validates before it runs what cannot run again.
constexpr void push_event(hook_placement& work, int index) noexcept {
  event const& what = work.events[index];
  if (what.to != nothing)
    validate_receiver(work, what.device, what.to);
  else if (is_half(work, index) ||
           !may_run_again(work.table.over, what.device, work.table.passes[what.entry]))
    place_validations(work, what.device);
  push(work, what);
}

} // namespace pipelining::inline v0_3::detail
