// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Passes of a device in host memory: on slots that the checked mode looks after where it is
//! asked for, and those on other engines than compute that stages have begun. Header for
//! pipelining::detail::slot_guards and pipelining::detail::begun_passes.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/execute.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! A watch over the slots of a device: its calls, and when they come.
struct slot_watch {
  std::int64_t guard;                        //!< bytes of the guard around every slot
  void (*begin)(arena const&);               //!< the memory is that of the plan from now on
  void (*before)(arena const&, item const&); //!< before a pass runs or a receive is posted
  void (*after)(arena const&, item const&);  //!< after a pass
  void (*end)(arena const&);                 //!< at the end of a step
  void (*enter)(arena const&, item const&);  //!< a stage is called
  void (*leave)() noexcept;                  //!< it has returned
};

template <class>
struct watch_request {};

//! Whether slots have guards: an option that is true or false. Only who sets it needs guards.hpp,
//! whose `watch_of` is looked for there.
class checked_mode {
public:
  constexpr checked_mode() noexcept = default;
  template <std::same_as<bool> On>
  constexpr checked_mode(On on) noexcept // NOLINT(google-explicit-constructor): as a bool
      : watch_(on ? watch_of(watch_request<On>{}) : nullptr) {
    static_assert(
      requires { watch_of(watch_request<On>{}); },
      "run: the checked mode needs <pipe/run/guards.hpp>");
  }
  //! The watch over the slots; null: none.
  [[nodiscard]] constexpr slot_watch const* watch() const noexcept { return watch_; }

private:
  slot_watch const* watch_ = nullptr;
};

//! The slots of one device in host memory, and the watch over them.
class slot_guards {
public:
  //! @param memory of the device; must outlive this. @param watch null: nobody does.
  explicit slot_guards(arena const& memory, slot_watch const* watch = nullptr)
      : memory_(memory), watch_(watch) {
    if (on() && memory_.memory != nullptr)
      watch_->begin(memory_);
  }

  [[nodiscard]] arena const& memory() const noexcept { return memory_; }
  //! True in the checked mode.
  [[nodiscard]] bool on() const noexcept { return watch_ != nullptr; }
  //! Before a pass runs or a receive is posted.
  void before(item const& step) const {
    if (on())
      watch_->before(memory_, step);
  }
  //! After a pass. @throws guard_error
  void after(item const& step) const {
    if (on())
      watch_->after(memory_, step);
  }
  //! At the end of a step. @throws guard_error
  void check_all() const {
    if (on())
      watch_->end(memory_);
  }
  //! Calls a stage for an item; in the checked mode, an access through null says which pass it was
  //! in.
  template <class Call>
  auto call(item const& step, Call call) const {
    if (!on())
      return call();
    struct visit {
      slot_watch const* watch;
      ~visit() { watch->leave(); }
    };
    watch_->enter(memory_, step);
    visit const inside{watch_};
    return call();
  }

private:
  arena memory_;
  slot_watch const* watch_;
};

//! Runs the pass of an item as run_item does, and looks after its memory where guards are
//! on.
//! @return as run_item. @throws guard_error, and what the stage throws.
template <class Stages>
bool run_guarded(Stages& stages, arena const& memory, slot_guards const& guards, item const& step) {
  if (!guards.on() || is_copy(*memory.work.over.declared, step))
    return run_item(stages, memory, step);
  guards.before(step);
  bool const goes_on = guards.call(step, [&] { return run_item(stages, memory, step); });
  guards.after(step);
  return goes_on;
}

//! Runs a composite pass as run_composite does, where its stages can, and looks after its
//! memory where guards are on.
//! @return false where they cannot: nothing has run then. @throws guard_error, and what the stage
//! throws.
template <class Stages>
bool run_guarded(Stages& stages,
                 arena const& memory,
                 slot_guards const& guards,
                 std::span<item const> pair) {
  if (!runs_as_one(stages, memory.work, pair))
    return false;
  for (item const& step : pair)
    guards.before(step);
  run_composite(stages, memory, pair, {}, [] {});
  for (item const& step : pair)
    guards.after(step);
  return true;
}

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
  [[nodiscard, gnu::noinline]] bool begin(Stages& stages, slot_guards const& guards, int index) {
    item const& step = at(index);
    arena const& memory = guards.memory();
    if (is_copy(*memory.work.over.declared, step))
      return false;
    guards.before(step);
    if (!guards.call(step, [&] { return begin_item(stages, memory, step); }))
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
    guards.call(step, [&] { finish_item(stages, guards.memory(), step, abandoned); });
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
