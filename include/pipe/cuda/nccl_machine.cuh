// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One rank of a plan on CUDA and NCCL: its streams, memory and steps. Header for
//! pipelining::cuda::nccl_machine.

#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cluster/gathered_trace.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cuda/checked_messages.cuh>
#include <pipe/cuda/device_board.cuh>
#include <pipe/cuda/enqueuing_place.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/graph_launcher.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl_messages.cuh>
#include <pipe/cuda/nccl_options.cuh>
#include <pipe/cuda/nccl_plan.cuh>
#include <pipe/cuda/ranges.cuh>
#include <pipe/cuda/rank_wait.cuh>
#include <pipe/cuda/shared_device.cuh>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/polling.hpp>
#include <pipe/run/watchdog.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::cuda::detail {

//! The streams, memory, communicators and plans of one rank. Its calls throw; what becomes
//! of a failure is the runner's.
template <class Stages, run_store Store, class Clock>
class nccl_machine {
public:
  //! @param now what the rank does outside of the items of its program, for its report.
  //! @pre `options.gpu` is current; the other arguments outlive the machine.
  nccl_machine(Stages& stages,
               Store& line,
               int rank,
               int devices,
               nccl_options const& options,
               rooms::rank_standing& now)
      : stages_(stages), line_(line), rank_(rank), devices_(devices), options_(options), now_(now),
        shared_(options.gpu), waiting_{line, options.deadline, now, left_},
        messages_(rank, waiting_),
        launcher_(options.graph ? std::make_unique<graph_launcher<Clock>>(options.gpu) : nullptr),
        watchdog_(
          // What else ends a call that lasts, and says more, has had its time by then; without a
          // communicator there is nothing else.
          devices == 1 && options.communicators.empty()
            ? options.deadline
            : detail::both(options.deadline,
                           detail::both(options.abort_deadline, options.abort_deadline)),
          place_.pulse,
          [this] {
            rooms::answer_in_pass(line_, options_.name, rank_, answered_, [this] {
              return place_.in_words(running_->lowered);
            });
          },
          [this] {
            return "nccl: " + rooms::tell_of_hang(
                                line_, options_.name, rank_, place_.in_words(running_->lowered));
          }) {}
  nccl_machine(nccl_machine const&) = delete;
  nccl_machine& operator=(nccl_machine const&) = delete;
  ~nccl_machine() = default;

  //! Takes a plan: makes the communicators that it lacks, and uses every edge once that no
  //! plan before has had. Collective.
  //! @param at the place of another plan, which is gone then, or after all.
  //! @param number of the plan among those that were taken.
  //! @pre no step runs.
  void take(plan work, std::size_t at, int number) {
    running_ = nullptr;
    if (outgrows(work, plans_)) // what is in graphs moves
      for (auto const& each : plans_)
        each->iteration.destroy();
    coming_ = std::make_unique<nccl_plan>(std::move(work), rank_, number, shared_, options_);
    messages_.make(options_, coming_->lanes, number);
    if (coming_->lowered.lanes_of(rank_) > 0)
      messages_.connect(coming_->lanes, coming_->board.stream_at(1));
    meet("connected" + (number == 0 ? std::string() : " for plan " + std::to_string(number)));
    if (at == plans_.size())
      plans_.emplace_back();
    else
      plans_[at]->iteration.destroy();
    plans_[at] = std::move(coming_);
  }
  //! Makes room for later plans. @pre no step runs.
  void reserve(std::int64_t bytes, std::int64_t host_bytes) {
    running_ = nullptr;
    shared_.reserve(bytes, host_bytes);
    if (shared_.moved) // what is in graphs moves
      for (auto const& each : plans_)
        each->iteration.destroy();
  }
  //! Plans that were taken and are there.
  [[nodiscard]] std::size_t plans() const noexcept { return plans_.size(); }
  //! A plan that was taken.
  [[nodiscard]] plan const& taken(std::size_t at) const noexcept { return plans_[at]->lowered; }

  //! @throws std::invalid_argument for a plan that may not follow the last step.
  void check_turn(std::size_t at) const { carried_.check(plans_[at]->lowered); }

  //! Runs one iteration and waits for its end.
  //! @param at the place of its plan.
  void step(std::size_t at) {
    now_.text.clear();
    running_ = plans_[at].get();
    running_->position = running_->launched = 0;
    running_->board.restart();
    auto const begin = Clock::now();
    left_.emplace(options_.deadline, begin);
    messages_.arm(begin);
    run_iteration();
    messages_.disarm();
    messages_.look();
    left_.reset();
    now_.waits_for.clear();
    if (running_->checks)
      trust_messages();
    trust_stages();
    ++running_->steps;
    if (running_->lowered.validation != step_validation::at_once)
      carried_.take(running_->board.slots(running_->lowered, rank_), begins_again());
    now_.text = "is between two steps";
  }

  //! Ends the communicators together with the other ranks. Collective.
  void close() {
    // Ending a communicator waits for nobody, but a rank in its last step still needs it.
    meet("at the end of its last step");
    now_.text = "closes its communicators";
    for (auto const& each : plans_)
      each->iteration.destroy();
    messages_.close();
  }

  //! The times of the passes of all ranks, in seconds since each rank's iteration began.
  //! Collective.
  //! @param number of the iteration, which has ended, among all.
  [[nodiscard]] dynamic_timetable trace(int number) {
    pass_times const& own = *running_->board.times();
    dynamic_timetable found =
      rooms::gather_trace(line_,
                          options_.name + "/times of step " + std::to_string(number) + '/',
                          rank_,
                          running_->lowered,
                          options_.deadline,
                          now_,
                          [&](std::size_t item, bool end) { return own.seconds(item, end, own); });
    now_ = {"is between two steps", {}};
    return found;
  }

  //! The rows of the totals of the last step on the host, until the next call.
  [[nodiscard]] totals rows() {
    return rows_on_host(
      running_->board.slots(running_->lowered, rank_).all_totals(), origin(), rows_);
  }
  //! True when the last step found the optimizer's step of the iteration before wrong.
  [[nodiscard]] bool begins_again() const noexcept {
    return running_ != nullptr && running_->board.begins_again();
  }
  //! True when a step of a plan that is still there has ended.
  [[nodiscard]] bool has_run() const noexcept { return running_ != nullptr; }

  //! The stream of passes, from which a captured graph forks.
  [[nodiscard]] cudaStream_t origin() const noexcept { return shared_.stream_at(0); }

  //! Where this rank stands, for a report.
  //! @param threw an exception has ended its enqueuing, so the item is the one that threw; else it
  //! is the one that the GPU has not ended.
  [[nodiscard]] rooms::rank_standing standing(bool threw) {
    bool const in_program = now_.text.empty() && running_ != nullptr;
    rooms::rank_standing found = !in_program  ? now_
                                 : in_launch_ ? running_->standing_in_launch()
                                              : running_->standing(threw);
    std::vector<int> const& suspects = messages_.suspects();
    found.waits_for.insert(found.waits_for.end(), suspects.begin(), suspects.end());
    return found;
  }

  //! Ends what is on the streams, whatever it waits for: graphs first, but the launch of one
  //! may wait for messages to end.
  //! @return true when the streams are idle; they may be busy for ever otherwise, and communicators
  //! with them.
  bool abort() noexcept {
    try {
      rooms::countdown<Clock> left(options_.abort_deadline);
      if (launcher_ && !launcher_->idle())
        messages_.start_abort();
      bool const launched = !launcher_ || launcher_->end(left);
      if (launched)
        for (auto const& each : plans_)
          each->iteration = graph();
      if (!messages_.abort(left.left()) || !launched)
        return false;
      for (std::size_t index = 0; index < shared_.streams(); ++index)
        if (!rooms::poll_until<Clock>(
              left, [&] { return cudaStreamQuery(shared_.stream_at(index)) != cudaErrorNotReady; }))
          return false;
      (void)cudaGetLastError();
      return true;
    } catch (...) { // what cannot be ended is left to the end of the process
      return false;
    }
  }

private:
  using transport = nccl_messages<Store, Clock>;

  //! Enqueues an iteration and waits for its end, under the eyes of the watchdog.
  void run_iteration() {
    typename rooms::watchdog_for<Clock>::watch const watch(watchdog_);
    if (std::exchange(shared_.moved, false))
      rooms::tell_moved(stages_, running_->lowered, rank_);
    launch();
    wait_until([&] { return launched() && iteration_end_.happened(); });
  }

  //! Looks for failures while it waits in an iteration.
  template <class Done>
  void wait_until(Done done) {
    waiting_.wait("the iteration", [&] {
      if (done())
        return true;
      look();
      return false;
    });
  }

  //! True when the iteration is on the streams. Before, nothing may be asked of the GPU.
  //! @throws error when its launch has failed.
  [[nodiscard]] bool launched() {
    if (!in_launch_)
      return true;
    if (!launcher_->idle())
      return false;
    in_launch_ = false;
    launcher_->check();
    running_->position = running_->launched = running_->items();
    return true;
  }

  //! Throws when the GPU or a communicator has failed. Once a GPU is lost it tells nothing any
  //! more, so its events are asked while it works.
  void look() {
    place_.leave();
    messages_.look();
    running_->board.look(running_->launched);
  }

  //! Ends the run if a message of the step that has ended was not as expected.
  void trust_messages() {
    std::optional<message_checks::mismatch> const found = running_->checks->first_mismatch();
    if (!found)
      return;
    now_.text = "has found it at" + running_->item_in_words(found->item_index);
    throw detail::run_stop{found->text};
  }

  //! In the checked mode, ends the run if a stage has written outside its slots.
  void trust_stages() {
    if (running_->board.guards() == nullptr)
      return;
    try {
      running_->board.guards()->check_all(origin());
    } catch (guard_error const& found) {
      now_.text = "has ended the step";
      throw detail::run_stop{found.what()};
    }
  }

  //! Waits until all ranks have come to the same point, which each comes to once.
  void meet(std::string const& where) {
    std::string const key = options_.name + '/' + where + '/';
    line_.set(key + std::to_string(rank_), "here");
    for (int other = 0; other < devices_; ++other) {
      if (other == rank_)
        continue;
      now_ = {"waits for rank " + std::to_string(other) + " to be " + where, {other}};
      place_.leave();
      (void)line_.get(key + std::to_string(other), left_ ? left_->left() : options_.deadline);
    }
    now_.text.clear();
  }

  void launch() {
    nccl_plan& run = *running_;
    if (!options_.graph || run.steps < options_.warm_up) {
      enqueue(false);
      iteration_end_.record(origin());
      return;
    }
    if (!run.iteration) {
      // A captured message needs its other end captured too.
      std::string const which =
        run.number + run.captures == 0
          ? ""
          : " graph " + std::to_string(run.captures) + " of plan " + std::to_string(run.number);
      ++run.captures;
      meet("ready to capture" + which);
      run.iteration = captured(origin(), [this] { enqueue_captured(); });
      meet("ready to launch" + which);
    }
    in_launch_ = true;
    launcher_->begin(run.iteration, origin(), iteration_end_);
  }

  void enqueue(bool captured) {
    nccl_plan& run = *running_;
    if (run.checks)
      run.checks->begin(origin());
    bool const validated = run.lowered.validation != step_validation::at_once;
    if (validated) {
      std::span<std::byte const> const rows =
        carried_.hand_on(run.lowered); // other ranks get theirs from the last one
      run.board.decisions()->begin(run.board.slots(run.lowered, rank_),
                                   rank_ + 1 == devices_ ? rows : rows.first(0),
                                   origin());
    }
    run.board.fork(captured);
    messages_.carry(run.lanes);
    stream_device<Stages, transport> own{run.lowered, rank_, run.board, stages_, messages_};
    (void)rooms::advance(run.lowered, rank_, run.position, own, [&](auto& device, int next) {
      place_.leave();
      run.launched = captured ? 0 : next;
      if (next == run.items())
        return true;
      messages_.check_guard();
      if (!captured)
        wait_until([&] { return run.board.has_room_for(next); });
      if (validated)
        wait_until([&] { return device.knows_enough_for(run.at(next)); });
      (void)left_->is_over(); // a look in time
      place_.enter(rank_, next);
      return true;
    });
    if (run.checks)
      run.checks->end(origin());
  }

  //! Enqueues into a capture. Where that fails it waits, before communicators are aborted: a thread
  //! of NCCL may still add a group to it, and that waits for nobody.
  void enqueue_captured() {
    try {
      enqueue(true);
    } catch (...) {
      try {
        rooms::countdown<Clock> left(options_.abort_deadline);
        (void)rooms::poll_until<Clock>(left, [this] { return messages_.quiet(); });
      } catch (detail::run_stop const&) { // the guard ends them
      }
      try {
        running_->board.join();
      } catch (error const&) { // then the capture cannot end well either
      }
      throw;
    }
  }

  Stages& stages_;
  Store& line_;
  int rank_;
  int devices_;
  nccl_options const& options_;
  rooms::rank_standing& now_;
  shared_device shared_;
  event iteration_end_;
  std::optional<rooms::countdown<Clock>> left_; // for all waits of a step together
  typename transport::wait_type waiting_;
  transport messages_;
  std::vector<std::unique_ptr<nccl_plan>> plans_; // with graphs, which end before communicators
  // Not of a scope: to free its memory is to wait for messages that may never end.
  std::unique_ptr<nccl_plan> coming_;
  nccl_plan* running_ = nullptr;                    // the plan of the last step
  std::unique_ptr<graph_launcher<Clock>> launcher_; // none where there are no graphs
  rooms::carried_totals carried_;
  bool in_launch_ = false;      // of a graph, by the launcher
  std::vector<std::byte> rows_; // of the totals, for who asks
  detail::enqueuing_place place_;
  bool answered_ = false;               // for an item that lasts; of the watchdog
  rooms::watchdog_for<Clock> watchdog_; // the first to end
};

} // namespace pipelining::inline v0_3::cuda::detail
