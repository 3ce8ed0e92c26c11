// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The steps that follow when gradients are complete: the exchange of a tied weight's
//! gradients, totals, the optimizer. Header for pipelining::place_hooks.

#include <pipe/core/dependencies.hpp>
#include <pipe/core/pass.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/step_validation.hpp>
#include <pipe/timetable/iterations.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <stdexcept>

namespace pipelining::inline v0_2 {

//! @brief True when a stage is one of the two that share a tied weight. A pipeline of one stage
//! shares nothing.
[[nodiscard]] constexpr bool holds_tied(shape const& extents, int stage) noexcept {
  int const last = stages(extents) - 1;
  return last > 0 && (stage == 0 || stage == last);
}

//! @brief Checks that a placement suits what the sizes ask for.
//! @throws std::invalid_argument with one sentence.
constexpr void
check_hooks(shape const& extents, std::int64_t tied_bytes, std::int64_t totals_bytes) {
  if (tied_bytes < 0 || totals_bytes < 0)
    throw std::invalid_argument("plan: tied_bytes and totals_bytes must not be negative");
  if (routes(extents) > 1 && tied_bytes + totals_bytes > 0)
    throw std::invalid_argument(
      "plan: tied weights and totals need one copy of every stage, but this placement keeps two; "
      "add up their gradients in gradients_ready, and step the optimizer after the iteration");
}

//! @brief Places the steps that follow complete gradients into the global order of passes and
//! messages.
//!
//! The gradient of a tied weight is handed over and sent as soon as its stage is complete, so that
//! the last stage's travels while earlier stages still run. Totals come behind all passes: rows go
//! from device to device towards device 0, which completes its gradients last, then all of them
//! back. Last come the steps of the optimizer. With early steps rows go to the last device, and
//! come back in the plan that follows. Works on arrays of the caller.
struct hook_placement {
  timetable_view table; //!< what the plan is made of
  bool tied;            //!< first and last stage share a weight
  bool totals;          //!< stages contribute rows
  event const* events;  //!< [count], the global order of passes and messages
  int count;            //!< of events
  event* placed;        //!< [count + hook_capacity(extents)]
  int written = 0;      //!< of placed
  int messages = 0;     //!< placed that no pass makes
  bool updates = true; //!< steps of the optimizer come last; an evaluation has none
  step_validation validation = step_validation::at_once; //!< of these steps
  int unvalidated = 0; //!< devices, from device 0 on, that have not validated the step before
};

//! @brief The most events that `place_hooks` adds.
[[nodiscard]] constexpr int hook_capacity(shape const& extents) noexcept {
  int const rows = stages(extents);
  return 6 + 3 * rows + (extents.devices - 1) * (rows + 1);
}

namespace detail {

constexpr void push(hook_placement& work, event const& what) noexcept {
  work.placed[work.written] = what;
  ++work.written;
}

constexpr void push_step(hook_placement& work, subject about, int stage) noexcept {
  push(work, {0, device_of(work.table, stage), nothing, about, stage});
}

constexpr void
push_message(hook_placement& work, subject about, int from, int to, int stage, int rows) noexcept {
  push(work, {0, from, to, about, stage, rows, work.messages});
  ++work.messages;
}

//! Validates the step before on all devices down to one, from the last one on: each hands the rows
//! on, then looks at them.
constexpr void place_validations(hook_placement& work, int device) noexcept {
  shape const& extents = work.table.extents;
  for (; work.unvalidated > device; --work.unvalidated) {
    int const next = work.unvalidated - 1;
    if (next > 0)
      push_message(work, subject::spread, next, next - 1, 0, stages(extents));
    for (int stage = 0; stage < stages(extents); ++stage)
      if (device_of(work.table, stage) == next)
        push_step(work, subject::validation, stage);
  }
}

//! What a device sends when it has validated reaches one that has as well.
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
           !may_run_again(work.table.over(), what.device, work.table.passes[what.entry]))
    place_validations(work, what.device);
  push(work, what);
}

//! One of the two stages of a tied weight, on the way through the global order.
struct tied_end {
  int stage = 0;
  int completing = nothing; // the event that runs the last pass of its gradients
  bool complete = false;
  bool sent = false; // what that pass made has left, or nothing leaves
  bool placed = false;
};

[[nodiscard]] constexpr tied_end find_tied_end(hook_placement const& work, int stage) noexcept {
  tied_end end{stage};
  for (int i = work.count - 1; i >= 0 && end.completing == nothing; --i) {
    event const& what = work.events[i];
    pass const& done = work.table.passes[what.entry];
    if (what.to == nothing && done.stage == stage &&
        completes_gradients(*work.table.declared, done.kind))
      end.completing = i;
  }
  return end;
}

//! Places the steps of a stage whose gradient is complete, and the additions once both are.
constexpr void place_tied(hook_placement& work, tied_end& end, tied_end const& other) noexcept {
  int const device = device_of(work.table, end.stage);
  int const there = device_of(work.table, other.stage);
  end.placed = true;
  push_step(work, subject::tied_gradient, end.stage);
  if (there != device) {
    validate_receiver(work, device, there);
    push_message(work, subject::tied_gradient, device, there, end.stage, 0);
  }
  if (!other.placed)
    return;
  push_step(work, subject::add_tied, end.stage);
  push_step(work, subject::add_tied, other.stage);
}

//! Notes what an event does for the end of a tied weight.
constexpr void follow(hook_placement const& work, tied_end& end, int index) noexcept {
  event const& what = work.events[index];
  if (index == end.completing) {
    end.complete = true;
    end.sent = stays_on_device(work.table.over(), work.table.passes[what.entry]);
  } else if (end.complete && what.to != nothing &&
             what.entry == work.events[end.completing].entry) {
    end.sent = true;
  }
}

constexpr void place_tied_steps(hook_placement& work) noexcept {
  tied_end ends[2]{find_tied_end(work, 0), find_tied_end(work, stages(work.table.extents) - 1)};
  for (int i = 0; i <= work.count; ++i) {
    // What the pass made goes first: another device waits for it.
    bool const between = i == work.count || (work.events[i].to == nothing &&
                                             !work.table.passes[work.events[i].entry].overlapped);
    for (int k = 0; k < 2 && between; ++k)
      if (ends[k].sent && !ends[k].placed)
        place_tied(work, ends[k], ends[1 - k]);
    if (i == work.count)
      return;
    push_event(work, i);
    for (tied_end& end : ends)
      follow(work, end, i);
  }
}

//! Sends the rows of the stages of some devices, a message for each run of stages.
constexpr void place_rows(hook_placement& work, int from, int to, int first, int last) noexcept {
  shape const& extents = work.table.extents;
  auto const has = [&](int stage) {
    int const device = device_of(work.table, stage);
    return device >= first && device <= last;
  };
  for (int stage = 0; stage < stages(extents);) {
    int const start = stage;
    while (stage < stages(extents) && has(stage))
      ++stage;
    if (stage > start)
      push_message(work, subject::gather, from, to, start, stage - start);
    else
      ++stage;
  }
}

constexpr void place_totals(hook_placement& work) noexcept {
  shape const& extents = work.table.extents;
  int const rows = stages(extents);
  for (int device = extents.devices - 1; device >= 0; --device) {
    for (int stage = 0; stage < rows; ++stage)
      if (device_of(work.table, stage) == device)
        push_step(work, subject::contribution, stage);
    if (device > 0)
      place_rows(work, device, device - 1, device, extents.devices - 1);
  }
  for (int device = 0; device + 1 < extents.devices; ++device)
    push_message(work, subject::spread, device, device + 1, 0, rows);
  for (int stage = 0; stage < rows && work.updates; ++stage)
    push_step(work, subject::update, stage);
}

//! Rows go to the last device; each device steps once it has those of the devices before it.
constexpr void place_early_steps(hook_placement& work) noexcept {
  shape const& extents = work.table.extents;
  int const rows = stages(extents);
  auto const held = [&work](int stage, int device) {
    return device_of(work.table, stage) == device;
  };
  for (int device = 0; device < extents.devices; ++device) {
    for (int stage = 0; stage < rows; ++stage)
      if (held(stage, device))
        push_step(work, subject::contribution, stage);
    if (device + 1 < extents.devices)
      place_rows(work, device, device + 1, 0, device);
    for (int stage = 0; stage < rows; ++stage)
      if (held(stage, device))
        push_step(work, subject::early_update, stage);
  }
}

} // namespace detail

//! @brief Fills `placed`.
//! @complexity O(n + P S) for n events.
constexpr void place_hooks(hook_placement& work) noexcept {
  work.unvalidated = validates(work.validation) ? work.table.extents.devices : 0;
  if (work.tied && stages(work.table.extents) > 1)
    detail::place_tied_steps(work);
  else
    for (int i = 0; i < work.count; ++i)
      detail::push_event(work, i);
  detail::place_validations(work, 0);
  if (steps_early(work.validation))
    detail::place_early_steps(work);
  else if (work.totals && !validates(work.validation))
    detail::place_totals(work);
}

} // namespace pipelining::inline v0_2
