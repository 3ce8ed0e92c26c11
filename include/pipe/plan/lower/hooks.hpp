// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The steps that follow when gradients are complete: the exchange of a tied weight's
//! gradients, totals, the optimizer.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/lower/hook_placement.hpp>
#include <pipe/plan/step_validation.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <stdexcept>

namespace pipelining::inline v0_3::detail {

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
        completes_gradients(*work.table.over.declared, done.kind))
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
    end.sent = stays_on_device(work.table.over, work.table.passes[what.entry]);
  } else if (end.complete && what.to != nothing &&
             what.entry == work.events[end.completing].entry) {
    end.sent = true;
  }
}

constexpr void place_tied_steps(hook_placement& work) noexcept {
  tied_end ends[2]{find_tied_end(work, 0),
                   find_tied_end(work, stages(work.table.over.extents) - 1)};
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
  shape const& extents = work.table.over.extents;
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
  shape const& extents = work.table.over.extents;
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
  shape const& extents = work.table.over.extents;
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

//! @brief Fills `placed`.
//! @complexity O(n + P S) for n events.
constexpr void place_hooks(hook_placement& work) noexcept {
  work.unvalidated = validates(work.validation) ? work.table.over.extents.devices : 0;
  if (work.tied && stages(work.table.over.extents) > 1)
    place_tied_steps(work);
  else
    for (int i = 0; i < work.count; ++i)
      push_event(work, i);
  place_validations(work, 0);
  if (steps_early(work.validation))
    place_early_steps(work);
  else if (work.totals && !validates(work.validation))
    place_totals(work);
}

} // namespace pipelining::inline v0_3::detail
