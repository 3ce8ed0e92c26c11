// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The plans of one runner, and what it does between their steps: word to stages whose
//! memory has moved, totals for the next plan, the trace of the last. Header for
//! pipelining::plan_number.

#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/hooks.hpp>
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
inline void check_addition(plan_view const& first, plan_view const& added) {
  auto const differ = [](char const* what, int has, int was) {
    throw std::invalid_argument("run: the plans of a runner have the same devices and stages, but "
                                "this one has " +
                                std::to_string(has) + what + " instead of " + std::to_string(was) +
                                "; make another runner for it");
  };
  if (added.over.extents.devices != first.over.extents.devices)
    differ(" devices", added.over.extents.devices, first.over.extents.devices);
  if (added.over.extents.stages() != first.over.extents.stages())
    differ(" stages", added.over.extents.stages(), first.over.extents.stages());
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
void tell_moved(Stages& stages, plan_view const& work, int device) {
  for (int stage = 0; stage < work.over.extents.stages(); ++stage)
    if (microbatch_on(work.over, stage, device) >= 0)
      (void)visit_stage(stages, stage, [&]<class Stage>(Stage& one) {
        if constexpr (can_follow_memory<Stage>) {
          context where;
          where.device = device;
          where.stage = stage;
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
  void check(plan_view const& next) const {
    if (pending_ && !validates(next.validation))
      throw std::invalid_argument(
        "run: the optimizer's step of the iteration before is not validated yet, and this plan "
        "would not do it; run the plan that was lowered with step_validation::last before it");
    if (validates(next.validation) && (!pending_ || bytes_ != next.totals_bytes))
      throw std::invalid_argument(
        "run: this plan validates an optimizer's step of the iteration before, but the last step "
        "that came to its end took none early, or has rows of another size; run the plan that was "
        "lowered with step_validation::next");
  }
  //! When the memory is the plan's.
  //! @return what its totals on the last device are to hold; empty where it validates nothing.
  [[nodiscard]] std::span<std::byte const> hand_on(plan_view const& next) {
    pending_ = false;
    return validates(next.validation) ? std::span<std::byte const>(rows_)
                                      : std::span<std::byte const>();
  }
  //! The same, into memory of the host. @param now its slots on the last device.
  void put(arena const& now) {
    std::span<std::byte const> const rows = hand_on(now.work);
    if (!rows.empty())
      std::memcpy(
        now.memory + now.place({.of = slot_class::totals, .index = 0}), rows.data(), rows.size());
  }
  //! When the step has come to its end. @param now slots of its plan on the last device.
  //! @param again its iteration begins again, so it has not stepped.
  void take(arena const& now, bool again) {
    if (!steps_early(now.work.validation) || again)
      return;
    pending_ = true;
    bytes_ = now.work.totals_bytes;
    totals const rows = now.readable_totals();
    rows_.assign(rows.data, rows.data + rows.rows * rows.stride);
  }
  //! True while a step waits for its validation.
  [[nodiscard]] bool pending() const noexcept { return pending_; }

private:
  std::vector<std::byte> rows_;
  std::int64_t bytes_ = 0; // of a row
  bool pending_ = false;
};

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

} // namespace detail

} // namespace pipelining::inline v0_3
