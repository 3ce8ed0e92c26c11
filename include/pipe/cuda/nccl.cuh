// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans on processes with one GPU each. Header for pipelining::cuda::nccl_runner. Needs
//! <nccl.h>; link `pipelining::nccl`.

#include <pipe/config.hpp>
#include <pipe/cuda/error.cuh>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cluster/plan_agreement.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cuda/graph_launcher.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl_error.cuh>
#include <pipe/cuda/nccl_machine.cuh>
#include <pipe/cuda/nccl_options.cuh>
#include <pipe/cuda/rank_wait.cuh>
#include <pipe/plan/plan.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/polling.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace pipelining::inline v0_3::cuda {

namespace detail {

//! An address that differs between any two threads that live at once.
[[nodiscard]] inline void const* this_thread() noexcept {
  thread_local char const place = 0;
  return &place;
}

} // namespace detail

//! @brief Runs the programs of one device of plans on the GPU of this process; one process per
//! device, joined by NCCL.
//!
//! Training, evaluation, another number of microbatches: each is a plan. All plans of a runner
//! share its streams, its memory and the communicators that their policies call the same, and
//! follow each other without a barrier: `step` says which one runs, the same on all ranks.
//!
//! The constructor and `add` are collective: ranks make their communicators and connect every edge,
//! and nothing is set up lazily afterwards. One thread enqueues in the order of the plan; no call
//! waits for another rank without a deadline.
//!
//! Plans of `lower_post_validated` run with `post_validated_steps`, without a graph: the host
//! decides in the middle of an iteration, when the rows of the totals have come to it
//! (step_decisions).
//!
//! When a stage throws, CUDA or NCCL reports an error, another rank fails or a deadline passes, the
//! rank stops enqueuing, tells the others through the store, destroys its graph, aborts its
//! communicators together and waits for them and its streams with a second deadline. Then `step`
//! throws a run_error with the reason and with the item at which this rank stood. What has not
//! ended by then, such as a kernel that never ends, is abandoned. The runner is of no more use
//! after that; report, and end the process.
//!
//! The host waits for items that it has enqueued earlier, so that it does not meet a full queue of
//! its GPU; where it does, because a pass launches very many kernels, a thread next to it ends the
//! step soon after the deadline. Graphs are launched by another thread, which is abandoned where
//! a launch does not return. A third one watches steps, where the clock is the machine's, and ends
//! the process where a pass does not return (run_error::hung_status).
//!
//! @tparam Stages as for thread_runner. Stages of other devices are never called. They enqueue on
//! the stream of their context only, do not synchronise and allocate nothing on the device.
template <class Stages, run_store Store = store, class Clock = detail::rooms::polling_clock>
class nccl_runner {
public:
  //! @param work the plan that `step()` runs, the same on all ranks. @param stages, line must
  //! outlive the runner.
  //! @param rank the device of the plan that this process is.
  //! @throws std::invalid_argument when stages, rank or environment do not suit, after telling the
  //! other ranks; run_error when a rank fails or is missing.
  nccl_runner(plan work, Stages& stages, Store& line, int rank, nccl_options options = {})
      : stages_(stages), line_(line), rank_(rank), options_(std::move(options)),
        exceptions_(std::uncaught_exceptions()) {
    try {
      check_options(work);
      agree(work);
      current_device const scope(options_.gpu);
      machine_ =
        std::make_unique<machine>(stages_, line_, rank_, work.over.extents.devices, options_, now_);
      machine_->take(std::move(work), 0, taken_++);
    } catch (std::logic_error const& unfit) {
      detail::rooms::tell_standing(
        line_,
        options_.name,
        rank_,
        {detail::rooms::not_begun, {}, detail::rooms::failure_cause::own});
      line_.abort("rank " + std::to_string(rank_) + " could not begin: " + unfit.what());
      throw;
    } catch (...) {
      end_run("could not connect");
    }
  }
  nccl_runner(nccl_runner const&) = delete;
  nccl_runner& operator=(nccl_runner const&) = delete;

  //! @brief Closes, if nothing has failed; else frees what can be freed without waiting.
  ~nccl_runner() {
    if (machine_ && !failed_) {
      try {
        if (std::uncaught_exceptions() > exceptions_)
          throw detail::run_stop{"left its runner by an exception"};
        close();
      } catch (...) {
        try {
          end_run("could not close");
        } catch (...) { // told to the other ranks; a destructor has nobody else to tell
        }
      }
    }
  }

  //! @brief True for a stage that this rank runs, of all microbatches or of some.
  //! @param stage [0, S). @throws run_error after the end of the run.
  [[nodiscard]] bool owns(int stage) {
    refuse_after_end();
    return detail::rooms::microbatch_on(machine_->taken(0).over, stage, rank_) >= 0;
  }

  //! @brief Takes a further plan, which `step(number)` runs. Collective: all ranks add the same
  //! plans in the same order.
  //!
  //! Between steps: memory grows here where the plan wants more, and then buffers lie elsewhere
  //! than before, and graphs are captured anew; `totals` and `trace` are gone.
  //! @return its number, 1 for the first one that is added.
  //! @throws std::invalid_argument when the plan has other devices or stages than the first one, or
  //! other places for them, or does not suit the stages, and the run has ended then; run_error when
  //! a rank fails, is missing or has another plan.
  plan_number add(plan work) { return put(std::move(work), machine_ ? machine_->plans() : 0); }

  //! @brief As `thread_runner::replace`; collective, as `add` is.
  plan_number replace(plan_number which, plan work) {
    refuse_after_end();
    detail::rooms::check_number(which, machine_->plans());
    return put(std::move(work), static_cast<std::size_t>(which.index));
  }

  //! @brief As `thread_runner::reserve`, on this rank; not collective. @throws error when CUDA
  //! does.
  void reserve(plan const& later) {
    reserve(later.arena_bytes_of(rank_), later.host_bytes_of(rank_));
  }
  //! @brief The same by numbers of bytes.
  void reserve(std::int64_t bytes, std::int64_t host_bytes = 0) {
    refuse_after_end();
    current_device const scope(options_.gpu);
    machine_->reserve(bytes, host_bytes);
  }

  //! @brief Runs this rank's passes of a plan once and waits for their end.
  //! @param which of the plans, the same on all ranks; the first one unless told otherwise.
  //! @throws run_error on every rank when one fails; where a stage has thrown, its exception is
  //! nested; std::invalid_argument for a number that `add` has not given, and for a plan that
  //! validates a step of the optimizer that was not taken early, or leaves one without.
  //! @pre where communicators of the program are registered, the calling thread is that of the
  //! first step; another one ends the run.
  //! @sync returns when this rank's streams have ended the iteration; others may still run.
  void step(plan_number which = {}) {
    refuse_after_end();
    detail::rooms::check_number(which, machine_->plans());
    machine_->check_turn(static_cast<std::size_t>(which.index));
    try {
      check_thread();
      current_device const scope(options_.gpu);
      machine_->step(static_cast<std::size_t>(which.index));
    } catch (...) {
      end_run("failed");
    }
    ++steps_;
  }

  //! @brief As `thread_runner::begins_again`; the same on all ranks.
  [[nodiscard]] bool begins_again() const {
    return !failed_ && machine_ && machine_->begins_again();
  }

  //! @brief The rows of the totals of the last step, if its plan has any, else none: a copy on the
  //! host, which is there until the next call. None before the first step, after close and after a
  //! failure. Where stages step early only the last rank has the rows of all stages.
  //! @throws error when CUDA does.
  [[nodiscard]] pipelining::totals totals() {
    if (failed_ || !machine_ || !machine_->has_run())
      return {};
    current_device const scope(options_.gpu);
    return machine_->rows();
  }

  //! @brief The passes of all ranks in the last step with their measured start and end by events,
  //! in seconds since the step of each rank began. Collective: call it on all ranks.
  //! @throws std::logic_error without nccl_options::timed, before the first step, after close and
  //! after a failure; run_error when a rank fails or is missing.
  [[nodiscard]] dynamic_timetable trace() {
    if (!options_.timed || failed_ || !machine_ || !machine_->has_run())
      throw std::logic_error("nccl: there is no trace; set nccl_options::timed on all ranks, run a "
                             "step, and ask before close()");
    try {
      current_device const scope(options_.gpu);
      return machine_->trace(steps_);
    } catch (...) {
      end_run("could not gather the trace");
    }
  }

  //! @brief Ends the communicators together with the other ranks. Collective.
  void close() {
    if (!machine_ || failed_)
      return;
    try {
      current_device const scope(options_.gpu);
      machine_->close();
    } catch (...) {
      end_run("could not close");
    }
    detail::rooms::tell_standing(
      line_,
      options_.name,
      rank_,
      {"has closed its communicators", {}, detail::rooms::failure_cause::ended});
    machine_.reset();
  }

  //! @brief As `mpi_runner::fail`.
  [[noreturn]] void fail(std::string const& why) {
    if (failed_ || !machine_)
      throw run_error("nccl: rank " + std::to_string(rank_) + ' ' + why, rank_);
    now_ = {"was between two steps", {}};
    try {
      throw detail::run_stop{{}};
    } catch (...) {
      end_run(why.c_str());
    }
  }

  //! The rank of this process.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  //! @brief The stream on which an iteration starts and ends: the compute stream.
  [[nodiscard]] cudaStream_t origin() const noexcept { return machine_->origin(); }

private:
  using machine = detail::nccl_machine<Stages, Store, Clock>;

  void refuse_after_end() const {
    if (failed_ || !machine_)
      throw run_error("nccl: rank " + std::to_string(rank_) +
                        " cannot run another step after one that failed, or after close()",
                      rank_);
  }

  void check_options(plan const& work) const {
    int const devices = work.over.extents.devices;
    if (rank_ < 0 || rank_ >= devices)
      throw std::invalid_argument("nccl: the plan has " + std::to_string(devices) +
                                  " devices, but this is rank " + std::to_string(rank_) +
                                  "; start one process per device");
    if (!options_.world_ranks.empty() &&
        options_.world_ranks.size() != static_cast<std::size_t>(devices))
      throw std::invalid_argument("nccl: the plan has " + std::to_string(devices) +
                                  " devices, but nccl_options::world_ranks names " +
                                  std::to_string(options_.world_ranks.size()) + " ranks");
    check_plan(work);
    detail::check_environment();
  }
  void check_plan(plan const& work) const {
    detail::rooms::check_stages(work, stages_, rank_);
    if (options_.graph)
      detail::refuse_validation(work);
  }

  //! Compares a plan with that of rank 0; before the first one, the text of the run.
  void agree(plan const& work) {
    if (rank_ > 0)
      now_ = {"compares its plan with that of rank 0", {0}};
    if (taken_ == 0)
      agree_on_text(line_, options_.about, rank_, options_.name, options_.deadline);
    detail::rooms::agree_on_plan(line_,
                                 work,
                                 rank_,
                                 (options_.checked ? "checked " : "") + options_.elements,
                                 options_.name +
                                   (taken_ == 0 ? "" : "/plan " + std::to_string(taken_)),
                                 options_.deadline);
  }

  plan_number put(plan work, std::size_t at) {
    refuse_after_end();
    now_ = {"adds a plan", {}};
    try {
      detail::rooms::check_addition(machine_->taken(0), work, "nccl");
      check_plan(work);
      agree(work);
      current_device const scope(options_.gpu);
      machine_->take(std::move(work), at, taken_++);
    } catch (std::invalid_argument const&) {
      try {
        end_run("could not add a plan");
      } catch (run_error const&) { // told to the other ranks; here the sentence says more
      }
      throw;
    } catch (...) {
      end_run("could not add a plan");
    }
    now_ = {"is between two steps", {}};
    return {static_cast<int>(at)};
  }

  //! Two threads have no order, in which kernels of two communicators could wait for each other.
  void check_thread() {
    if (options_.communicators.empty())
      return;
    if (steps_ == 0)
      thread_ = detail::this_thread();
    if (thread_ == detail::this_thread())
      return;
    now_ = {"was to begin a step in another thread than that of its first one", {}};
    throw detail::run_stop{"step() was called by another thread than that of the first step; with "
                           "registered communicators one thread enqueues for all of them"};
  }

  //! Turns the exception in flight into the failure of the run, and throws it.
  [[noreturn]] void end_run(char const* what) {
    auto const why = detail::rooms::why_stopped<nccl_error>(line_);
    failed_ = true;
    detail::rooms::failure_report<Clock, Store> report(
      line_,
      options_.name,
      rank_,
      std::min<std::chrono::nanoseconds>(options_.abort_deadline, std::chrono::seconds(2)));
    detail::rooms::rank_standing where = machine_ ? machine_->standing(why.thrown) : now_;
    std::string const& text = why.stop.reason;
    where.cause = why.stop.cause;
    report.tell(where.cause == detail::rooms::failure_cause::told
                  ? text
                  : "rank " + std::to_string(rank_) + ' ' + what +
                      (text.empty() ? "" : ": " + text) + "\n  rank " + std::to_string(rank_) +
                      ' ' + where.text,
                where);
    // Freeing would wait for streams that never end.
    bool const stuck = machine_ && !machine_->abort();
    if (stuck)
      (void)machine_.release();
    std::string more = stuck ? "\n  its streams are still busy; end the process" : "";
    for (std::size_t device = 0; device < options_.world_ranks.size(); ++device)
      more += (device > 0 ? ", rank " : "\n  in the whole run: rank ") + std::to_string(device) +
              " is " + std::to_string(options_.world_ranks[device]);
    run_error const failure = report.made("nccl: ", more);
    if (why.thrown)
      std::throw_with_nested(failure);
    throw failure;
  }

  Stages& stages_;
  Store& line_;
  int rank_;
  nccl_options options_;
  int exceptions_; // in flight when the runner was made
  detail::rooms::rank_standing now_{detail::rooms::not_begun, {}};
  std::unique_ptr<machine> machine_;
  int steps_ = 0;                // of all plans
  int taken_ = 0;                // plans so far, those among them that are gone
  void const* thread_ = nullptr; // of the first step
  bool failed_ = false;
};

} // namespace pipelining::inline v0_3::cuda
#endif
