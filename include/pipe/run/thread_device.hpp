// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One device's side of the executor loop on threads. Header for
//! pipelining::detail::thread_device.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/guards.hpp>
#include <pipe/run/thread_board.hpp>

#include <chrono>
#include <cstddef>
#include <span>
#include <utility>

namespace pipelining::inline v0_3::detail {

//! One device during one step.
template <class Stages>
struct thread_device {
  thread_board& board;
  Stages& model;
  int device;
  plan const& work = board.now->lowered;
  rendezvous& messages = board.now->messages;
  host_passes& passes = board.now->passes[static_cast<std::size_t>(device)];
  slot_guards& guards = passes.guards();
  std::span<item const> steps = work.program_of(device);
  device_standing& standing = board.devices[device];

  [[nodiscard]] Stages& stages() noexcept { return model; }
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(steady::now() - board.step_start).count();
  }
  double enter(int index) {
    begin(index);
    return seconds();
  }

  //! Messages of a lane count as complete in the order of the lane, as the plan's waits presume.
  //! @return whether they are, up to `last`; else `standing` names the one that is missing.
  //! @throws stopped where that one will not come.
  [[nodiscard]] bool reached(int lane, int last) {
    for (int& known = passes.completed(lane); known < last; ++known) {
      item const& message = steps[static_cast<std::size_t>(known) + 1];
      if (message.what == operation::run || message.lane != lane || !posted(known + 1, message) ||
          messages.done(message))
        continue;
      standing.waits_on.store(known + 1, std::memory_order_relaxed);
      if (messages.aborted())
        throw stopped{};
      return false;
    }
    return true;
  }

  //! Looks for messages that the group at `next` waits for; at the end of the program, for all.
  [[nodiscard]] bool ready(int next) {
    auto const count = static_cast<int>(steps.size());
    if (next == count) {
      for (int lane = 0; lane < work.lanes_of(device); ++lane)
        if (!reached(lane, count - 1))
          return false;
      return true;
    }
    for (int i = next, end = end_of_group(steps, next); i < end; ++i)
      for (int const wait : work.waits_of(steps[static_cast<std::size_t>(i)]))
        if (item const& earlier = steps[static_cast<std::size_t>(wait)];
            earlier.what != operation::run && !reached(earlier.lane, wait))
          return false;
    item const& first = steps[static_cast<std::size_t>(next)];
    return !relays(first) || reached(first.lane, next - 1);
  }

  void wait_for(int index, item const&) { // for messages `ready` has done it
    passes.wait_for(*this, index);
  }

  void run(int index, item const& step) { passes.run(*this, index, step); }

  [[nodiscard]] bool run_together(int first, std::span<item const> pair) {
    return passes.run_together(*this, first, pair);
  }

  void post(int first, std::span<item const> group) {
    begin(first);
    for (item const& step : group) {
      if (step.what == operation::receive)
        guards.before(step);
      if (messages.post(step, guards.memory().message(step).data))
        board.threads[board.thread_of(work.message_of(step).peer)].door.open();
    }
  }

  [[nodiscard]] bool begins_again() const noexcept { return passes.begins_again(); }

  void finish() { passes.finish(*this); }

  //! Goes on with the program, and turns whatever a stage throws into the step's failure.
  //! @return whether it is over, by its end or by a failure; else it waits for a message, which
  //! `standing` names.
  [[nodiscard]] bool advance() noexcept {
    try {
      if (!detail::advance(work, device, standing.next, *this, [](thread_device& own, int next) {
            return own.ready(next);
          }))
        return false;
    } catch (stopped const&) { // the failure is another's, or has been noted
    } catch (...) {
      board.note(device);
    }
    passes.abandon(*this, standing.position); // nothing, where the program has ended
    standing.waits_on.store(nothing, std::memory_order_relaxed);
    return true;
  }

private:
  //! Where the iteration begins again, most messages are not.
  [[nodiscard]] bool posted(int index, item const& message) const {
    return !passes.begins_again() || index < behind_validation(work, device) ||
           arrives_early(work, device, message);
  }

  void begin(int index) {
    if (messages.aborted())
      throw stopped{};
    standing.waits_on.store(nothing, std::memory_order_relaxed);
    standing.position.store(index, std::memory_order_relaxed);
  }
};

//! Does what comes before a step, for a device of a thread.
template <class Stages>
[[gnu::noinline]] void
prepare(thread_board& board, Stages& stages, int device, int thread, errand what) noexcept {
  try {
    if (what == errand::start && board.options.on_start &&
        std::exchange(board.threads[thread].starts, false))
      board.options.on_start(thread, board.thread_count);
    if (what == errand::touch)
      board.touch(device);
    if (what == errand::tell)
      tell_moved(stages, board.plans[0]->lowered, device);
  } catch (...) {
    board.note(device);
  }
}

//! Runs a device of a thread for as far as it can go in a step, or does another errand for it.
//! @return false where another thread has it in hand, or it has ended.
template <class Stages>
[[gnu::always_inline]] inline bool
advance_device(thread_board& board, Stages& stages, int device, int thread, errand what) noexcept {
  if (!board.take(device, thread))
    return false;
  if (what != errand::step)
    prepare(board, stages, device, thread, what);
  board.put_back(
    device, thread, what != errand::step || thread_device<Stages>{board, stages, device}.advance());
  return true;
}

//! Advances the devices of a thread until none is left. It may be given further ones in a step.
template <class Stages>
void run_devices(thread_board& board, Stages& stages, int thread, errand what) noexcept {
  auto const can_go_on = [&](int device) { return board.can_go_on(device); };
  auto const come = [&] { return !board.has_any(thread) || board.any_of(thread, can_go_on); };
  while (board.has_any(thread)) {
    for (int device = 0; device < board.device_count; ++device)
      if (board.thread_of(device) == thread && board.can_go_on(device))
        (void)advance_device(board, stages, device, thread, what);
    if (!spin_until(board.spin(0), come))
      board.threads[thread].door.wait(come);
  }
}

} // namespace pipelining::inline v0_3::detail
