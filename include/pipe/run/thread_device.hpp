// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One device's side of the executor loop on threads. Header for
//! pipelining::detail::thread_device.

#include <pipe/plan/describe.hpp>
#include <pipe/plan/early_passes.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/guards.hpp>
#include <pipe/run/thread_board.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <span>
#include <string>

namespace pipelining::inline v0_3::detail {

//! One device during one step.
template <class Stages>
struct thread_device {
  thread_board& board;
  Stages& stages;
  int device;
  thread_plan& work;
  std::span<item const> steps;
  std::span<double> starts;
  std::span<double> ends;
  arena slots;
  slot_guards& guards;
  device_standing& standing;
  bool again = false; // the iteration begins again

  thread_device(thread_board& all, Stages& model, int number)
      : board(all), stages(model), device(number), work(*all.now),
        steps(work.view.program_of(number)), starts(work.starts[static_cast<std::size_t>(number)]),
        ends(work.ends[static_cast<std::size_t>(number)]), slots(all.slots(work, number)),
        guards(all.guards[static_cast<std::size_t>(number)]),
        standing(all.standings[static_cast<std::size_t>(number)]) {}

  //! Messages of a lane count as complete in the order of the lane, as the plan's waits presume.
  void complete_lane(int lane, int last) {
    int& known = work.completed[static_cast<std::size_t>(device)][static_cast<std::size_t>(lane)];
    for (int i = known + 1; i <= last; ++i) {
      item const& message = steps[static_cast<std::size_t>(i)];
      if (message.what == operation::run || message.lane != lane || !posted(i, message))
        continue;
      if (work.messages.done(message))
        continue;
      standing.waits_on.store(i, std::memory_order_relaxed);
      bool const arrived = work.messages.wait(message, device, board.spin_in_step);
      standing.waits_on.store(nothing, std::memory_order_relaxed);
      if (!arrived)
        throw stopped{};
    }
    if (last > known)
      known = last;
  }

  void wait_for(int index, item const&) {
    item const& earlier = steps[static_cast<std::size_t>(index)];
    if (earlier.what != operation::run)
      complete_lane(earlier.lane, index);
  }

  void run(int index, item const& step) {
    auto const i = static_cast<std::size_t>(index);
    begin(index);
    starts[i] = seconds();
    again = !run_guarded(stages, slots, guards, step) || again;
    ends[i] = seconds();
  }

  [[nodiscard]] bool run_together(int first, std::span<item const> pair) {
    begin(first);
    double const start = seconds();
    if (!run_guarded(stages, slots, guards, pair))
      return false;
    double const end = seconds();
    for (std::size_t i = 0; i < pair.size(); ++i) {
      starts[static_cast<std::size_t>(first) + i] = start;
      ends[static_cast<std::size_t>(first) + i] = end;
    }
    return true;
  }

  void post(int first, std::span<item const> group) {
    begin(first);
    if (relays(group.front()))
      complete_lane(group.front().lane, first - 1);
    for (item const& step : group) {
      if (step.what == operation::receive)
        guards.before(step);
      work.messages.post(step, slots.message(step).data);
    }
  }

  [[nodiscard]] bool begins_again() {
    if (again)
      work.messages.leave_some();
    return again;
  }

  void finish() {
    for (int lane = 0; lane < work.view.lanes[device]; ++lane)
      complete_lane(lane, static_cast<int>(steps.size()) - 1);
    guards.check_all();
    standing.position.store(static_cast<int>(steps.size()), std::memory_order_relaxed);
  }

  //! Runs the program once and turns whatever a stage throws into the step's failure.
  void step() noexcept {
    try {
      execute(work.view, device, *this);
      if (again)
        board.again.store(true, std::memory_order_relaxed);
    } catch (stopped const&) {
      return; // the failure is another's, or has been noted
    } catch (std::exception const& error) {
      note(error.what());
    } catch (...) {
      note("an exception of a type that is no std::exception");
    }
  }

private:
  //! Where the iteration begins again, most messages are not.
  [[nodiscard]] bool posted(int index, item const& message) const {
    return !again || index < behind_validation(work.view, device) ||
           arrives_early(work.view, device, message);
  }

  void begin(int index) {
    if (work.messages.aborted())
      throw stopped{};
    standing.position.store(index, std::memory_order_relaxed);
  }

  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(steady::now() - board.step_start).count();
  }

  void note(char const* cause) noexcept {
    auto const at = static_cast<std::size_t>(standing.position.load(std::memory_order_relaxed));
    board.fail(device,
               "run: device " + std::to_string(device) + " failed in the " +
                 describe_subject(steps[at], work.view.over) + ": " + cause,
               std::current_exception());
  }
};

} // namespace pipelining::inline v0_3::detail
