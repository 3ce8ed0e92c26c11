// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A plan on MPI processes, one rank per device. Header for pipelining::mpi_runner. Needs
//! <mpi.h>; link `pipelining::mpi`.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/check.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/mpi_device.hpp>
#include <pipe/run/plan_agreement.hpp>
#include <pipe/run/store.hpp>

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief How MPI processes run a plan.
struct mpi_ranks {
  //! The longest that a rank waits for one message. After that, the step fails on all ranks and
  //! says who waits for whom.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  //! The types of the elements in messages, such as "bf16"; compared between ranks.
  std::string elements = {};
  //! Tells the runners of one store apart; the same on all ranks, and used once.
  std::string name = "run";
};

namespace detail {

//! The ranks that a device exchanges messages with.
[[nodiscard]] inline std::vector<int> peers_of(plan_view const& work, int device) {
  std::vector<int> peers;
  for (int peer = 0; peer < work.extents.devices; ++peer)
    for (item const& step : work.program_of(device))
      if (step.what != operation::run && step.peer == peer) {
        peers.push_back(peer);
        break;
      }
  return peers;
}

} // namespace detail

//! @brief Runs a plan with one MPI process per device, step after step: this process runs the
//! program of the device that has its rank.
//!
//! Before the first step all ranks have compared their plans and every pair that exchanges messages
//! has done so once. `step` allocates nothing. A stage that throws, a process that dies and a wait
//! beyond the deadline end the step on all ranks, and every rank's error says why, where the rank
//! was and whom it waited for. After that the runner is of no more use, and neither is MPI, which
//! may still hold messages that will never end: report and end the process with `std::_Exit`, not
//! with MPI_Finalize.
//!
//! MPI must be initialised, MPI_THREAD_FUNNELED or more, and all calls come from the main thread.
//!
//! @tparam Stages as for thread_runner. Stages of other devices are never called.
template <class Stages, class Clock = polling_clock>
class mpi_runner {
public:
  //! @param work the plan, the same on all ranks; copied. @param stages must outlive the runner.
  //! @param line this process's store; must outlive the runner.
  //! @param world one rank per device. Collective: all ranks make their runners together.
  //! @throws std::invalid_argument when the stages or the number of ranks are not the plan's,
  //! std::length_error for messages that MPI cannot count, run_error when a rank fails, is missing
  //! or has another plan.
  mpi_runner(plan work,
             Stages& stages,
             basic_store<Clock>& line,
             MPI_Comm world = MPI_COMM_WORLD,
             mpi_ranks options = {})
      : work_(std::move(work)), view_(work_.view()),
        options_(std::move(options)), patience_{line, options_.deadline} {
    int size = 0;
    (void)MPI_Comm_rank(world, &rank_);
    (void)MPI_Comm_size(world, &size);
    guard("could not begin", [&] {
      if (size != view_.extents.devices)
        throw std::invalid_argument("run: the plan has " + std::to_string(view_.extents.devices) +
                                    " devices, but the communicator has " + std::to_string(size) +
                                    " ranks; start one process per device (mpirun -n " +
                                    std::to_string(view_.extents.devices) + ")");
      check_stages(view_, stages, rank_);
      agree_on_plan(line, view_, rank_, options_.elements, options_.name, options_.deadline);
      line.barrier(options_.name + "/agreed", size, options_.deadline);
      duplicate(world);
      device_ = std::make_unique<device>(view_, stages, rank_, patience_, channel_);
      connect();
      line.barrier(options_.name + "/connected", size, options_.deadline);
    });
  }
  mpi_runner(mpi_runner const&) = delete;
  mpi_runner& operator=(mpi_runner const&) = delete;

  //! @brief Frees the communicator, unless a step has failed: then it is left to MPI.
  ~mpi_runner() {
    int finalized = 0;
    (void)MPI_Finalized(&finalized);
    device_.reset();
    if (finalized == 0 && failed_ == fine && channel_ != MPI_COMM_NULL)
      (void)MPI_Comm_free(&channel_);
  }

  //! @brief Runs this rank's passes of the plan once.
  //! @throws run_error on every rank when one fails: a stage of this rank has thrown (its exception
  //! is nested), another rank has failed or died, or a message has not come before the deadline.
  //! @sync returns when this rank has ended its program; others may still run.
  void step() {
    if (failed_ != fine)
      throw run_error("run: rank " + std::to_string(rank_) +
                        " cannot run another step after one that failed; end the process, and "
                        "start all ranks again",
                      failed_);
    device_->begin();
    try {
      execute(view_, rank_, *device_);
    } catch (detail::mpi_stop const& stop) {
      fail(stop);
    } catch (std::exception const& error) {
      fail_in_pass(error.what());
    } catch (...) {
      fail_in_pass("an exception of a type that is no std::exception");
    }
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }

private:
  using device = mpi_device<Stages, Clock>;
  static constexpr int fine = -2;

  //! Does what comes before the first step. What goes wrong is told to the other ranks.
  template <class Work>
  void guard(char const* what, Work do_work) {
    std::string const who = "rank " + std::to_string(rank_) + ' ' + what + ": ";
    try {
      do_work();
    } catch (detail::mpi_stop const& stop) {
      std::string const reason = stop.own ? who + stop.reason : stop.reason;
      if (stop.own)
        patience_.line.abort(reason);
      throw run_error("run: " + reason, detail::rank_named_in(reason));
    } catch (std::logic_error const& error) {
      patience_.line.abort(who + error.what());
      throw;
    } catch (std::exception const& error) {
      if (auto const reason = patience_.line.failure())
        throw run_error("run: " + *reason, detail::rank_named_in(*reason));
      patience_.line.abort(who + error.what());
      throw run_error("run: " + who + error.what(), rank_);
    }
  }

  void check(int code, char const* call) {
    if (code != MPI_SUCCESS)
      throw detail::mpi_stop{std::string(call) + " failed: " + detail::mpi_words(code), true};
  }
  void await(MPI_Request& request, char const* what) {
    MPI_Status status{};
    std::optional<int> const code = patience_.wait(request, status);
    if (!code)
      throw detail::mpi_stop{std::string(what) + " took longer than the deadline", true};
    check(*code, what);
  }

  void duplicate(MPI_Comm world) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(world, &channel_, &request), "MPI_Comm_idup");
    await(request, "MPI_Comm_idup");
    check(MPI_Comm_set_errhandler(channel_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  //! An empty message each way between all ranks that will exchange any: MPI connects at first use.
  void connect() {
    std::vector<int> const peers = detail::peers_of(view_, rank_);
    std::vector<MPI_Request> requests(2 * peers.size(), MPI_REQUEST_NULL);
    for (std::size_t i = 0; i < peers.size(); ++i) {
      check(MPI_Irecv(nullptr, 0, MPI_BYTE, peers[i], 0, channel_, &requests[2 * i]), "MPI_Irecv");
      check(MPI_Isend(nullptr, 0, MPI_BYTE, peers[i], 0, channel_, &requests[2 * i + 1]),
            "MPI_Isend");
    }
    for (std::size_t i = 0; i < requests.size(); ++i)
      await(requests[i], ("connecting to rank " + std::to_string(peers[i / 2])).c_str());
  }

  //! Tells the others, and what the store has then is the first failure: of several at once, all
  //! ranks report the same one.
  std::string settle(std::string const& own) {
    patience_.line.abort(own);
    return patience_.verdict().value_or(own);
  }

  [[noreturn]] void fail(detail::mpi_stop const& stop) {
    std::string const reason = stop.own ? settle(stop.reason) : stop.reason;
    failed_ = detail::rank_named_in(reason);
    std::string text = "run: " + reason;
    if (reason != stop.reason || !stop.own)
      text += "\n  " + device_->standing();
    throw run_error(text, failed_);
  }

  //! To be called from a handler: the stage's exception gets nested.
  [[noreturn]] void fail_in_pass(char const* cause) {
    std::string const reason =
      "rank " + std::to_string(rank_) + " failed in " + device_->running() + ": " + cause;
    failed_ = rank_;
    (void)settle(reason);
    std::throw_with_nested(run_error("run: " + reason, rank_));
  }

  plan work_;
  plan_view view_;
  mpi_ranks options_;
  detail::mpi_patience<Clock> patience_;
  int rank_ = 0;
  int failed_ = fine;
  MPI_Comm channel_ = MPI_COMM_NULL;
  std::unique_ptr<device> device_;
};

} // namespace pipelining::inline v0_1
