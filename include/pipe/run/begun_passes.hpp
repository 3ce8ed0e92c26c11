// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Passes on other engines than compute that stages have begun. Header for
//! pipelining::detail::begun_passes.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/guards.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The passes of a device that are under way while its thread goes on with compute: one of each
//! engine at most, as an engine runs its passes in order. What has to come after one follows from
//! the waits of the plan, as for streams. Most plans have none, so their passes do not pay for it.
class begun_passes {
public:
  begun_passes(plan_view const& work, int device)
      : steps_(work.program_of(device)), first_lane_(work.lanes[device]),
        items_(static_cast<std::size_t>(work.over.declared->engines - 1), nothing) {}

  //! Begins a pass on another engine, where its stage does so.
  //! @return whether it has. @throws what the stage throws.
  template <class Stages>
  [[nodiscard, gnu::noinline]] bool begin(Stages& stages, slot_guards& guards, int index) {
    item const& step = at(index);
    arena const& memory = guards.memory();
    if (is_copy(*memory.work.over.declared, step))
      return false;
    guards.before(step);
    if (!call_explained(guards, step, [&] { return begin_item(stages, memory, step); }))
      return false;
    items_[static_cast<std::size_t>(step.lane - first_lane_)] = index;
    ++under_way_;
    return true;
  }

  //! Calls `finish` for the passes that must end before an item runs: the one before it on its
  //! engine; all, before it is decided whether the iteration begins again.
  template <class Finish>
  void before(item const& step, Finish finish) {
    all([&](int index) {
      if (step.about == subject::validation || at(index).lane == step.lane)
        finish(index);
    });
  }
  //! Calls it for a pass, if it is under way.
  template <class Finish>
  void one(int wanted, Finish finish) {
    all([&](int index) {
      if (index == wanted)
        finish(index);
    });
  }
  //! Calls it for all.
  template <class Finish>
  void all(Finish finish) {
    if (under_way_ == 0) // as mostly
      return;
    for (int const index : items_)
      if (index != nothing)
        finish(index);
  }

  //! Finishes a pass. @param abandoned the step has failed.
  //! @throws guard_error, and what the stage throws.
  template <class Stages>
  void finish(Stages& stages, slot_guards const& guards, int index, bool abandoned = false) {
    item const& step = at(index);
    *std::ranges::find(items_, index) = nothing;
    --under_way_;
    call_explained(guards, step, [&] { finish_item(stages, guards.memory(), step, abandoned); });
    if (!abandoned)
      guards.after(step);
  }

  //! Finishes what is left of a step that has failed, whatever stages throw.
  //! @param position is told which pass it is at.
  template <class Stages>
  void abandon(Stages& stages, slot_guards const& guards, std::atomic<int>& position) noexcept {
    all([&](int index) {
      position.store(index, std::memory_order_relaxed);
      try {
        finish(stages, guards, index, true);
      } catch (...) { // the step has failed before
      }
    });
  }

private:
  [[nodiscard]] item const& at(int index) const { return steps_[static_cast<std::size_t>(index)]; }

  std::span<item const> steps_;
  int first_lane_;
  std::vector<int> items_; // [engines - 1], or nothing
  int under_way_ = 0;      // of them
};

} // namespace pipelining::inline v0_3::detail
