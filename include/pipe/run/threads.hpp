// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans on the threads of this process. Header for
//! pipelining::thread_runner.

#include <pipe/plan/plan.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/rendezvous.hpp>
#include <pipe/run/thread_board.hpp>
#include <pipe/run/thread_device.hpp>
#include <pipe/timetable/timetable.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Runs plans on threads, step after step, on the stages of the user.
//!
//! Training, evaluation, another number of microbatches: each is a plan. All plans of a runner
//! share its threads and its memory, which is as large as the largest of them wants; `step` says
//! which one runs, and allocates nothing. `thread_options::count` says how many threads there are.
//! A stage is called by one thread at a time, by the same one always where each device has its own.
//! A stage that throws ends the step on all devices; the next step starts afresh.
//!
//! @tparam Stages a vector or array of stages, a tuple of stages of different types, the same of
//! pointers to stages, or a function from the number of a stage to a reference or pointer; one
//! stage per stage of the plan.
template <class Stages>
class thread_runner {
public:
  //! @param work the plan that `step()` runs; copied. @param stages must outlive the runner.
  //! @throws std::invalid_argument when the number of stages is not the plan's, when the plan
  //! splits the backward pass of a stage that cannot, or when a stage has hooks that the plan never
  //! calls; run_error when the machine gives no thread, and when `thread_options::on_start` throws
  //! (its exception is nested) or does not return before the deadline.
  thread_runner(plan work, Stages& stages, thread_options options = {})
      : thread_runner(work.over.extents.devices, stages, std::move(options)) {
    (void)board_->put(std::move(work), 0, stages);
    try {
      for (int thread = 0; thread < board_->thread_count; ++thread)
        threads_.emplace_back([board = board_, &stages, thread] { serve(*board, stages, thread); });
    } catch (std::system_error const& error) {
      auto const device = static_cast<int>(threads_.size());
      throw run_error("run: this machine gives no thread to device " + std::to_string(device) +
                        ": " + error.code().message() +
                        "; allow the process more threads or memory (ulimit -u, ulimit -v)",
                      device);
    }
    complete(detail::errand::start);
    complete(detail::errand::touch);
  }
  thread_runner(thread_runner const&) = delete;
  thread_runner& operator=(thread_runner const&) = delete;

  //! @brief Ends the threads. One that is in a stage which has not returned is left to itself, with
  //! the memory of the runner; a line on stderr says so. The stages must live on then.
  ~thread_runner() {
    for (int device = 0; device < board_->device_count; ++device) {
      auto const thread = static_cast<std::size_t>(board_->hand_of(device));
      if (thread >= threads_.size() || !threads_[thread].joinable())
        continue;
      std::fprintf(
        stderr,
        "run: device %d is not back from %s; its thread is left, and keeps the memory of "
        "its runner; the stages must live on\n",
        device,
        board_->call_of(device).c_str());
      threads_[thread].detach();
    }
    board_->what.store(detail::errand::end, std::memory_order_relaxed);
    for (int thread = 0; std::thread & each : threads_) {
      board_->call(thread++);
      if (each.joinable())
        each.join();
    }
  }

  //! @brief Takes a further plan, which `step(number)` runs.
  //!
  //! Between steps: memory grows here where the plan wants more, and then buffers lie elsewhere
  //! than before; `totals` and `trace` are gone.
  //! @return its number, 1 for the first one that is added.
  //! @throws std::invalid_argument when the plan has other numbers of devices or stages than the
  //! first one, or as the constructor does; run_error when a stage has not returned yet.
  plan_number add(plan work) { return put(std::move(work), board_->plans.size()); }

  //! @brief Takes a further plan in the place of another, which is gone then. See plan_cache.
  //! @param which of the plans.
  //! @return the same number.
  //! @throws as `add` does, std::invalid_argument for a number that `add` has not given.
  plan_number replace(plan_number which, plan work) {
    detail::check_number(which, board_->plans.size());
    return put(std::move(work), static_cast<std::size_t>(which.index));
  }

  //! @brief Makes room for a plan that may be added later, so that memory need not move then, and
  //! views of buffers that stages keep stay valid.
  //!
  //! Where memory moves, here or in `add`, the next step begins with `memory_moved` of all stages
  //! that have it. `totals` and `trace` are gone as with `add`.
  //! @throws std::bad_alloc; run_error when a stage has not returned yet.
  void reserve(plan const& later) {
    refuse_while_stuck();
    board_->reserve(later);
    complete(detail::errand::touch);
  }
  //! @brief The same by numbers of bytes on each device: `plan.arena_bytes` and `plan.host_bytes`.
  void reserve(std::int64_t bytes, std::int64_t host_bytes = 0) {
    refuse_while_stuck();
    for (int device = 0; device < board_->device_count; ++device)
      board_->reserve(device, bytes, host_bytes);
    complete(detail::errand::touch);
  }

  //! @brief Runs every pass of a plan once.
  //! @param which of the plans; the first one unless told otherwise.
  //! @throws run_error when a stage throws (its exception is nested), when nothing begins or ends
  //! on any device for a deadline, and while a stage of an earlier step has not returned;
  //! std::invalid_argument for a number that `add` has not given, and for a plan that
  //! validates a step of the optimizer that was not taken early, or leaves one without.
  //! @sync returns when all devices have ended the step.
  void step(plan_number which = {}) {
    refuse_while_stuck();
    detail::thread_plan& next = board_->choose(which);
    if (board_->moved) {
      complete(detail::errand::tell);
      board_->moved = false;
    }
    board_->begin_step(next);
    complete(detail::errand::step);
    board_->end_step();
  }

  //! @brief True, as all stages run here. For programs that also run on ranks.
  [[nodiscard]] static constexpr bool owns(int) noexcept { return true; }

  //! @brief True when the last step found the optimizer's step of the iteration before wrong: that
  //! one is right now, and the iteration must begin again, with a plan that has nothing to
  //! validate.
  [[nodiscard]] bool begins_again() const noexcept { return board_->again; }

  //! @brief The rows of the totals of the last step, if its plan has any, else none. They are there
  //! until the next step. Where the plan before is validated and nothing else, they are its rows.
  //! @throws run_error while a stage has not returned: it may still write.
  [[nodiscard]] pipelining::totals totals() const {
    refuse_while_stuck();
    return board_->last_totals();
  }

  //! @brief The passes of the last step with their measured start and end, in seconds since the
  //! start of the step; before the first step, the passes of the first plan at time 0.
  //! @throws run_error while a stage has not returned: it may still write.
  [[nodiscard]] dynamic_timetable trace() const {
    refuse_while_stuck();
    return board_->last_trace();
  }

private:
  //! Without threads. The destructor ends those that are started after this, whatever is thrown.
  thread_runner(int devices, Stages& stages, thread_options options)
      : stages_(&stages),
        board_(std::make_shared<detail::thread_board>(devices, std::move(options))) {}

  plan_number put(plan work, std::size_t at) {
    refuse_while_stuck();
    plan_number const number = board_->put(std::move(work), at, *stages_);
    complete(detail::errand::touch);
    return number;
  }

  static void serve(detail::thread_board& board, Stages& stages, int thread) {
    detail::thread_standing& own = board.threads[thread];
    for (int seen = 0;;) {
      auto const called = [&] { return own.called.load(std::memory_order_seq_cst) != seen; };
      // Between two steps the caller wants a core as well.
      if (!detail::spin_until(board.spin(1), called))
        own.door.wait(called);
      ++seen;
      detail::errand const what = board.what.load(std::memory_order_relaxed);
      if (what == detail::errand::end)
        return;
      detail::run_devices(board, stages, thread, what);
      board.go_home();
    }
  }

  //! Sends the threads and waits for them; raises what went wrong.
  void complete(detail::errand why) {
    board_->send(why, why == detail::errand::step ? board_->active.load() : board_->thread_count);
    board_->gather();
  }

  void refuse_while_stuck() const {
    if (board_->running.load(std::memory_order_acquire) == 0)
      return;
    int const device = board_->unreturned();
    throw run_error("run: a stage of an earlier step has not returned yet, on device " +
                      std::to_string(device) + "; nothing can run before it does",
                    device);
  }

  Stages* stages_;
  // Of its threads, too: one that is left may still touch it.
  std::shared_ptr<detail::thread_board> board_;
  std::vector<std::thread> threads_{};
};

//! @brief Runs every pass of a plan once, on threads that live as long as the call.
//! @throws as thread_runner and thread_runner::step.
template <class Stages>
void run(plan work, Stages& stages, thread_options options = {}) {
  thread_runner<Stages> runner(std::move(work), stages, std::move(options));
  runner.step();
}

} // namespace pipelining::inline v0_3
