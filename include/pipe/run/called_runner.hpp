// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans on threads of the caller, for engines that own their threads. Header for
//! pipelining::called_runner.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/rendezvous.hpp>
#include <pipe/run/thread_board.hpp>
#include <pipe/run/thread_device.hpp>
#include <pipe/timetable/timetable.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Options of a runner on threads of the caller.
struct called_options {
  //! The longest that `run_device` waits while nothing begins or ends on any device; then the step
  //! fails, and says who waits for whom.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  bool guarded = false; //!< as thread_options::guarded
};

//! @brief Runs plans on the threads of its caller, and has none of its own: for task pools,
//! coroutines, event loops, and for a single thread.
//!
//! A step is `begin_step`, then `poll(device)` of every device until it is true, then
//! `finish_step`. `poll` runs passes until the device must wait for another one, and never waits
//! itself. `run_device` is for a thread per device: it waits. Both may be mixed. Any thread may
//! call them, different devices at once; stages are called by that thread. Between calls for one
//! device its state is handed on, so that tasks and coroutines may move from thread to thread.
//!
//! @tparam Stages as for thread_runner.
template <class Stages>
class called_runner {
public:
  //! @brief As thread_runner's, but for threads.
  called_runner(plan work, Stages& stages, called_options options = {})
      : stages_(&stages), board_(work.over.extents.devices, {options.deadline, options.guarded}) {
    put(std::move(work), 0);
  }
  called_runner(called_runner const&) = delete;
  called_runner& operator=(called_runner const&) = delete;

  //! @brief As `thread_runner::add`. @throws std::logic_error in a step.
  plan_number add(plan work) { return put(std::move(work), board_.plans.size()); }
  //! @brief As `thread_runner::replace`. @throws std::logic_error in a step.
  plan_number replace(plan_number which, plan work) {
    detail::check_number(which, board_.plans.size());
    return put(std::move(work), static_cast<std::size_t>(which.index));
  }
  //! @brief As `thread_runner::reserve`. @throws std::logic_error in a step.
  void reserve(plan const& later) {
    refuse_in_step();
    board_.reserve(later);
    touch();
  }

  //! @brief Begins a step. Stages whose memory has moved are told by the calling thread.
  //! @throws std::logic_error in a step; else as `thread_runner::step`.
  void begin_step(plan_number which = {}) {
    refuse_in_step();
    detail::thread_plan& next = board_.choose(which);
    for (int device = 0; board_.moved && device < board_.device_count; ++device)
      detail::tell_moved(*stages_, next.lowered, device);
    board_.moved = false;
    board_.begin_step(next);
    board_.send(detail::errand::step, 0); // all devices are thread 0's, which stands for any
    in_step_ = true;
  }

  //! @brief Runs passes of a device until it must wait for another one, or has ended its program.
  //! What stages throw is kept for `finish_step`, and ends the program of all devices.
  //! @return whether it has ended.
  //! @throws std::logic_error between steps, and where another thread is at this device;
  //! std::out_of_range where there is no such device.
  bool poll(int device) {
    if (!in_step_)
      throw std::logic_error("run: no step has begun; call begin_step() before poll()");
    if (device < 0 || device >= board_.device_count)
      throw std::out_of_range("run: the plan has no device " + std::to_string(device));
    bool const ended = board_.is_home(device);
    if (!ended && !detail::advance_device(board_, *stages_, device, 0, detail::errand::step))
      throw std::logic_error("run: two threads are at device " + std::to_string(device) +
                             "; each device has one at a time");
    return board_.is_home(device);
  }
  //! @brief The same for each device in turn. @return whether all have ended.
  bool poll() {
    bool all = true;
    for (int device = 0; device < board_.device_count; ++device)
      all = poll(device) && all;
    return all;
  }

  //! @brief Runs a device to the end of its program, and waits where it must: for a thread per
  //! device. @throws as poll.
  void run_device(int device) {
    detail::countdown<detail::steady> still(board_.options.deadline);
    std::uint64_t seen = 0;
    while (!poll(device)) {
      if (detail::spin_until(board_.options.spin, [&] { return board_.can_go_on(device); }))
        continue;
      std::this_thread::sleep_for(board_.options.spin);
      std::uint64_t const now_seen = board_.whereabouts();
      if (now_seen != std::exchange(seen, now_seen))
        still = detail::countdown<detail::steady>(board_.options.deadline);
      else if (still.is_over())
        board_.stop(device,
                    "run: no progress before the deadline; does a thread run every device?" +
                      board_.standing(device));
    }
  }

  //! @brief Ends a step.
  //! @throws run_error when a stage has thrown (its exception is nested) or a deadline has passed;
  //! std::logic_error where a device has not ended its program, unless another has failed.
  void finish_step() {
    bool const failed = board_.failed_device.load(std::memory_order_acquire) != nothing;
    for (int device = 0; device < board_.device_count; ++device)
      if (!board_.is_home(device) && !(failed && poll(device)))
        throw std::logic_error("run: device " + std::to_string(device) +
                               " has not ended its program; poll it until it has");
    in_step_ = false;
    board_.raise_failure();
    board_.end_step();
  }

  //! @brief A whole step on the calling thread, the devices in turn.
  //! @throws as begin_step and finish_step.
  void step(plan_number which = {}) {
    begin_step(which);
    while (!poll()) {
    }
    finish_step();
  }

  //! @brief True, as all stages run here. For programs that also run on ranks.
  [[nodiscard]] static constexpr bool owns(int) noexcept { return true; }
  //! @brief As `thread_runner::begins_again`.
  [[nodiscard]] bool begins_again() const noexcept { return board_.again; }
  //! @brief As `thread_runner::totals`. @pre no step runs
  [[nodiscard]] pipelining::totals totals() const { return board_.last_totals(); }
  //! @brief As `thread_runner::trace`. @pre no step runs
  [[nodiscard]] dynamic_timetable trace() const { return board_.last_trace(); }

private:
  plan_number put(plan work, std::size_t at) {
    refuse_in_step();
    plan_number const number = board_.put(std::move(work), at, *stages_);
    touch();
    return number;
  }
  void touch() {
    for (int device = 0; device < board_.device_count; ++device)
      board_.touch(device);
  }
  void refuse_in_step() const {
    if (in_step_)
      throw std::logic_error("run: a step is not finished; call finish_step() first");
  }
  Stages* stages_;
  detail::thread_board board_;
  std::atomic<bool> in_step_ = false;
};

} // namespace pipelining::inline v0_3
