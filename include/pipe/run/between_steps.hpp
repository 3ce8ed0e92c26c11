// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The plans of one runner: checks before they run, and what it does between their steps.
//! That is word to stages whose memory has moved, totals for the next plan, the trace of the last.
//! Header for pipelining::plan_number.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/stage.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The number of one plan of a runner. `add` returns it; 0 is the plan that the runner was
//! made with.
struct plan_number {
  struct post_validated; //!< the numbers of an iteration that is validated in the next
  int index = 0;         //!< in the order in which the runner was given them

  friend constexpr bool operator==(plan_number, plan_number) = default;
};

namespace detail {

//! Checks that a plan can share the stages and devices of a runner.
//! @throws std::invalid_argument with one sentence.
inline void check_addition(plan const& first, plan const& added) {
  auto const compare = [](char const* what, int has, int was) {
    if (has != was)
      throw std::invalid_argument("run: the plans of a runner have the same devices and stages, "
                                  "but this one has " +
                                  std::to_string(has) + what + " instead of " +
                                  std::to_string(was) + "; make another runner for it");
  };
  compare(" devices", added.over.extents.devices, first.over.extents.devices);
  compare(" stages", added.over.extents.stages(), first.over.extents.stages());
}

//! Checks that a runner has a plan of this number.
//! @throws std::invalid_argument with one sentence.
inline void check_number(plan_number which, std::size_t plans) {
  if (which.index < 0 || static_cast<std::size_t>(which.index) >= plans)
    throw std::invalid_argument("run: this runner has no plan " + std::to_string(which.index) +
                                "; it has " + std::to_string(plans) +
                                ", and add gives the numbers of those after the first");
}

//! Tells the stages of a device that its memory has moved.
//! @param work any plan of the runner: all place stages alike.
//! @throws what the stages throw.
template <class Stages>
void tell_moved(Stages& stages, plan const& work, int device) {
  for (int stage = 0; stage < work.over.extents.stages(); ++stage)
    if (microbatch_on(work.over, stage, device) >= 0)
      (void)visit_stage(stages, stage, [&]<class Stage>(Stage& one) {
        if constexpr (can_follow_memory<Stage>) {
          context const where{.device = device, .stage = stage};
          one.memory_moved(where);
        }
      });
}

//! Brings the rows of all stages from where one plan has left them to where the next one
//! reads them, on the last device, which has them all: plans of a runner share its memory, but each
//! lays it out in its own way, and a plan that is added may move it.
class carried_totals {
public:
  //! Before a step.
  //! @throws std::invalid_argument when the step before has stepped early and this one does not
  //! validate it, or the other way round.
  void check(plan const& next) const {
    if (bytes_ != 0 && !validates(next.validation))
      throw std::invalid_argument(
        "run: the optimizer's step of the iteration before is not validated yet, and this plan "
        "would not do it; run the plan that was lowered with step_validation::last before it");
    if (validates(next.validation) && bytes_ != next.totals_bytes)
      throw std::invalid_argument(
        "run: this plan validates an optimizer's step of the iteration before, but the last step "
        "that came to its end took none early, or has rows of another size; run the plan that was "
        "lowered with step_validation::next");
  }
  //! When the memory is the plan's.
  //! @return what its totals on the last device are to hold; empty where it validates nothing.
  [[nodiscard]] owned_list<std::byte> const& hand_on(plan const& next) {
    bytes_ = 0;
    if (!validates(next.validation))
      rows_.clear();
    return rows_;
  }
  //! The same, into memory of the host. @param now its slots on the last device.
  void put(arena const& now) {
    owned_list<std::byte> const& rows = hand_on(now.work);
    if (!rows.empty())
      std::memcpy(now.start_of({.of = slot_class::totals, .index = 0}), rows.data(), rows.size());
  }
  //! When the step has come to its end. @param now slots of its plan on the last device.
  //! @param again its iteration begins again, so it has not stepped.
  void take(arena const& now, bool again) {
    if (!steps_early(now.work.validation) || again)
      return;
    bytes_ = now.work.totals_bytes;
    totals const rows = now.readable_totals();
    rows_.count = static_cast<std::size_t>(rows.rows * rows.stride);
    if (!rows_.empty())
      std::memcpy(rows_.all.get(rows_.count), rows.data, rows_.count);
  }

private:
  owned_list<std::byte> rows_;
  std::int64_t bytes_ = 0; // of a row of a step that waits for its validation; 0: none does
};

//! The passes of a plan with the times at which they ran. Hooks are not among them.
//! @param time `time(device, item, end)` is when the item of that number of the device began, or
//! ended where `end` is true.
//! @complexity O(n E) for n items and E engines.
template <class Time>
[[nodiscard]] dynamic_timetable trace_of(plan const& ran, Time time) {
  dynamic_timetable result{.over = ran.over};
  result.offsets.push_back(0);
  pipeline_view const over = ran.over;
  for (int row = 0; row < over.row_count(); ++row) {
    int const device = row % over.extents.devices;
    auto const steps = ran.program_of(device);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].what != operation::run || steps[i].about != subject::pass ||
          over.row_of(steps[i].work) != row)
        continue;
      result.passes.push_back(steps[i].work);
      result.starts.push_back(time(device, i, false));
      result.ends.push_back(time(device, i, true));
    }
    result.offsets.push_back(static_cast<int>(result.passes.size()));
  }
  return result;
}

//! The hooks that a step asks for, where a stage lacks them, as it declares them; else null.
template <class Stage>
[[nodiscard]] constexpr char const* missing_hooks(subject about) noexcept {
  switch (about) {
  case subject::copied_gradient:
  case subject::add_copies:
    return can_add_copies<Stage> ? nullptr
                                 : "copied_gradient(context const&, output) and add_copies(context "
                                   "const&, totals const&): it has several copies, whose gradients "
                                   "are added up";
  case subject::tied_gradient:
  case subject::add_tied:
    return can_tie<Stage> ? nullptr
                          : "tied_gradient(context const&, output) and add_tied(context const&, "
                            "input first, input last), or leave tied_bytes at 0";
  case subject::contribution:
    return can_contribute<Stage> ? nullptr
                                 : "contribute(context const&, output), or leave totals_bytes at 0";
  case subject::update:
    return can_update<Stage>
             ? nullptr
             : "optimizer_step(context const&, totals const&), or leave totals_bytes at 0";
  case subject::early_update:
  case subject::validation:
    return can_step_early<Stage>
             ? nullptr
             : "bool accepts(context const&, totals const&), roll_back(context const&, bool "
               "stepped) and begin_iteration(context const&) next to optimizer_step, or lower the "
               "plan with step_validation::at_once";
  default: return nullptr;
  }
}

//! The end of a sentence about hooks of a stage that a plan would never call, or null. Evaluations
//! and plans that only validate call few hooks, and no one expects more: null.
template <class Stage>
[[nodiscard]] inline char const* uncalled_hook(plan const& work) noexcept {
  if (work.evaluates || work.validation == step_validation::last)
    return nullptr;
  if (can_tie<Stage> && work.tied_bytes == 0)
    return " has tied_gradient and add_tied, but the plan never calls them: its sizes have no "
           "tied_bytes; set them to the bytes of the gradient, or take the hooks away";
  if (can_update<Stage> && work.totals_bytes == 0)
    return " has optimizer_step, but the plan never calls it: its sizes have no totals_bytes; set "
           "them to the bytes of a stage's row, or take the hook away";
  if (can_contribute<Stage> && work.totals_bytes == 0)
    return " has contribute, but the plan never calls it: its sizes have no totals_bytes; set them "
           "to the bytes of a stage's row, or take the hook away";
  return nullptr;
}

//! Checks that there is one stage for each stage of the plan, and that each can run its
//! passes, takes chunks where there are any, has the hooks that the plan calls, and no others.
//! @param only the device whose passes are looked at, or `nothing` for all. Stages of other devices
//! may be null pointers.
//! @throws std::invalid_argument with one sentence.
template <class Stages>
void check_stages(plan const& work, Stages& stages, int only = nothing) {
  auto const needed = static_cast<std::size_t>(work.over.extents.stages());
  if constexpr (!function_of_stages<Stages>) // which has as many as are asked for
    if (stage_count(stages) != needed)
      throw std::invalid_argument("run: the plan has " + std::to_string(needed) + " stages, but " +
                                  std::to_string(stage_count(stages)) + " were given");
  auto const steps = only == nothing ? std::span<item const>(work.items.data(), work.items.size())
                                     : work.program_of(only);
  for (item const& step : steps) {
    if (step.what != operation::run)
      continue;
    std::string const who = "stage " + std::to_string(step.work.stage);
    bool const there = visit_stage(stages, step.work.stage, [&]<class Stage>(Stage&) {
      static_assert(check_stage<Stage>::good);
      if (char const* const hooks = missing_hooks<Stage>(step.about); hooks != nullptr)
        throw std::invalid_argument("run: the sizes of the plan ask for a hook that " + who +
                                    " lacks; give it " + hooks);
      if (char const* const idle = uncalled_hook<Stage>(work); idle != nullptr)
        throw std::invalid_argument("run: " + who + idle);
      stage_call const call = work.over.declared[step.work.kind].calls;
      if (step.about == subject::pass && !can_run<Stage>(call))
        throw std::invalid_argument(missing_member(call, who));
      if (int const chunks = work.over.extents.chunks; chunks > 1 && !takes_chunks<Stage>)
        throw std::invalid_argument(
          "run: the schedule cuts every sequence into " + std::to_string(chunks) + " chunks, but " +
          who +
          " does not say that its passes do only the chunk of their context; let them, and "
          "declare static constexpr bool takes_chunks = true, or take a schedule of whole "
          "sequences");
    });
    if (!there)
      throw std::invalid_argument("run: " + who + " is a null pointer, but device " +
                                  std::to_string(device_of(work.over, step.work)) +
                                  " runs it here; only stages of other ranks may be null");
  }
}

} // namespace detail

} // namespace pipelining::inline v0_3
