// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A plan on the threads of this process, one thread per device. Header for
//! pipelining::thread_runner.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/waits.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/report/describe.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/check.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/guards.hpp>
#include <pipe/run/rendezvous.hpp>
#include <pipe/run/stage.hpp>
#include <pipe/timetable/timetable.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief How threads run a plan.
struct threads {
  //! The longest that a device waits for one message. After that, the step fails and says who waits
  //! for whom.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  //! The checked mode, for debugging: guard bytes around every slot, poison (not a number) in slots
  //! before their first write, outputs that must be written to their end, and a sentence before an
  //! access through a null buffer ends the process. Costs memory, time and allocations.
  bool guarded = false;
};

namespace detail {

using steady = std::chrono::steady_clock;

//! Thrown inside a device thread to leave its program; the first failure has been noted already.
struct stopped {};

//! What all threads of a runner share. It outlives the runner if a stage never returns.
struct thread_board {
  plan work;
  plan_view view;
  threads options;
  rendezvous messages;
  std::vector<host_memory> memories;
  std::vector<host_memory> host_memories;  // of what goes to the host and back
  std::vector<slot_guards> guards;         // [P]
  std::vector<std::vector<int>> completed; // [P][lanes], items of a lane known to be complete
  std::vector<std::atomic<int>> position;  // [P], the item that a device is at
  std::vector<std::atomic<int>> waits_on;  // [P], the item that a device waits for, or nothing
  std::vector<std::vector<double>> starts; // [P][items], seconds
  std::vector<std::vector<double>> ends;
  steady::time_point step_start;

  std::mutex guard;
  std::condition_variable changed;
  long generation = 0;       // steps started
  int running = 0;           // devices that have not ended the step
  std::vector<char> at_home; // [P], 1 for a device that has ended the step
  bool closing = false;
  int failed_device = nothing;
  std::exception_ptr failure;
  std::string failure_text;

  thread_board(plan lowered, threads chosen)
      : work(std::move(lowered)), view(work.view()), options(chosen), messages(view),
        position(static_cast<std::size_t>(view.extents.devices)),
        waits_on(static_cast<std::size_t>(view.extents.devices)) {
    for (int device = 0; device < view.extents.devices; ++device) {
      auto const d = static_cast<std::size_t>(device);
      arena slots{view, device, nullptr, nullptr, options.guarded ? guard_bytes : 0};
      memories.emplace_back(slots.bytes());
      slots.memory = memories.back().data();
      guards.emplace_back(slots);
      host_memories.emplace_back(view.host_bytes == nullptr ? 0 : view.host_bytes[device]);
      completed.emplace_back(static_cast<std::size_t>(view.lanes[device]), nothing);
      starts.emplace_back(view.program_of(device).size());
      ends.emplace_back(view.program_of(device).size());
      position[d] = 0;
      waits_on[d] = nothing;
      at_home.push_back(1);
    }
  }

  void begin_step() {
    messages.reset();
    for (auto& lanes : completed)
      for (int& item_index : lanes)
        item_index = nothing;
    for (auto& device : position)
      device.store(0, std::memory_order_relaxed);
    failed_device = nothing;
    failure = nullptr;
    failure_text.clear();
    step_start = steady::now();
  }

  //! Notes the first failure and ends the step on all devices.
  void fail(int device, std::string text, std::exception_ptr cause) {
    {
      std::lock_guard const lock(guard);
      if (failed_device != nothing)
        return;
      failed_device = device;
      failure_text = std::move(text);
      failure = std::move(cause);
    }
    messages.abort();
  }

  //! A device that has not ended the step.
  [[nodiscard]] int unreturned() const {
    int device = 0;
    while (device + 1 < view.extents.devices && at_home[static_cast<std::size_t>(device)] != 0)
      ++device;
    return device;
  }

  [[nodiscard]] std::string name(int device, int index) const {
    return describe(view.program_of(device)[static_cast<std::size_t>(index)],
                    view.extents.chunks > 1);
  }

  //! Who waits for whom, one line per device.
  [[nodiscard]] std::string standing() const {
    std::string text;
    for (int device = 0; device < view.extents.devices; ++device) {
      auto const d = static_cast<std::size_t>(device);
      int const at = position[d].load(std::memory_order_relaxed);
      int const waited = waits_on[d].load(std::memory_order_relaxed);
      text += "\n  device " + std::to_string(device);
      if (waited != nothing) {
        item const& message = view.program_of(device)[static_cast<std::size_t>(waited)];
        text += " waits for device " + std::to_string(message.peer) + ": " + name(device, waited);
      } else if (static_cast<std::size_t>(at) >= view.program_of(device).size()) {
        text += " has ended its program";
      } else {
        text += " is at item " + std::to_string(at) + ": " + name(device, at);
      }
    }
    return text;
  }
};

//! One device's side of the executor loop.
template <class Stages>
struct thread_device {
  thread_board& board;
  Stages& stages;
  int device;

  [[nodiscard]] std::span<item const> steps() const { return board.view.program_of(device); }

  [[nodiscard]] arena slots() const {
    auto const d = static_cast<std::size_t>(device);
    return {board.view,
            device,
            board.memories[d].data(),
            board.host_memories[d].data(),
            board.options.guarded ? guard_bytes : 0};
  }
  [[nodiscard]] slot_guards& guards() const {
    return board.guards[static_cast<std::size_t>(device)];
  }

  //! Messages of a lane count as complete in the order of the lane, as the plan's waits presume.
  void complete_lane(int lane, int last) {
    auto const d = static_cast<std::size_t>(device);
    int& known = board.completed[d][static_cast<std::size_t>(lane)];
    for (int i = known + 1; i <= last; ++i) {
      item const& message = steps()[static_cast<std::size_t>(i)];
      if (message.what == operation::run || message.lane != lane)
        continue;
      if (board.messages.done(message))
        continue;
      board.waits_on[d].store(i, std::memory_order_relaxed);
      bool const arrived =
        board.messages.wait(message, device, steady::now() + board.options.deadline);
      if (!arrived) {
        if (!board.messages.aborted())
          board.fail(device, "run: no progress before the deadline" + board.standing(), nullptr);
        board.waits_on[d].store(nothing, std::memory_order_relaxed);
        throw stopped{};
      }
      board.waits_on[d].store(nothing, std::memory_order_relaxed);
    }
    if (last > known)
      known = last;
  }

  void wait_for(int index, item const&) {
    item const& earlier = steps()[static_cast<std::size_t>(index)];
    if (earlier.what != operation::run)
      complete_lane(earlier.lane, index);
  }

  void run(int index, item const& step) {
    auto const d = static_cast<std::size_t>(device);
    auto const i = static_cast<std::size_t>(index);
    if (board.messages.aborted())
      throw stopped{};
    board.position[d].store(index, std::memory_order_relaxed);
    board.starts[d][i] = seconds();
    run_guarded(stages, slots(), guards(), step);
    board.ends[d][i] = seconds();
  }

  void post(int first, std::span<item const> group) {
    auto const d = static_cast<std::size_t>(device);
    if (board.messages.aborted())
      throw stopped{};
    board.position[d].store(first, std::memory_order_relaxed);
    if (relays(group.front()))
      complete_lane(group.front().lane, first - 1);
    for (item const& step : group) {
      if (step.what == operation::receive)
        guards().before(step);
      board.messages.post(step, slots().message(step).data);
    }
  }

  void finish() {
    for (int lane = 0; lane < board.view.lanes[device]; ++lane)
      complete_lane(lane, static_cast<int>(steps().size()) - 1);
    guards().check_all();
    board.position[static_cast<std::size_t>(device)].store(static_cast<int>(steps().size()),
                                                           std::memory_order_relaxed);
  }

  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(steady::now() - board.step_start).count();
  }

  //! Runs the program once and turns whatever a stage throws into the step's failure.
  void step() noexcept {
    try {
      execute(board.view, device, *this);
    } catch (stopped const&) {
      return; // the failure is another's, or has been noted
    } catch (std::exception const& error) {
      note(error.what());
    } catch (...) {
      note("an exception of a type that is no std::exception");
    }
  }
  void note(char const* cause) noexcept {
    int const at = board.position[static_cast<std::size_t>(device)].load(std::memory_order_relaxed);
    board.fail(
      device,
      "run: device " + std::to_string(device) + " failed in the " +
        describe_subject(steps()[static_cast<std::size_t>(at)], board.view.extents.chunks > 1) +
        ": " + cause,
      std::current_exception());
  }
};

} // namespace detail

//! @brief Runs a plan with one thread per device, step after step, on the stages of the user.
//!
//! Threads and arenas live from construction to destruction; `step` allocates nothing. A stage is
//! called by the thread of its device only. A stage that throws ends the step on all devices; the
//! next step starts afresh.
//!
//! @tparam Stages a vector or array of stages, or a tuple of stages of different types; one per
//! stage of the plan.
template <class Stages>
class thread_runner {
public:
  //! @param work the plan; copied. @param stages must outlive the runner.
  //! @throws std::invalid_argument when the number of stages is not the plan's, or when the plan
  //! splits the backward
  //!         pass of a stage that cannot.
  thread_runner(plan work, Stages& stages, threads options = {})
      : board_(std::make_shared<detail::thread_board>(std::move(work), options)) {
    check_stages(board_->view, stages);
    for (int device = 0; device < board_->view.extents.devices; ++device)
      workers_.emplace_back([board = board_, &stages, device] { serve(*board, stages, device); });
  }
  thread_runner(thread_runner const&) = delete;
  thread_runner& operator=(thread_runner const&) = delete;

  //! @brief Ends the threads. While a stage has not returned, the threads are left to themselves,
  //! and the stages
  //!        must live on.
  ~thread_runner() {
    bool stuck = false;
    {
      std::lock_guard const lock(board_->guard);
      board_->closing = true;
      stuck = board_->running != 0;
    }
    board_->changed.notify_all();
    for (std::thread& worker : workers_) {
      if (stuck)
        worker.detach();
      else
        worker.join();
    }
  }

  //! @brief Runs every pass of the plan once.
  //! @throws run_error when a stage throws (its exception is nested) or a device waits beyond the
  //! deadline.
  //! @sync returns when all devices have ended the step.
  void step() {
    detail::thread_board& board = *board_;
    std::unique_lock lock(board.guard);
    if (board.running != 0)
      throw run_error("run: a stage of an earlier step has not returned yet, on device " +
                        std::to_string(stuck_device_) + "; nothing can run before it does",
                      stuck_device_);
    board.begin_step();
    board.running = board.view.extents.devices;
    board.at_home.assign(board.at_home.size(), 0);
    ++board.generation;
    lock.unlock();
    board.changed.notify_all();
    lock.lock();
    board.changed.wait(lock, [&] { return board.running == 0 || board.failed_device != nothing; });
    if (board.failed_device == nothing)
      return;
    // Every device leaves its waits at once; only a stage that does not return can hold up the end
    // of the step.
    bool const ended =
      board.changed.wait_for(lock, board.options.deadline, [&] { return board.running == 0; });
    if (!ended)
      stuck_device_ = board.unreturned();
    raise(board.failure_text, board.failed_device, board.failure);
  }

  //! @brief The passes of the last step with their measured start and end, in seconds since the
  //! start of the step.
  [[nodiscard]] dynamic_timetable trace() const {
    dynamic_timetable result;
    plan_view const& view = board_->view;
    result.extents = view.extents;
    result.offsets.push_back(0);
    for (int row = 0; row < row_count(view.over()); ++row) {
      int const device = row % view.extents.devices;
      auto const d = static_cast<std::size_t>(device);
      auto const steps = view.program_of(device);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].what != operation::run || steps[i].about != subject::pass ||
            row_of(view.over(), steps[i].work) != row)
          continue;
        result.passes.push_back(steps[i].work);
        result.starts.push_back(board_->starts[d][i]);
        result.ends.push_back(board_->ends[d][i]);
      }
      result.offsets.push_back(static_cast<int>(result.passes.size()));
    }
    result.tables = board_->work.tables;
    return result;
  }

private:
  static void serve(detail::thread_board& board, Stages& stages, int device) {
    detail::thread_device<Stages> self{board, stages, device};
    long seen = 0;
    for (;;) {
      {
        std::unique_lock lock(board.guard);
        board.changed.wait(lock, [&] { return board.closing || board.generation != seen; });
        if (board.closing)
          return;
        seen = board.generation;
      }
      self.step();
      {
        std::lock_guard const lock(board.guard);
        --board.running;
        board.at_home[static_cast<std::size_t>(device)] = 1;
      }
      board.changed.notify_all();
    }
  }

  [[noreturn]] static void
  raise(std::string const& text, int device, std::exception_ptr const& cause) {
    if (cause == nullptr)
      throw run_error(text, device);
    try {
      std::rethrow_exception(cause);
    } catch (...) {
      std::throw_with_nested(run_error(text, device));
    }
  }

  std::shared_ptr<detail::thread_board> board_;
  std::vector<std::thread> workers_;
  int stuck_device_ = nothing;
};

//! @brief Runs every pass of a plan once, on threads that live as long as the call.
//! @throws as thread_runner and thread_runner::step.
template <class Stages>
void run(plan work, Stages& stages, threads options = {}) {
  thread_runner<Stages> runner(std::move(work), stages, options);
  runner.step();
}

} // namespace pipelining::inline v0_1
