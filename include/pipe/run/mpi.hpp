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
#include <pipe/run/mpi_patience.hpp>
#include <pipe/run/plan_agreement.hpp>
#include <pipe/run/standing.hpp>
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
  //! The checked mode, as threads::guarded.
  bool guarded = false;
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
//! was, whom it waited for, and with which rank it began. After that the runner is of no more use,
//! and neither is MPI, which may still hold messages that will never end: report and end the
//! process with `std::_Exit`, not with MPI_Finalize.
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
      device_ =
        std::make_unique<device>(view_, stages, rank_, patience_, channel_, options_.guarded);
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
    if (failed_ == fine)
      tell_standing(patience_.line,
                    options_.name,
                    rank_,
                    {"has ended its last step", {}, failure_cause::ended});
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
      throw conclude({}, stop, device_->standing());
    } catch (std::exception const& error) {
      fail_in_pass(error.what());
    } catch (...) {
      fail_in_pass("an exception of a type that is no std::exception");
    }
  }

  //! @brief Ends the run on all ranks, between two steps, for a reason of the program's own: it was
  //! told to end, its data is gone.
  //! @param why goes on after "rank 2".
  //! @throws run_error always; the other ranks' steps throw with the same reason.
  [[noreturn]] void fail(std::string const& why) {
    throw conclude("rank " + std::to_string(rank_) + ' ',
                   {why, failure_cause::own},
                   {"was between two steps", {}});
  }

  //! The rank of this process.
  [[nodiscard]] int rank() const noexcept { return rank_; }

private:
  using device = mpi_device<Stages, Clock>;
  static constexpr int fine = -2;
  static constexpr char const* not_begun = "has not begun";

  //! Does what comes before the first step. What goes wrong is told to the other ranks.
  template <class Work>
  void guard(char const* what, Work do_work) {
    std::string const who = "rank " + std::to_string(rank_) + ' ' + what + ": ";
    try {
      do_work();
    } catch (detail::mpi_stop const& stop) {
      throw conclude(who, stop, now_);
    } catch (deadline_error const& late) {
      now_.waits_for = late.missing();
      throw conclude(who, {late.what(), failure_cause::deadline}, now_);
    } catch (std::logic_error const& error) {
      patience_.line.abort(who + error.what());
      throw;
    } catch (std::exception const& error) {
      if (auto const reason = patience_.line.failure())
        throw conclude(who, {*reason, failure_cause::told}, now_);
      throw conclude(who, {error.what(), failure_cause::own}, now_);
    }
  }

  void check(int code, char const* call) {
    if (code != MPI_SUCCESS)
      throw detail::mpi_stop{std::string(call) + " failed: " + detail::mpi_words(code),
                             failure_cause::library};
  }
  void await(MPI_Request& request, char const* what) {
    MPI_Status status{};
    std::optional<int> const code = patience_.wait(request, status);
    if (!code)
      throw detail::mpi_stop{std::string(what) + " took longer than the deadline",
                             failure_cause::deadline};
    check(*code, what);
  }

  void duplicate(MPI_Comm world) {
    now_ = {"duplicates the communicator with all ranks", {}};
    for (int rank = 0; rank < view_.extents.devices; ++rank)
      if (rank != rank_)
        now_.waits_for.push_back(rank);
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
    for (std::size_t i = 0; i < requests.size(); ++i) {
      std::string const peer = "rank " + std::to_string(peers[i / 2]);
      now_ = {"connects to " + peer, {peers[i / 2]}};
      await(requests[i], ("connecting to " + peer).c_str());
    }
    now_ = {"has connected to its peers", {}};
  }

  //! Tells the others why and where this rank has stopped, and hears where they have. What the
  //! store has then is the first failure: of several at once, all ranks report the same one.
  //! @param who what to put before the reason, where it is this rank's own.
  run_error conclude(std::string const& who, detail::mpi_stop const& stop, rank_standing where) {
    where.cause = stop.cause;
    std::string const own_name = "\n  rank " + std::to_string(rank_) + ' ';
    std::string const own_reason = stop.cause == failure_cause::told ? "" : who + stop.reason;
    tell_standing(patience_.line, options_.name, rank_, where);
    std::optional<std::string> first = stop.reason;
    if (!own_reason.empty()) {
      patience_.line.abort(own_reason);
      first = patience_.verdict();
    }
    std::string const reason = first.value_or(own_reason);
    failed_ = detail::rank_named_in(reason);
    std::string text = "run: " + reason;
    if (!first) {
      // Its echo would have come back from any store that is alive.
      text += "\n  rank 0 is where it began: its process, which serves the store, does not answer";
      failed_ = 0;
    } else if (!reason.starts_with(detail::store_saw)) {
      failure_origin const origin =
        trace_origin(patience_.line, options_.name, failed_, std::chrono::seconds(1));
      text += describe(origin);
      failed_ = origin.rank;
    }
    if (reason != own_reason && where.text != not_begun && text.find(own_name) == std::string::npos)
      text += own_name + where.text;
    return {text, failed_};
  }

  //! To be called from a handler: the stage's exception gets nested.
  [[noreturn]] void fail_in_pass(char const* cause) {
    std::string const reason =
      "rank " + std::to_string(rank_) + " failed in " + device_->running() + ": " + cause;
    failed_ = rank_;
    tell_standing(patience_.line,
                  options_.name,
                  rank_,
                  {"failed in " + device_->running(), {}, failure_cause::own});
    patience_.line.abort(reason);
    (void)patience_.verdict();
    std::throw_with_nested(run_error("run: " + reason, rank_));
  }

  plan work_;
  plan_view view_;
  mpi_ranks options_;
  detail::mpi_patience<Clock> patience_;
  int rank_ = 0;
  int failed_ = fine;
  rank_standing now_{not_begun, {}}; // before the first step
  MPI_Comm channel_ = MPI_COMM_NULL;
  std::unique_ptr<device> device_;
};

} // namespace pipelining::inline v0_1
