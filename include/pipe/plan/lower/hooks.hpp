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
#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <stdexcept>

namespace pipelining::inline v0_3::detail {

//! @brief True when a stage is one of the two that share a tied weight. A pipeline of one stage
//! shares nothing.
[[nodiscard]] constexpr bool holds_tied(shape const& extents, int stage) noexcept {
  int const last = extents.stages() - 1;
  return last > 0 && (stage == 0 || stage == last);
}

//! @brief Checks that a placement suits the hooks that the sizes ask for.
//! @throws std::invalid_argument with one sentence.
constexpr void check_hooks(shape const& extents,
                           std::int64_t tied_bytes,
                           std::int64_t totals_bytes,
                           step_validation validation) {
  if (tied_bytes < 0 || totals_bytes < 0)
    throw std::invalid_argument("plan: tied_bytes and totals_bytes must not be negative");
  if (extents.routes() > 1 && validation != step_validation::at_once)
    throw std::invalid_argument(
      "plan: early steps of the optimizer need one copy of every stage, but this placement keeps "
      "several, which add up their gradients first; lower with step_validation::at_once");
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
                   find_tied_end(work, work.table.over.extents.stages() - 1)};
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

//! Places the additions of the gradients of a stage: every copy hands its own over, all get all.
constexpr void place_copies(hook_placement& work, int stage) noexcept {
  pipeline_view const over = work.table.over;
  for_each_copy(over, stage, [&](int, int microbatch) {
    push_step(work, subject::copied_gradient, stage, microbatch);
  });
  for_each_copy(over, stage, [&](int low, int low_microbatch) {
    for_each_copy(over, stage, [&](int high, int high_microbatch) {
      if (low >= high)
        return;
      push_message(work, subject::copied_gradient, low, high, stage, 0, low_microbatch);
      push_message(work, subject::copied_gradient, high, low, stage, 0, high_microbatch);
    });
  });
  for_each_copy(over, stage, [&](int, int microbatch) {
    push_step(work, subject::add_copies, stage, microbatch);
  });
}

//! Places passes and messages, and the additions of copies once all of them are complete and the
//! messages of their last passes are on their way.
constexpr void place_added_copies(hook_placement& work) noexcept {
  int looked_at = 0; // events
  for (int i = 0; i <= work.count; ++i) {
    bool const between = i == work.count || (i > 0 && work.events[i].to == nothing &&
                                             work.events[i - 1].to != nothing);
    for (; between && looked_at < i; ++looked_at)
      if (work.events[looked_at].to == nothing)
        if (int const stage = work.table.passes[work.events[looked_at].entry].stage;
            work.completing[stage] == looked_at && copies_of(work.table.over, stage) > 1)
          place_copies(work, stage);
    if (i < work.count)
      push_event(work, i);
  }
}

//! Places a tied weight's steps where its stages have copies, which have been added up: every
//! device that has one end gets the other, unless it has that as well.
constexpr void place_tied_copies(hook_placement& work) noexcept {
  pipeline_view const over = work.table.over;
  int const ends[2]{0, over.extents.stages() - 1};
  auto const on_all = [&](subject about) {
    for (int const end : ends)
      for_each_copy(
        over, end, [&](int, int microbatch) { push_step(work, about, end, microbatch); });
  };
  on_all(subject::tied_gradient);
  for (int k = 0; k < 2; ++k)
    for_each_copy(over, ends[1 - k], [&](int device, int microbatch) {
      if (microbatch_on(over, ends[k], device) < 0)
        push_message(work,
                     subject::tied_gradient,
                     device_of(over, ends[k], microbatch),
                     device,
                     ends[k],
                     0,
                     microbatch);
    });
  on_all(subject::add_tied);
}

//! Sends the rows of the stages of some devices, a message for each run of stages.
constexpr void place_rows(hook_placement& work, int from, int to, int first, int last) noexcept {
  shape const& extents = work.table.over.extents;
  auto const has = [&](int stage) {
    int const device = device_of(work.table, stage);
    return device >= first && device <= last;
  };
  for (int stage = 0; stage < extents.stages();) {
    int const start = stage;
    while (stage < extents.stages() && has(stage))
      ++stage;
    if (stage > start)
      push_message(work, subject::gather, from, to, start, stage - start);
    else
      ++stage;
  }
}

constexpr void place_totals(hook_placement& work) noexcept {
  shape const& extents = work.table.over.extents;
  int const rows = extents.stages();
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
    for_each_copy(work.table.over, stage, [&](int, int microbatch) {
      push_step(work, subject::update, stage, microbatch);
    });
}

//! Rows go to the last device; each device steps once it has the rows of the devices before it.
constexpr void place_early_steps(hook_placement& work) noexcept {
  shape const& extents = work.table.over.extents;
  int const rows = extents.stages();
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
  bool const ties = work.tied && work.table.over.extents.stages() > 1;
  if (work.completing != nullptr) {
    place_added_copies(work);
    if (ties)
      place_tied_copies(work);
  } else if (ties)
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
