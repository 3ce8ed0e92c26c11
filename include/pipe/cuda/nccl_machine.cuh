// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What one rank of a plan has of CUDA and NCCL, and what it does with it. Header for
//! pipelining::cuda::nccl_machine.

#include <pipe/cuda/checked_messages.cuh>
#include <pipe/cuda/graph_launcher.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/message_header.cuh>
#include <pipe/cuda/nccl_messages.cuh>
#include <pipe/cuda/nccl_ranks.cuh>
#include <pipe/cuda/patience.cuh>
#include <pipe/cuda/ranges.cuh>
#include <pipe/cuda/stream_device.cuh>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/report/describe.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/failure_origin.hpp>
#include <pipe/run/store.hpp>
#include <pipe/run/trace_of.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace pipelining::inline v0_2 {
namespace cuda {

namespace detail {

//! A number as text, with all its digits.
inline void append_number(std::string& text, double number) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
  text += ' ';
}

//! Such numbers, one after the other.
class number_reader {
public:
  explicit number_reader(std::string text) : text_(std::move(text)) {}

  //! @throws stop where there are no more: the other rank has sent something else.
  [[nodiscard]] double next() {
    double number = 0;
    char const* const end = text_.data() + text_.size();
    auto const [behind, error] = std::from_chars(text_.data() + at_, end, number);
    if (error != std::errc() || behind == end)
      throw stop{"a rank has sent times of other passes than those of the plan"};
    at_ = static_cast<std::size_t>(behind - text_.data()) + 1;
    return number;
  }

private:
  std::string text_;
  std::size_t at_ = 0;
};

//! The device side of the executor loop with the patience that posting needs.
template <class Stages, class Transport, class Patience>
struct nccl_device : stream_device<Stages, Transport> {
  Patience const& waiting;

  void post(int first, std::span<item const> group) {
    open_range const range = this->board.ranges().open(first);
    for (item const& step : group)
      this->poison(step);
    this->transport.post(*this, first, group);
  }
};

} // namespace detail

//! @brief The streams, memory, communicators and graph of one rank. Its calls throw; what becomes
//! of a failure is the runner's.
//!
//! Destroyed from the end: the graph before the communicators, which wait for the graphs that use
//! them.
template <class Stages, run_store Store, class Clock>
class nccl_machine {
public:
  //! @param now what the rank does outside of the items of its program, for its report.
  //! @pre `options.gpu` is current; the other arguments outlive the machine.
  nccl_machine(plan_view const& work,
               Stages& stages,
               Store& line,
               int rank,
               nccl_ranks const& options,
               rank_standing& now)
      : work_(work), stages_(stages), line_(line), rank_(rank), options_(options), now_(now),
        board_(work,
               rank,
               options.gpu,
               {one_stream(),
                options.watched,
                options.watched && options.graph,
                options.ranges,
                options.run_ahead,
                options.timed}),
        checks_(options.checked
                  ? std::make_unique<message_checks>(work, rank, detail::kernels_for_checks())
                  : nullptr),
        messages_(work, rank, checks_.get()),
        launcher_(options.graph ? std::make_unique<graph_launcher<Clock>>(options.gpu) : nullptr) {}
  nccl_machine(nccl_machine const&) = delete;
  nccl_machine& operator=(nccl_machine const&) = delete;
  ~nccl_machine() = default;

  //! @brief Makes the communicators and uses every edge once. Collective.
  void connect() {
    if (options_.guarded)
      board_.guard_slots(work_, rank_);
    messages_.make(waiting(), options_);
    if (work_.lanes[rank_] > 0)
      messages_.connect(waiting(), board_.stream_at(1));
    meet("connected");
  }

  //! @brief Runs one iteration and waits for its end.
  //! @param earlier how many there were before.
  void step(int earlier) {
    now_.text.clear();
    position_ = launched_ = 0;
    board_.restart();
    latest_ = Clock::now() + options_.deadline;
    // Later than this rank itself would end the step, if it is not in a call that does not return.
    messages_.arm(latest_ + options_.abort_deadline / 4);
    launch(earlier);
    waiting().wait("the iteration", [&] {
      if (launched() && iteration_end_.happened())
        return true;
      look();
      return false;
    });
    messages_.disarm();
    messages_.look();
    latest_ = Clock::time_point::max();
    now_.waits_for.clear();
    if (checks_)
      trust_messages();
    trust_stages();
    now_.text = "is between two steps";
  }

  //! @brief Ends the communicators together with the other ranks. Collective.
  void close() {
    // Ending a communicator waits for nobody, but a rank in its last step still needs it.
    meet("at the end of its last step");
    now_.text = "closes its communicators";
    iteration_.destroy();
    messages_.close(waiting());
  }

  //! @brief The times of the passes of all ranks, in seconds since each rank's iteration began.
  //! Collective.
  //! @param number of the iteration, which has ended.
  [[nodiscard]] dynamic_timetable trace(plan const& ran, int number) {
    pass_times const& own = *board_.times();
    std::string text;
    static_cast<void>(trace_of(ran, [&](int device, std::size_t item, bool end) {
      if (device == rank_)
        detail::append_number(text, own.seconds(item, end, own));
      return 0;
    }));
    std::string const key = options_.name + "/times of step " + std::to_string(number) + '/';
    line_.set(key + std::to_string(rank_), text);
    std::vector<detail::number_reader> of;
    for (int other = 0; other < work_.extents.devices; ++other) {
      now_ = {"waits for the times of rank " + std::to_string(other), {other}};
      of.emplace_back(line_.get(key + std::to_string(other), options_.deadline));
    }
    now_ = {"is between two steps", {}};
    return trace_of(ran, [&](int device, std::size_t, bool) {
      return of[static_cast<std::size_t>(device)].next();
    });
  }

  //! The stream of passes, from which a captured graph forks.
  [[nodiscard]] cudaStream_t origin() const noexcept { return board_.compute(); }

  //! @brief Where this rank stands, for a report.
  //! @param threw an exception has ended its enqueuing, so the item is the one that threw; else it
  //! is the one that the GPU has not ended.
  [[nodiscard]] rank_standing standing(bool threw) {
    rank_standing found = now_.text.empty() ? standing_in_program(threw) : now_;
    std::vector<int> const& suspects = messages_.suspects();
    found.waits_for.insert(found.waits_for.end(), suspects.begin(), suspects.end());
    return found;
  }

  //! @brief Ends what is on the streams, whatever it waits for: graphs first, but the launch of one
  //! may wait for messages to end.
  //! @return true when the streams are idle; they may be busy for ever otherwise, and communicators
  //! with them.
  bool abort() noexcept {
    try {
      auto const end = Clock::now() + options_.abort_deadline;
      if (launcher_ && !launcher_->idle())
        messages_.start_abort();
      bool const launched = !launcher_ || launcher_->end(end);
      if (launched)
        iteration_ = graph();
      if (!messages_.abort(end - Clock::now()) || !launched)
        return false;
      for (int index = 0; index < board_.stream_count(); ++index)
        while (cudaStreamQuery(board_.stream_at(index)) == cudaErrorNotReady) {
          if (Clock::now() >= end)
            return false;
          Clock::sleep_for(std::chrono::microseconds(100));
        }
      (void)cudaGetLastError();
      return true;
    } catch (...) { // what cannot be ended is left to the end of the process
      return false;
    }
  }

private:
  using transport = nccl_messages<Store, Clock>;
  using patience_type = typename transport::patience_type;
  using enqueuing_device = detail::nccl_device<Stages, transport, patience_type>;

  [[nodiscard]] patience_type waiting() const { return {line_, options_.deadline, now_, latest_}; }

  //! True when the iteration is on the streams. Before, nothing may be asked of the GPU.
  //! @throws error when its launch has failed.
  [[nodiscard]] bool launched() {
    if (!in_launch_)
      return true;
    if (!launcher_->idle())
      return false;
    in_launch_ = false;
    launcher_->check();
    position_ = launched_ = static_cast<int>(work_.program_of(rank_).size());
    return true;
  }

  //! Throws when the GPU or a communicator has failed. Once a GPU is lost it tells nothing any
  //! more, so its events are asked while it works.
  void look() {
    messages_.look();
    board_.look(launched_);
  }

  [[nodiscard]] rank_standing standing_in_program(bool threw) {
    if (in_launch_)
      return standing_in_launch();
    bool lost = false;
    try {
      board_.look(launched_);
    } catch (error const&) {
      lost = true;
    }
    auto const steps = work_.program_of(rank_);
    int const count = static_cast<int>(steps.size());
    int const unfinished = std::min(board_.first_unfinished(), position_);
    auto const named = [&](int at) { return item_in_words(at); };
    std::string text;
    if (threw && position_ < count)
      text = "was to enqueue" + named(position_) + (lost ? ", and " : "");
    if (lost)
      text += "has lost its GPU";
    if (text.empty() || (lost && unfinished < launched_)) {
      text += lost ? ", which " : "";
      if (unfinished == count)
        text += options_.watched ? "has ended all items of its program"
                                 : "is somewhere in its iteration, which is not watched";
      else
        text += (unfinished < launched_ ? "has not ended" : "was to enqueue") + named(unfinished);
    }
    int const at = threw && position_ < count ? position_ : unfinished;
    if (at < count && steps[static_cast<std::size_t>(at)].what != operation::run)
      return {text, {steps[static_cast<std::size_t>(at)].peer}};
    return {text, {}};
  }

  //! The GPU is not asked, so the rank may be at any item, and wait for any of its peers.
  [[nodiscard]] rank_standing standing_in_launch() const {
    rank_standing found{"is in the launch of its graph, at" + item_in_words(0) + ", or behind it",
                        {}};
    for (item const& step : work_.program_of(rank_))
      if (step.what != operation::run &&
          std::find(found.waits_for.begin(), found.waits_for.end(), step.peer) ==
            found.waits_for.end())
        found.waits_for.push_back(step.peer);
    return found;
  }

  [[nodiscard]] std::string item_in_words(int at) const {
    auto const steps = work_.program_of(rank_);
    return " item " + std::to_string(at) + " of " + std::to_string(steps.size()) + ": " +
           describe(steps[static_cast<std::size_t>(at)], work_.extents.chunks > 1);
  }

  //! Ends the run if a message of the step that has ended was not as expected.
  void trust_messages() {
    std::optional<message_checks::mismatch> const found = checks_->first_mismatch();
    if (!found)
      return;
    now_.text = "has found it at" + item_in_words(found->item_index);
    throw detail::stop{found->text};
  }

  //! In the checked mode, ends the run if a stage has written beside its slots.
  void trust_stages() {
    if (board_.guards() == nullptr)
      return;
    try {
      board_.guards()->check_all(origin());
    } catch (guard_error const& found) {
      now_.text = "has ended the step";
      throw detail::stop{found.what()};
    }
  }

  //! @throws std::invalid_argument where not even one lane fits beside the program's kernels.
  [[nodiscard]] bool one_stream() const {
    int processors = 0;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, options_.gpu),
          "cudaDeviceGetAttribute");
    detail::check_room(options_, work_.lanes[rank_], processors);
    int const blocks = work_.lanes[rank_] * detail::most_blocks(options_.max_blocks) +
                       detail::registered_blocks(options_);
    return options_.one_message_stream || options_.graph || blocks > processors;
  }

  //! Waits until all ranks have come to the same point, which each comes to once.
  void meet(std::string const& where) {
    std::string const key = options_.name + '/' + where + '/';
    line_.set(key + std::to_string(rank_), "here");
    for (int other = 0; other < work_.extents.devices; ++other) {
      if (other == rank_)
        continue;
      now_ = {"waits for rank " + std::to_string(other) + " to be " + where, {other}};
      (void)line_.get(
        key + std::to_string(other),
        std::min<std::chrono::nanoseconds>(options_.deadline, latest_ - Clock::now()));
    }
    now_.text.clear();
  }

  void launch(int earlier) {
    if (!options_.graph || earlier < options_.warm_up) {
      enqueue(false);
      iteration_end_.record(origin());
      return;
    }
    if (!iteration_) {
      // A captured message needs its other end captured too.
      meet("ready to capture");
      iteration_ = capture();
      meet("ready to launch");
    }
    in_launch_ = true;
    launcher_->begin(iteration_, origin(), iteration_end_);
  }

  void enqueue(bool captured) {
    if (checks_)
      checks_->begin(origin());
    board_.fork(captured);
    patience_type const patient = waiting();
    enqueuing_device own{{work_, rank_, board_, stages_, messages_}, patient};
    int const count = static_cast<int>(work_.program_of(rank_).size());
    while (position_ < count) {
      messages_.check_guard();
      if (!captured)
        patient.wait("the iteration", [&] {
          if (board_.has_room_for(position_))
            return true;
          look();
          return false;
        });
      position_ = execute_item(work_, rank_, position_, own);
      launched_ = captured ? 0 : position_;
    }
    board_.join();
    if (checks_)
      checks_->end(origin());
  }

  [[nodiscard]] graph capture() {
    check(cudaStreamBeginCapture(origin(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    cudaGraph_t made = nullptr;
    try {
      enqueue(true);
    } catch (...) {
      // Ends the capture whatever state it is in, before communicators are aborted. A thread of
      // NCCL may still add a group to it; that waits for nobody.
      try {
        auto const end = Clock::now() + options_.abort_deadline;
        while (!messages_.quiet() && Clock::now() < end)
          Clock::sleep_for(std::chrono::microseconds(20));
      } catch (detail::stop const&) { // the guard ends them
      }
      try {
        board_.join();
      } catch (error const&) { // then the capture cannot end well either
      }
      if (cudaStreamEndCapture(origin(), &made) == cudaSuccess)
        (void)cudaGraphDestroy(made);
      (void)cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(origin(), &made), "cudaStreamEndCapture");
    return graph(made);
  }

  plan_view work_;
  Stages& stages_;
  Store& line_;
  int rank_;
  nccl_ranks const& options_;
  rank_standing& now_;
  device_board board_;
  event iteration_end_;
  std::unique_ptr<message_checks> checks_;
  transport messages_;
  graph iteration_;
  std::unique_ptr<graph_launcher<Clock>> launcher_; // none where there are no graphs
  bool in_launch_ = false;                          // of a graph, by the launcher
  typename Clock::time_point latest_ = Clock::time_point::max(); // the end of the step's waits
  int position_ = 0;                                             // the item to enqueue next
  int launched_ = 0; // the items that are on the streams
};

} // namespace cuda
} // namespace pipelining::inline v0_2
