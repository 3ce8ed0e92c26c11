// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The passes of a device that run on the host. Header for pipelining::detail::host_passes.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/guards.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The program of a device that runs on the host: its slots, the times of its passes, and those
//! under way while its thread goes on with compute: one of each engine at most, as an engine runs
//! its passes in order. What has to come after one follows from the waits of the plan, as for
//! streams. Most plans have none, so their passes do not pay for it.
//!
//! A device has `stages()`. Its `enter(index)` notes at which item it is, throws where the step has
//! failed, and tells the time in seconds, as `seconds()` does.
class host_passes {
public:
  host_passes(plan const& work, int device)
      : steps_(work.program_of(device)), guards_(arena{work, device}),
        completed_(static_cast<std::size_t>(work.lanes_of(device))),
        items_(static_cast<std::size_t>(work.over.declared.engines - 1), nothing),
        starts_(steps_.size()), ends_(steps_.size()) {}

  //! Tells where the slots lie from now on. No other program may have used them since.
  void lie_in(arena const& memory) {
    static_assert(std::is_trivially_destructible_v<slot_guards>); // the one before is not ended
    std::construct_at(&guards_, memory);
  }
  //! The slots of the device, and the guards around them.
  [[nodiscard]] slot_guards& guards() noexcept { return guards_; }
  //! The last item of a lane that is known to be complete, with all before it.
  [[nodiscard]] int& completed(int lane) noexcept {
    return completed_[static_cast<std::size_t>(lane)];
  }
  //! When an item that ran began or ended, in seconds.
  [[nodiscard]] double time(std::size_t item, bool end) const noexcept {
    return (end ? ends_ : starts_)[item];
  }
  //! True when a validation has found that the iteration must begin again.
  [[nodiscard]] bool begins_again() const noexcept { return again_; }
  //! Before a step.
  void begin() noexcept {
    again_ = false;
    std::fill(completed_.begin(), completed_.end(), nothing);
  }

  //! Runs a pass or a hook, or begins it. Before that ends what must end: the pass before it on its
  //! engine; all, before it is decided whether the iteration begins again.
  //! @throws guard_error, and what the stage throws.
  template <class Device>
  void run(Device& on, int index, item const& step) {
    finish(on, [&](int other) {
      return step.about == subject::validation || at(other).lane == step.lane;
    });
    auto const i = static_cast<std::size_t>(index);
    starts_[i] = on.enter(index);
    if (runs_beside(step) && begin(on, index))
      return;
    again_ = !run_guarded(on.stages(), guards_, step) || again_;
    ends_[i] = on.seconds();
  }
  //! Runs a composite pass, where its stages can.
  template <class Device>
  [[nodiscard, gnu::noinline]] bool
  run_together(Device& on, int first, std::span<item const> pair) {
    return visit_composite(on.stages(), guards_.memory().work, pair, [&](auto const& composite) {
      double const start = on.enter(first);
      for (item const& step : pair)
        guards_.before(step);
      composite(guards_.memory(), nullptr, nullptr, [] {});
      for (item const& step : pair)
        guards_.after(step);
      std::fill_n(starts_.begin() + first, pair.size(), start);
      std::fill_n(ends_.begin() + first, pair.size(), on.seconds());
    });
  }

  //! Waits for the end of a pass, if it is under way.
  template <class Device>
  void wait_for(Device& on, int wanted) {
    finish(on, [&](int index) { return index == wanted; });
  }
  //! Waits for all, at the end of a step. @throws guard_error, and what the stage throws.
  template <class Device>
  void finish(Device& on) {
    finish(on, [](int) { return true; });
    guards_.check_all();
  }
  //! Finishes what is left of a step that has failed, whatever stages throw.
  //! @param position is told which pass it is at.
  template <class Device>
  void abandon(Device& on, std::atomic<int>& position) noexcept {
    for (int const index : items_) {
      if (index == nothing)
        continue;
      position.store(index, std::memory_order_relaxed);
      try {
        end(on, index, true);
      } catch (...) { // the step has failed before
      }
    }
  }

private:
  [[nodiscard]] item const& at(int index) const { return steps_[static_cast<std::size_t>(index)]; }
  //! Waits for the ends of some passes that are under way.
  template <class Device, class Which>
  void finish(Device& on, Which which) {
    if (under_way_ == 0) // as mostly
      return;
    for (int const index : items_)
      if (index != nothing && which(index))
        end(on, index, false);
  }
  //! Begins a pass on another engine, where its stage does so.
  //! @return whether it has.
  template <class Device>
  [[nodiscard, gnu::noinline]] bool begin(Device& on, int index) {
    item const& step = at(index);
    arena const& memory = guards_.memory();
    if (is_copy(memory.work.over.declared, step))
      return false;
    guards_.before(step);
    if (!call_explained(guards_, step, [&] { return begin_item(on.stages(), memory, step); }))
      return false;
    items_[static_cast<std::size_t>(step.lane) - completed_.size()] = index;
    ++under_way_;
    return true;
  }
  //! @param abandoned the step has failed.
  template <class Device>
  [[gnu::noinline]] void end(Device& on, int index, bool abandoned) {
    item const& step = at(index);
    if (!abandoned)
      (void)on.enter(index);
    *std::find(items_.begin(), items_.end(), index) = nothing;
    --under_way_;
    call_explained(
      guards_, step, [&] { finish_item(on.stages(), guards_.memory(), step, abandoned); });
    if (abandoned)
      return;
    ends_[static_cast<std::size_t>(index)] = on.seconds();
    guards_.after(step);
  }

  std::span<item const> steps_;
  slot_guards guards_;         // of the memory, which moves
  std::vector<int> completed_; // [lanes]
  std::vector<int> items_;     // [engines - 1], or nothing
  int under_way_ = 0;          // of them
  bool again_ = false;
  std::vector<double> starts_;
  std::vector<double> ends_;
};

} // namespace pipelining::inline v0_3::detail
