// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A plan on MPI processes, one rank per device. Header for pipelining::mpi_runner; with
//! pipelining::mpi_store. Needs <mpi.h>; link `pipelining::mpi`.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cluster/gathered_trace.hpp>
#include <pipe/cluster/plan_agreement.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/mpi/device.hpp>
#include <pipe/mpi/store.hpp> // a runner needs one
#include <pipe/plan/connection_rounds.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/polling.hpp>
#include <pipe/run/watchdog.hpp>
#include <pipe/timetable/timetable.hpp>

#include <mpi.h>

#include <algorithm>
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

namespace pipelining::inline v0_3 {

//! @brief Options of a runner over MPI processes.
struct mpi_options {
  //! The longest that a rank waits for one message; then the step fails on all ranks and says who
  //! waits for whom. A pass or a hook has as long: one that has not returned by then ends its
  //! process with run_error::hung_status, since it runs on the caller's own thread. Time in which
  //! the process was suspended does not count (countdown).
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  //! The types of the elements in messages, such as "bf16"; compared between ranks.
  std::string elements = {};
  //! All that must be the same on all ranks, as lines `key=value`; compared before the plan.
  std::string about = {};
  //! Tells the runners of one store apart; the same on all ranks, and used once.
  std::string name = "run";
  //! The checked mode, as thread_options::guarded.
  bool guarded = false;
};

//! @brief Runs plans with one MPI process per device, step after step: this process runs the
//! program of the device that has its rank.
//!
//! Training, evaluation, another number of microbatches: each is a plan. All plans of a runner
//! share its communicator and its memory, and follow each other without a barrier: `step` says
//! which one runs, the same on all ranks.
//!
//! Before its first step all ranks have compared a plan, once, and every pair that exchanges
//! messages has done so once. `step` allocates nothing. A stage that throws, a process that dies
//! and a wait beyond the deadline end the step on all ranks, and every rank's error says why, where
//! the rank was, whom it waited for, and with which rank it began. After that the runner is of no
//! more use, and neither is MPI, which may still hold messages that will never end: report and end
//! the process with `std::_Exit`, not with MPI_Finalize.
//!
//! MPI must be initialised, MPI_THREAD_FUNNELED or more, and all calls come from the main thread.
//!
//! @tparam Stages as for thread_runner. Stages of other devices are never called; where they are
//! pointers, they may be null, and a function is asked for the stages of this device only.
template <class Stages, class Clock = detail::polling_clock>
class mpi_runner {
public:
  //! @param work the plan that `step()` runs, the same on all ranks; copied. @param stages must
  //! outlive the runner.
  //! @param line this process's store; must outlive the runner.
  //! @param world one rank per device. Collective: all ranks make their runners together.
  //! @throws std::invalid_argument when the stages or the number of ranks are not the plan's,
  //! std::length_error for messages that MPI cannot count, run_error when a rank fails, is missing
  //! or has another plan or another mpi_options::about.
  mpi_runner(plan work,
             Stages& stages,
             basic_store<Clock>& line,
             MPI_Comm world = MPI_COMM_WORLD,
             mpi_options options = {})
      : stages_(&stages), options_(std::move(options)), patience_{line, options_.deadline} {
    int size = 0;
    (void)MPI_Comm_rank(world, &rank_);
    (void)MPI_Comm_size(world, &size);
    devices_ = work.over.extents.devices;
    guard("could not begin", [&] {
      if (size != devices_)
        throw std::invalid_argument("run: the plan has " + std::to_string(devices_) +
                                    " devices, but the communicator has " + std::to_string(size) +
                                    " ranks; start one process per device (mpirun -n " +
                                    std::to_string(devices_) + ")");
      agree_on_text(patience_.line, options_.about, rank_, options_.name, options_.deadline);
      take(std::move(work), 0, [&] { duplicate(world); });
      watchdog_ = std::make_unique<detail::watchdog<Clock>>(
        options_.deadline,
        patience_.pulse,
        [this] {
          detail::answer_in_pass(patience_.line, options_.name, rank_, answered_, [this] {
            return now_running_->runs->running();
          });
        },
        [this] {
          return "run: " + detail::tell_of_hang(
                             patience_.line, options_.name, rank_, now_running_->runs->running());
        });
    });
  }
  mpi_runner(mpi_runner const&) = delete;
  mpi_runner& operator=(mpi_runner const&) = delete;

  //! @brief Frees the communicator, unless a step has failed: then it is left to MPI.
  ~mpi_runner() {
    int finalized = 0;
    (void)MPI_Finalized(&finalized);
    watchdog_.reset();
    plans_.clear();
    if (failed_ == fine)
      detail::tell_standing(patience_.line,
                            options_.name,
                            rank_,
                            {"has ended its last step", {}, detail::failure_cause::ended});
    if (finalized == 0 && failed_ == fine && channel_ != MPI_COMM_NULL)
      (void)MPI_Comm_free(&channel_);
  }

  //! @brief Takes a further plan, which `step(number)` runs. Collective: all ranks add the same
  //! plans in the same order.
  //!
  //! Between steps: memory grows here where the plan wants more, and then buffers lie elsewhere
  //! than before; `totals` and `trace` are gone.
  //! @return its number, 1 for the first one that is added.
  //! @throws std::invalid_argument when the plan has other devices or stages than the first one, or
  //! other places for them; else as the constructor does.
  plan_number add(plan work) { return put(std::move(work), plans_.size()); }

  //! @brief As `thread_runner::replace`; collective, as `add` is.
  plan_number replace(plan_number which, plan work) {
    detail::check_number(which, plans_.size());
    return put(std::move(work), static_cast<std::size_t>(which.index));
  }

  //! @brief As `thread_runner::reserve`, on this rank; not collective.
  void reserve(plan const& later) {
    reserve(
      detail::arena{later, rank_, nullptr, nullptr, options_.guarded ? detail::guard_bytes : 0}
        .bytes(),
      later.host_bytes_of(rank_));
  }
  //! @brief The same by numbers of bytes.
  void reserve(std::int64_t bytes, std::int64_t host_bytes = 0) {
    refuse_after_failure();
    memory_.reserve(bytes, host_bytes);
    now_running_ = nullptr;
  }

  //! @brief Runs this rank's passes of a plan once.
  //! @param which of the plans, the same on all ranks; the first one unless told otherwise.
  //! @throws run_error on every rank when one fails: a stage of this rank has thrown (its exception
  //! is nested), another rank has failed or died, or a message has not come before the deadline, as
  //! happens where ranks run different plans; std::invalid_argument for a number that `add` has not
  //! given.
  //! @sync returns when this rank has ended its program; others may still run.
  void step(plan_number which = {}) {
    refuse_after_failure();
    detail::check_number(which, plans_.size());
    mpi_plan& next = *plans_[static_cast<std::size_t>(which.index)];
    carried_.check(next.lowered);
    next.runs->begin(now_running_ != &next);
    now_running_ = &next;
    // Ranks before the last one get their rows from it; there what is carried is of no use.
    carried_.put(next.runs->slots());
    auto const end = [this](device* runs) { // of a step that fails, once all have heard of it
      typename detail::watchdog<Clock>::watch const watch(*watchdog_);
      runs->abandon();
    };
    std::unique_ptr<device, decltype(end)> const at_end(next.runs.get(), end);
    try {
      {
        typename detail::watchdog<Clock>::watch const watch(*watchdog_);
        if (memory_.moved)
          detail::tell_moved(*stages_, next.lowered, rank_);
        memory_.moved = false;
        int at = 0; // and messages are waited for on the way
        (void)detail::advance(
          next.lowered, rank_, at, *next.runs, [](device&, int) { return true; });
      }
      carried_.take(next.runs->slots(), next.runs->begins_again());
    } catch (detail::run_stop const& stop) {
      throw conclude({}, stop, next.runs->standing());
    } catch (...) { // the stage's exception gets nested
      std::string const where = "failed in " + next.runs->running();
      std::throw_with_nested(conclude("rank " + std::to_string(rank_) + ' ' + where + ": ",
                                      {detail::words_of_exception(), detail::failure_cause::own},
                                      {where, {}}));
    }
  }

  //! @brief True for a stage that this rank runs, of all microbatches or of some.
  //! @param stage [0, S)
  [[nodiscard]] bool owns(int stage) const {
    return detail::microbatch_on(first().over, stage, rank_) >= 0;
  }

  //! @brief As `thread_runner::begins_again`; the same on all ranks.
  [[nodiscard]] bool begins_again() const noexcept {
    return now_running_ != nullptr && now_running_->runs->begins_again();
  }

  //! @brief The rows of the totals of the last step, if its plan has any, else none. They are there
  //! until the next step. Where stages step early only the last rank has the rows of all stages.
  [[nodiscard]] pipelining::totals totals() const {
    if (now_running_ == nullptr)
      return {};
    return now_running_->runs->slots().all_totals();
  }

  //! @brief The passes of all ranks in the last step with their measured start and end; before the
  //! first step, the passes of the first plan at time 0. Collective.
  //!
  //! Seconds since the rank that ran the pass began the step: clocks of machines differ, so times
  //! of different ranks are not to be compared, but lengths are.
  //! @throws run_error as `step` does.
  [[nodiscard]] dynamic_timetable trace() {
    refuse_after_failure();
    dynamic_timetable result;
    mpi_plan const& ran = now_running_ != nullptr ? *now_running_ : *plans_.front();
    detail::host_passes const& own = ran.runs->passes();
    guard("could not gather the trace", [&] {
      result =
        detail::gather_trace(patience_.line,
                             options_.name + "/trace " + std::to_string(traces_++) + '/',
                             rank_,
                             ran.lowered,
                             options_.deadline,
                             now_,
                             [&](std::size_t item, bool end) { return own.time(item, end); });
    });
    return result;
  }

  //! @brief Ends the run on all ranks, between two steps, for a reason of the program's own: it was
  //! told to end, its data is gone.
  //! @param why goes on after "rank 2".
  //! @throws run_error always; the other ranks' steps throw with the same reason.
  [[noreturn]] void fail(std::string const& why) {
    throw conclude("rank " + std::to_string(rank_) + ' ',
                   {why, detail::failure_cause::own},
                   {"was between two steps", {}});
  }

  //! The rank of this process.
  [[nodiscard]] int rank() const noexcept { return rank_; }

private:
  using device = detail::mpi_device<Stages, Clock>;

  //! A plan of the runner, and the device that runs it here.
  struct mpi_plan {
    plan lowered;
    std::unique_ptr<device> runs{};
  };

  static constexpr int fine = -2;

  plan_number put(plan work, std::size_t at) {
    refuse_after_failure();
    now_ = {"adds a plan", {}};
    guard("could not add a plan", [&] {
      detail::check_addition(first(), work, "run");
      take(std::move(work), at, [] {});
    });
    return {static_cast<int>(at)};
  }

  //! Does what comes before the first step. What goes wrong is told to the other ranks.
  template <class Work>
  void guard(char const* what, Work do_work) {
    std::string const who = "rank " + std::to_string(rank_) + ' ' + what + ": ";
    try {
      do_work();
    } catch (std::logic_error const& error) {
      patience_.line.abort(who + error.what());
      failed_ = rank_;
      throw;
    } catch (...) {
      detail::stop_reason const why = detail::why_stopped(patience_.line);
      if (!why.missing.empty())
        now_.waits_for = why.missing;
      throw conclude(who, why.stop, now_);
    }
  }

  void check(int code, char const* call) {
    if (code != MPI_SUCCESS)
      throw detail::run_stop{std::string(call) + " failed: " + detail::mpi_words(code),
                             detail::failure_cause::library};
  }
  void await(MPI_Request& request, char const* what) {
    MPI_Status status{};
    std::optional<int> const code = patience_.wait(request, status);
    if (!code)
      throw detail::run_stop{std::string(what) + " took longer than the deadline",
                             detail::failure_cause::deadline};
    check(*code, what);
  }

  void duplicate(MPI_Comm world) {
    now_ = {"duplicates the communicator with all ranks", {}};
    for (int rank = 0; rank < devices_; ++rank)
      if (rank != rank_)
        now_.waits_for.push_back(rank);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(world, &channel_, &request), "MPI_Comm_idup");
    await(request, "MPI_Comm_idup");
    check(MPI_Comm_set_errhandler(channel_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  [[nodiscard]] plan const& first() const { return plans_.front()->lowered; }

  void refuse_after_failure() const {
    if (failed_ != fine)
      throw run_error("run: rank " + std::to_string(rank_) +
                        " cannot run another step after one that failed; end the process, and "
                        "start all ranks again",
                      failed_);
  }

  //! Compares a plan with that of the other ranks, makes what its steps need, connects.
  //! @param at its number; that of another, which is gone then, or of none.
  template <class Prepare>
  void take(plan work, std::size_t at, Prepare prepare) {
    auto added = std::make_unique<mpi_plan>(mpi_plan{std::move(work)});
    int const number = static_cast<int>(at);
    std::string const name = options_.name + (taken_ == 0 ? "" : "/plan " + std::to_string(taken_));
    ++taken_;
    detail::check_stages(added->lowered, *stages_, rank_);
    detail::agree_on_plan(
      patience_.line, added->lowered, rank_, options_.elements, name, options_.deadline);
    patience_.line.barrier(name + "/agreed", devices_, options_.deadline);
    prepare();
    added->runs = std::make_unique<device>(
      added->lowered, *stages_, rank_, patience_, channel_, memory_, number, options_.guarded);
    now_running_ = nullptr; // memory may have moved
    connect(added->lowered);
    patience_.line.barrier(name + "/connected", devices_, options_.deadline);
    if (at == plans_.size())
      plans_.emplace_back();
    plans_[at] = std::move(added);
  }

  //! An empty message each way between all ranks that will exchange any: MPI connects at first use.
  void connect(plan const& work) {
    std::vector<int> peers;
    for (detail::device_pair const& pair : detail::device_pairs(work)) {
      int const peer = pair.one == rank_ ? pair.other : pair.one;
      if ((pair.one == rank_ || pair.other == rank_) &&
          std::find(connected_.begin(), connected_.end(), peer) == connected_.end())
        peers.push_back(peer);
    }
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
    connected_.insert(connected_.end(), peers.begin(), peers.end());
    now_ = {"has connected to its peers", {}};
  }

  //! Tells the others why and where this rank has stopped, and hears where they have.
  //! @param who what to put before the reason, where it is this rank's own.
  run_error
  conclude(std::string const& who, detail::run_stop const& stop, detail::rank_standing where) {
    where.cause = stop.cause;
    detail::failure_report<Clock, basic_store<Clock>> report(
      patience_.line, options_.name, rank_, std::chrono::seconds(1));
    report.tell((stop.cause == detail::failure_cause::told ? "" : who) + stop.reason, where);
    run_error const failure = report.made("run: ");
    failed_ = failure.device();
    return failure;
  }

  Stages* stages_;
  mpi_options options_;
  detail::mpi_wait<Clock> patience_;
  int rank_ = 0;
  int failed_ = fine;
  detail::rank_standing now_{detail::not_begun, {}}; // before the first step
  int devices_ = 0;
  MPI_Comm channel_ = MPI_COMM_NULL;
  std::vector<int> connected_; // ranks that messages have been exchanged with
  detail::mpi_memory memory_;
  std::vector<std::unique_ptr<mpi_plan>> plans_;
  int taken_ = 0;                   // plans so far, those among them that are gone
  int traces_ = 0;                  // so far
  mpi_plan* now_running_ = nullptr; // the plan of the last step
  detail::carried_totals carried_;
  bool answered_ = false; // for a pass that lasts; of the watchdog
  std::unique_ptr<detail::watchdog<Clock>> watchdog_;
};

} // namespace pipelining::inline v0_3
#endif
