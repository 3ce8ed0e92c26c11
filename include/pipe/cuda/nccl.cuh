// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A plan on processes with one GPU each. Header for pipelining::cuda::nccl_runner. Needs
//! <nccl.h>; link `pipelining::nccl`.

#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl_error.cuh>
#include <pipe/cuda/nccl_messages.cuh>
#include <pipe/cuda/patience.cuh>
#include <pipe/cuda/stream_device.cuh>
#include <pipe/plan/describe.hpp>
#include <pipe/plan/difference.hpp>
#include <pipe/plan/fingerprint.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/check.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/store.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {
namespace cuda {

//! @brief How ranks with one GPU each run a plan.
struct nccl_ranks {
  int gpu = 0; //!< the CUDA device of this process, such as launch_environment::local_rank
  //! Launch the whole iteration as one CUDA graph, captured at the first step after `warm_up` eager
  //! ones. The same on all ranks.
  bool graph = false;
  int warm_up = 2;
  //! The longest that a step, a connection or another wait for a rank may take.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  //! After a failure: the longest that the streams of this rank may take to become idle.
  std::chrono::nanoseconds abort_deadline = std::chrono::seconds(10);
  //! Blocks of a kernel of NCCL at most: each holds an SM while it waits. 0 leaves it to NCCL.
  int max_blocks = 8;
  //! All messages of this rank go through one stream, in the order of the plan, so that one kernel
  //! of NCCL at most is on the GPU. Chosen by itself for graphs, whose branches have no order, and
  //! where the lanes' kernels do not all fit on the GPU.
  bool one_message_stream = false;
  //! The types of the elements in messages, such as "bf16"; compared between ranks.
  std::string elements = {};
  //! Tells the runners of one store apart; the same on all ranks, and used once.
  std::string name = "run";
};

namespace detail {

//! The rank that the reason of a failure names first, or `otherwise`.
[[nodiscard]] inline int failed_rank(std::string_view reason, int otherwise) {
  constexpr std::string_view word = "rank ";
  std::size_t const found = reason.find(word);
  if (found != std::string_view::npos)
    (void)std::from_chars(
      reason.data() + found + word.size(), reason.data() + reason.size(), otherwise);
  return otherwise;
}

//! What makes NCCL and this runner wait for each other in circles, or mixes two versions of NCCL.
inline void check_environment() {
  int version = 0;
  cuda::check(ncclGetVersion(&version), "ncclGetVersion");
  if (version / 100 != NCCL_VERSION_CODE / 100)
    throw std::invalid_argument("nccl: compiled with version " + std::to_string(NCCL_VERSION_CODE) +
                                ", but running with " + std::to_string(version) +
                                "; major and minor must be equal");
  auto const is = [](char const* name, std::string_view value) {
    char const* const text = std::getenv(name);
    return text != nullptr && value == text;
  };
  if (is("NCCL_LAUNCH_MODE", "GROUP"))
    throw std::invalid_argument("nccl: NCCL_LAUNCH_MODE=GROUP lets ranks wait for each other at "
                                "every launch; unset it");
  if (is("CUDA_LAUNCH_BLOCKING", "1"))
    throw std::invalid_argument("nccl: CUDA_LAUNCH_BLOCKING=1 lets the host wait for a message "
                                "before it posts the next one; unset it");
}

//! The device side of the executor loop with the patience that posting needs.
template <class Stages, class Transport, class Patience>
struct nccl_device : stream_device<Stages, Transport> {
  Patience const& waiting;

  void post(int first, std::span<item const> group) { this->transport.post(*this, first, group); }
};

} // namespace detail

//! @brief Runs the program of one device of a plan on the GPU of this process; one process per
//! device, joined by NCCL.
//!
//! The constructor is collective: ranks make their communicators and connect every edge, and
//! nothing is set up lazily afterwards. One thread enqueues in the order of the plan; no call waits
//! for another rank without a deadline.
//!
//! When a stage throws, CUDA or NCCL reports an error, another rank fails or a deadline passes, the
//! rank stops enqueuing, tells the others through the store, destroys its graph, aborts its
//! communicators and waits for its streams with a second deadline. Then `step` throws a run_error
//! with the reason and with the item at which this rank stood. The runner is of no more use after
//! that; report, and end the process.
//!
//! @tparam Stages as for thread_runner. Stages of other devices are never called. They enqueue on
//! the stream of their context only, do not synchronise and allocate nothing on the device.
template <class Stages, run_store Store = store, class Clock = polling_clock>
class nccl_runner {
public:
  //! @param work the plan, the same on all ranks. @param stages, line must outlive the runner.
  //! @param rank the device of the plan that this process is.
  //! @throws std::invalid_argument when stages, rank or environment do not suit; run_error when a
  //! rank fails or is missing.
  nccl_runner(plan work, Stages& stages, Store& line, int rank, nccl_ranks options = {})
      : plan_(std::move(work)), view_(plan_.view()), stages_(stages), line_(line), rank_(rank),
        options_(std::move(options)), exceptions_(std::uncaught_exceptions()) {
    if (rank < 0 || rank >= view_.extents.devices)
      throw std::invalid_argument("nccl: the plan has " + std::to_string(view_.extents.devices) +
                                  " devices, but this is rank " + std::to_string(rank) +
                                  "; start one process per device");
    check_stages(view_, stages_, rank_);
    detail::check_environment();
    try {
      agree();
      current_device const scope(options_.gpu);
      machine_ =
        std::make_unique<machinery>(view_, rank_, options_.gpu, board_options{one_stream(), true});
      machine_->messages.make(waiting(), options_.name, options_.max_blocks);
      if (machine_->board.stream_count() > 1)
        machine_->messages.connect(waiting(), machine_->board.stream_at(1));
      meet("connected");
    } catch (...) {
      fail("could not connect");
    }
  }
  nccl_runner(nccl_runner const&) = delete;
  nccl_runner& operator=(nccl_runner const&) = delete;

  //! @brief Closes, if nothing has failed; else frees what can be freed without waiting.
  ~nccl_runner() {
    if (machine_ && !failed_) {
      try {
        if (std::uncaught_exceptions() > exceptions_)
          throw detail::stop{"left its runner by an exception"};
        close();
      } catch (...) {
        try {
          fail("could not close");
        } catch (...) { // told to the other ranks; a destructor has nobody else to tell
        }
      }
    }
  }

  //! @brief Runs this rank's passes of the plan once and waits for their end.
  //! @throws run_error on every rank when one fails; where a stage has thrown, its exception is
  //! nested.
  //! @sync returns when this rank's streams have ended the iteration; others may still run.
  void step() {
    if (failed_ || !machine_)
      throw run_error("nccl: rank " + std::to_string(rank_) +
                        " cannot run another step after one that failed, or after close()",
                      rank_);
    current_device const scope(options_.gpu);
    try {
      launch();
      machine_->iteration_end.record(origin());
      waiting().wait("the iteration", [&] {
        machine_->messages.look();
        return machine_->iteration_end.happened();
      });
    } catch (...) {
      fail("failed");
    }
    ++steps_;
  }

  //! @brief Ends the communicators together with the other ranks. Collective.
  void close() {
    if (!machine_ || failed_)
      return;
    current_device const scope(options_.gpu);
    try {
      machine_->iteration = graph();
      machine_->messages.close(waiting());
    } catch (...) {
      fail("could not close");
    }
    machine_.reset();
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  //! @brief The stream on which an iteration starts and ends: the compute stream.
  [[nodiscard]] cudaStream_t origin() const noexcept { return machine_->board.compute(); }

private:
  using transport = nccl_messages<Store, Clock>;
  using patience_type = typename transport::patience_type;
  using enqueuing_device = detail::nccl_device<Stages, transport, patience_type>;

  // Everything of CUDA and NCCL. Destroyed from the end: the graph before the communicators.
  struct machinery {
    device_board board;
    event iteration_end;
    transport messages;
    graph iteration;

    machinery(plan_view const& work, int rank, int gpu, board_options chosen)
        : board(work, rank, gpu, chosen), messages(work, rank) {}
  };

  [[nodiscard]] patience_type waiting() const { return {line_, options_.deadline}; }

  [[nodiscard]] bool one_stream() const {
    int processors = 0;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, options_.gpu),
          "cudaDeviceGetAttribute");
    return options_.one_message_stream || options_.graph ||
           view_.lanes[rank_] * options_.max_blocks > processors;
  }

  //! Compares the plan of this rank with that of rank 0.
  void agree() {
    plan_summary mine = summarise(view_, options_.elements);
    std::string const key = options_.name + "/plan";
    if (rank_ == 0) {
      line_.set(key, std::string(reinterpret_cast<char const*>(mine.words), sizeof mine.words));
      return;
    }
    std::string const text = line_.get(key, options_.deadline);
    plan_summary theirs;
    if (text.size() != sizeof theirs.words)
      throw detail::stop{"rank 0 has another version of the library"};
    std::memcpy(theirs.words, text.data(), sizeof theirs.words);
    std::string const difference = first_difference(0, theirs, rank_, mine);
    if (!difference.empty())
      throw detail::stop{difference + "; start all ranks with the same program and options"};
  }

  void meet(char const* where) {
    line_.barrier(options_.name + '/' + where, view_.extents.devices, options_.deadline);
  }

  void launch() {
    if (!options_.graph || steps_ < options_.warm_up) {
      enqueue();
      return;
    }
    if (!machine_->iteration) {
      // A captured message needs its other end captured too.
      meet("capture");
      machine_->iteration = capture();
      meet("captured");
    }
    machine_->iteration.launch(origin());
  }

  void enqueue() {
    machine_->board.fork();
    patience_type const patient = waiting();
    enqueuing_device own{{view_, rank_, machine_->board, stages_, machine_->messages}, patient};
    int const count = static_cast<int>(view_.program_of(rank_).size());
    for (position_ = 0; position_ < count;)
      position_ = execute_item(view_, rank_, position_, own);
    machine_->board.join();
  }

  [[nodiscard]] graph capture() {
    captured_ = true;
    check(cudaStreamBeginCapture(origin(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    cudaGraph_t made = nullptr;
    try {
      enqueue();
    } catch (...) {
      // Ends the capture whatever state it is in, before communicators are aborted.
      try {
        machine_->board.join();
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

  //! Where this rank stands, for the report.
  [[nodiscard]] std::string standing() const {
    std::string const who = "\n  rank " + std::to_string(rank_);
    if (!machine_)
      return who + " has not begun";
    if (machine_->iteration)
      return who + " runs its iteration as a graph, which does not say where it stands";
    auto const steps = view_.program_of(rank_);
    auto const at = [&](int index) {
      item const& step = steps[static_cast<std::size_t>(index)];
      return " item " + std::to_string(index) + " of " + std::to_string(steps.size()) + ": " +
             describe(step, view_.extents.chunks > 1);
    };
    int unfinished = nothing;
    if (!captured_) {
      try {
        unfinished = machine_->board.first_unfinished(position_);
      } catch (error const&) {
        return who + " has lost its GPU";
      }
    }
    if (unfinished != nothing)
      return who + " has not ended" + at(unfinished);
    if (position_ < static_cast<int>(steps.size()))
      return who + " was to enqueue" + at(position_);
    return who + " has ended all that it had enqueued";
  }

  //! Turns the exception in flight into the failure of the run, and throws it.
  [[noreturn]] void fail(char const* what) {
    std::string const who = "rank " + std::to_string(rank_) + ' ' + what + ": ";
    std::string reason;
    bool own = true;
    bool nested = false;
    try {
      throw;
    } catch (detail::stop const& stopped) {
      own = stopped.own;
      reason = own ? who + stopped.reason : stopped.reason;
    } catch (std::exception const& cause) {
      // A wait in the store ends with the reason of another rank, and what comes after that
      // reason is its consequence.
      std::optional<std::string> const told = line_.failure();
      own = !told;
      nested = own;
      reason = own ? who + cause.what() : *told;
    } catch (...) {
      nested = true;
      reason = who + "an exception of a type that is no std::exception";
    }
    failed_ = true;
    std::string const place = standing();
    if (own)
      line_.abort(reason + place);
    end_everything();
    // Freeing would wait for streams that never end.
    if (stuck_)
      (void)machine_.release();
    run_error const failure("nccl: " + reason + (told_place(reason) ? std::string() : place) +
                              (stuck_ ? "\n  its streams are still busy; end the process" : ""),
                            detail::failed_rank(reason, rank_));
    if (nested)
      std::throw_with_nested(failure);
    throw failure;
  }
  //! The reason of this rank came back through the store with its place.
  [[nodiscard]] bool told_place(std::string const& reason) const {
    return reason.find("\n  rank " + std::to_string(rank_) + ' ') != std::string::npos;
  }

  //! Ends what is on the streams, whatever it waits for: graphs first, since a communicator waits
  //! for the graphs that use it.
  void end_everything() noexcept {
    if (!machine_)
      return;
    stuck_ = true;
    try {
      machine_->iteration = graph();
      machine_->messages.abort();
      auto const end = Clock::now() + options_.abort_deadline;
      for (int index = 0; index < machine_->board.stream_count(); ++index)
        while (cudaStreamQuery(machine_->board.stream_at(index)) == cudaErrorNotReady) {
          if (Clock::now() >= end)
            return;
          Clock::sleep_for(std::chrono::microseconds(100));
        }
      (void)cudaGetLastError();
      stuck_ = false;
    } catch (...) { // what cannot be ended is left to the end of the process
    }
  }

  plan plan_;
  plan_view view_;
  Stages& stages_;
  Store& line_;
  int rank_;
  nccl_ranks options_;
  int exceptions_; // in flight when the runner was made
  std::unique_ptr<machinery> machine_;
  int position_ = 0; // the item to enqueue next
  int steps_ = 0;
  bool captured_ = false; // events were last recorded in a capture, and cannot be asked
  bool failed_ = false;
  bool stuck_ = false;
};

} // namespace cuda
} // namespace pipelining::inline v0_1
