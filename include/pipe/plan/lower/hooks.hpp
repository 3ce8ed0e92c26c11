// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The steps that follow when gradients are complete, in the global order: the exchange of a
//! tied weight's gradients, totals, the optimizer. Devices validate the step before in it.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/global_order.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief True when a stage is one of the two that share a tied weight. A pipeline of one stage
//! shares nothing.
[[nodiscard]] constexpr bool holds_tied(shape const& extents, int stage) noexcept {
  int const last = extents.stages() - 1;
  return last > 0 && (stage == 0 || stage == last);
}

//! True for a plan in which the gradients of copies of stages are added up.
[[nodiscard]] inline bool adds_copies(plan const& to) noexcept {
  return !to.evaluates && to.over.extents.routes() > 1;
}

//! @brief Places the steps that follow complete gradients into the global order of passes and
//! messages.
//!
//! Copies of a stage add up their gradients as soon as all of them are complete, then tied ends,
//! then come totals. The gradient of a tied weight is handed over and sent as soon as its stage is
//! complete, so that the last stage's travels while earlier stages still run. Totals come after
//! all passes: rows go from device to device towards device 0, which completes its gradients last,
//! then all of them back. Last come the steps of the optimizer. With early steps rows go to the
//! last device, and come back in the plan that follows.
struct hook_placement {
  timetable_view table;        //!< what the plan is made of
  plan& to;                    //!< says which steps it has, and counts messages that no pass makes
  std::vector<event> events;   //!< the global order of passes and messages
  std::vector<event> placed{}; //!< with these steps
  int unvalidated = 0; //!< devices, from device 0 on, that have not validated the step before

  //! The pass of an event; of a message, the one that makes it.
  [[nodiscard]] pass const& pass_of(event const& what) const noexcept {
    return table.passes[what.entry];
  }
};

//! @param microbatch takes the copy of the stage
inline void push_step(hook_placement& work, subject about, int stage, int microbatch = 0) {
  work.placed.push_back({.entry = microbatch,
                         .device = device_of(work.table, stage, microbatch),
                         .about = about,
                         .stage = stage});
}

//! The step of each copy of a stage.
inline void push_copies(hook_placement& work, subject about, int stage) {
  for_each_copy(work.table.over, stage, [&](int, int microbatch) {
    push_step(work, about, stage, microbatch);
  });
}

//! The step of each stage of a device, where stages have one copy.
inline void push_stages(hook_placement& work, subject about, int device) {
  for (int stage = 0; stage < work.table.over.extents.stages(); ++stage)
    if (device_of(work.table, stage) == device)
      push_step(work, about, stage);
}

inline void push_message(hook_placement& work,
                         subject about,
                         int from,
                         int to,
                         int stage,
                         int rows = 0,
                         int microbatch = 0) {
  work.placed.push_back({.entry = microbatch,
                         .device = from,
                         .to = to,
                         .about = about,
                         .stage = stage,
                         .rows = rows,
                         .number = work.to.other_messages++});
}

//! Validates the step before on all devices down to one, from the last one on: each hands the rows
//! on, then looks at them.
inline void place_validations(hook_placement& work, int device) {
  for (; work.unvalidated > device; --work.unvalidated) {
    int const next = work.unvalidated - 1;
    if (next > 0)
      push_message(work, subject::spread, next, next - 1, 0, work.table.over.extents.stages());
    push_stages(work, subject::validation, next);
  }
}

//! Validates the receiver of a message if the sender has validated.
inline void validate_receiver(hook_placement& work, int from, int to) {
  if (from >= work.unvalidated)
    place_validations(work, to);
}

//! The halves of a composite pass stay together.
[[nodiscard]] inline bool is_half(hook_placement const& work, std::size_t index) noexcept {
  auto const overlaps = [&work](std::size_t at) {
    return at < work.events.size() && work.events[at].to == nothing &&
           work.pass_of(work.events[at]).overlapped;
  };
  return overlaps(index) || overlaps(index + 1);
}

//! Takes an event over; a device validates before it runs what cannot run again.
inline void push_event(hook_placement& work, std::size_t index) {
  event const& what = work.events[index];
  if (what.to != nothing)
    validate_receiver(work, what.device, what.to);
  else if (is_half(work, index) || !may_run_again(work.table.over, what.device, work.pass_of(what)))
    place_validations(work, what.device);
  work.placed.push_back(what);
}

//! For each stage the event after which the gradients of all of its copies are complete; the number
//! of events where there is none.
[[nodiscard]] inline std::vector<std::size_t> completing_events(hook_placement const& work) {
  auto const stages = static_cast<std::size_t>(work.table.over.extents.stages());
  std::vector<std::size_t> last(stages, work.events.size());
  for (std::size_t i = 0; i < work.events.size(); ++i)
    if (pass const& done = work.pass_of(work.events[i]);
        work.events[i].to == nothing && completes_gradients(*work.table.over.declared, done.kind))
      last[done.stage] = i;
  return last;
}

//! The event before which the steps of an end of a tied weight go: between passes, once what the
//! last pass of its gradients made is on its way, since another device waits for that.
//! @param completing the event that runs that pass
[[nodiscard]] inline std::size_t after_messages(hook_placement const& work,
                                                std::size_t completing) noexcept {
  int const entry = work.events[completing].entry;
  auto at = work.events.begin() + static_cast<std::ptrdiff_t>(completing);
  if (!stays_on_device(work.table.over, work.table.passes[entry]))
    at = std::find_if(at + 1, work.events.end(), [entry](event const& what) {
      return what.to != nothing && what.entry == entry;
    });
  at = std::find_if(at + 1, work.events.end(), [&work](event const& what) {
    return what.to == nothing && !work.pass_of(what).overlapped;
  });
  return static_cast<std::size_t>(at - work.events.begin());
}

//! Places the steps of a stage whose gradient is complete.
inline void place_tied(hook_placement& work, int stage, int other_stage) {
  int const device = device_of(work.table, stage);
  int const there = device_of(work.table, other_stage);
  push_step(work, subject::tied_gradient, stage);
  if (there == device)
    return;
  validate_receiver(work, device, there);
  push_message(work, subject::tied_gradient, device, there, stage);
}

//! Places a tied weight's steps at each of its ends, and the additions once both are complete.
inline void place_tied_steps(hook_placement& work) {
  std::vector<std::size_t> const completing = completing_events(work);
  int const ends[2]{0, work.table.over.extents.stages() - 1};
  std::size_t const places[2]{after_messages(work, completing.front()),
                              after_messages(work, completing.back())};
  int placed = 0;
  for (std::size_t i = 0; i <= work.events.size(); ++i) {
    for (int k = 0; k < 2; ++k) {
      if (places[k] != i)
        continue;
      place_tied(work, ends[k], ends[1 - k]);
      if (++placed == 1)
        continue;
      push_step(work, subject::add_tied, ends[k]);
      push_step(work, subject::add_tied, ends[1 - k]);
    }
    if (i < work.events.size())
      push_event(work, i);
  }
}

//! Places the additions of the gradients of a stage: every copy hands its own over, all get all.
inline void place_copies(hook_placement& work, int stage) {
  pipeline_view const over = work.table.over;
  push_copies(work, subject::copied_gradient, stage);
  for_each_copy(over, stage, [&](int low, int low_microbatch) {
    for_each_copy(over, stage, [&](int high, int high_microbatch) {
      if (low >= high)
        return;
      push_message(work, subject::copied_gradient, low, high, stage, 0, low_microbatch);
      push_message(work, subject::copied_gradient, high, low, stage, 0, high_microbatch);
    });
  });
  push_copies(work, subject::add_copies, stage);
}

//! Places passes and messages, and the additions of copies once all of them are complete and the
//! messages of their last passes are on their way.
inline void place_added_copies(hook_placement& work) {
  std::vector<std::size_t> const completing = completing_events(work);
  std::size_t looked_at = 0; // events
  for (std::size_t i = 0; i <= work.events.size(); ++i) {
    bool const between = i == work.events.size() || (i > 0 && work.events[i].to == nothing &&
                                                     work.events[i - 1].to != nothing);
    for (; between && looked_at < i; ++looked_at)
      if (work.events[looked_at].to == nothing)
        if (int const stage = work.pass_of(work.events[looked_at]).stage;
            completing[static_cast<std::size_t>(stage)] == looked_at &&
            copies_of(work.table.over, stage) > 1)
          place_copies(work, stage);
    if (i < work.events.size())
      push_event(work, i);
  }
}

//! Places a tied weight's steps where its stages have copies, which have been added up: every
//! device that has one end gets the other, unless it has that as well.
inline void place_tied_copies(hook_placement& work) {
  pipeline_view const over = work.table.over;
  int const ends[2]{0, over.extents.stages() - 1};
  for (int const end : ends)
    push_copies(work, subject::tied_gradient, end);
  for (int k = 0; k < 2; ++k)
    for_each_copy(over, ends[1 - k], [&](int device, int microbatch) {
      int const from = device_of(over, ends[k], microbatch);
      if (microbatch_on(over, ends[k], device) < 0)
        push_message(work, subject::tied_gradient, from, device, ends[k], 0, microbatch);
    });
  for (int const end : ends)
    push_copies(work, subject::add_tied, end);
}

//! Sends the rows that a device has come by on the way from the first or the last one, a message
//! for each run of stages.
inline void place_rows(hook_placement& work, int from, int to) {
  int const stages = work.table.over.extents.stages();
  auto const has = [&](int stage) {
    int const device = device_of(work.table, stage);
    return from < to ? device <= from : device >= from;
  };
  for (int stage = 0; stage < stages; ++stage) {
    int const start = stage;
    while (stage < stages && has(stage))
      ++stage;
    if (stage > start)
      push_message(work, subject::gather, from, to, start, stage - start);
  }
}

//! Rows go to device 0, then all of them to all devices, which step. With early steps rows go to
//! the last device; each steps once it has the rows of the devices before it.
inline void place_totals(hook_placement& work) {
  shape const& extents = work.table.over.extents;
  bool const early = steps_early(work.to.validation);
  for (int i = 0; i < extents.devices; ++i) {
    int const device = early ? i : extents.devices - 1 - i;
    push_stages(work, subject::contribution, device);
    if (i + 1 < extents.devices)
      place_rows(work, device, early ? device + 1 : device - 1);
    if (early)
      push_stages(work, subject::early_update, device);
  }
  for (int device = 0; device + 1 < extents.devices && !early; ++device)
    push_message(work, subject::spread, device, device + 1, 0, extents.stages());
  for (int stage = 0; stage < extents.stages() && !early && !work.to.evaluates; ++stage)
    push_copies(work, subject::update, stage);
}

//! @brief Fills `placed`.
//! @complexity O(n + P S) for n events.
inline void place_hooks(hook_placement& work) {
  work.placed.reserve(work.events.size());
  shape const& extents = work.table.over.extents;
  work.unvalidated = validates(work.to.validation) ? extents.devices : 0;
  bool const ties = work.to.tied_bytes > 0 && extents.stages() > 1;
  if (adds_copies(work.to)) {
    place_added_copies(work);
    if (ties)
      place_tied_copies(work);
  } else if (ties)
    place_tied_steps(work);
  else
    for (std::size_t i = 0; i < work.events.size(); ++i)
      push_event(work, i);
  place_validations(work, 0);
  if (work.to.totals_bytes > 0 && work.to.validation != step_validation::last)
    place_totals(work);
}

} // namespace pipelining::inline v0_3::detail
