// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What one rank of a plan has of CUDA and NCCL, and what it does with it. Header for
//! pipelining::cuda::nccl_machine.

#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl_messages.cuh>
#include <pipe/cuda/nccl_ranks.cuh>
#include <pipe/cuda/patience.cuh>
#include <pipe/cuda/ranges.cuh>
#include <pipe/cuda/stream_device.cuh>
#include <pipe/plan/describe.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/store.hpp>

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

namespace pipelining::inline v0_1 {
namespace cuda {

namespace detail {

//! The device side of the executor loop with the patience that posting needs.
template <class Stages, class Transport, class Patience>
struct nccl_device : stream_device<Stages, Transport> {
  Patience const& waiting;

  void post(int first, std::span<item const> group) {
    open_range const range = this->board.ranges().open(first);
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
  //! @pre `options.gpu` is current; the other arguments outlive the machine.
  nccl_machine(
    plan_view const& work, Stages& stages, Store& line, int rank, nccl_ranks const& options)
      : work_(work), stages_(stages), line_(line), rank_(rank), options_(options),
        board_(work, rank, options.gpu, {one_stream(), true, options.ranges}),
        messages_(work, rank) {}
  nccl_machine(nccl_machine const&) = delete;
  nccl_machine& operator=(nccl_machine const&) = delete;
  ~nccl_machine() = default;

  //! @brief Makes the communicators and uses every edge once. Collective.
  void connect() {
    messages_.make(waiting(), options_.name, options_.max_blocks);
    if (board_.stream_count() > 1)
      messages_.connect(waiting(), board_.stream_at(1));
    meet("connected");
  }

  //! @brief Runs one iteration and waits for its end.
  //! @param earlier how many there were before.
  void step(int earlier) {
    launch(earlier);
    iteration_end_.record(origin());
    waiting().wait("the iteration", [&] {
      messages_.look();
      return iteration_end_.happened();
    });
  }

  //! @brief Ends the communicators together with the other ranks. Collective.
  void close() {
    iteration_ = graph();
    messages_.close(waiting());
  }

  [[nodiscard]] cudaStream_t origin() const noexcept { return board_.compute(); }

  //! @brief Where this rank stands, for a report.
  [[nodiscard]] std::string standing() const {
    if (iteration_)
      return "runs its iteration as a graph, which does not say where it stands";
    auto const steps = work_.program_of(rank_);
    auto const at = [&](int index) {
      item const& step = steps[static_cast<std::size_t>(index)];
      return " item " + std::to_string(index) + " of " + std::to_string(steps.size()) + ": " +
             describe(step, work_.extents.chunks > 1);
    };
    int unfinished = nothing;
    if (!captured_) {
      try {
        unfinished = board_.first_unfinished(position_);
      } catch (error const&) {
        return "has lost its GPU";
      }
    }
    if (unfinished != nothing)
      return "has not ended" + at(unfinished);
    if (position_ < static_cast<int>(steps.size()))
      return "was to enqueue" + at(position_);
    return "has ended all that it had enqueued";
  }

  //! @brief Ends what is on the streams, whatever it waits for: graphs first.
  //! @return true when the streams are idle; they may be busy for ever otherwise.
  bool abort() noexcept {
    try {
      iteration_ = graph();
      messages_.abort();
      auto const end = Clock::now() + options_.abort_deadline;
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

  [[nodiscard]] patience_type waiting() const { return {line_, options_.deadline}; }

  [[nodiscard]] bool one_stream() const {
    int processors = 0;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, options_.gpu),
          "cudaDeviceGetAttribute");
    return options_.one_message_stream || options_.graph ||
           work_.lanes[rank_] * options_.max_blocks > processors;
  }

  void meet(char const* where) {
    line_.barrier(options_.name + '/' + where, work_.extents.devices, options_.deadline);
  }

  void launch(int earlier) {
    if (!options_.graph || earlier < options_.warm_up) {
      enqueue();
      return;
    }
    if (!iteration_) {
      // A captured message needs its other end captured too.
      meet("capture");
      iteration_ = capture();
      meet("captured");
    }
    iteration_.launch(origin());
  }

  void enqueue() {
    board_.fork();
    patience_type const patient = waiting();
    enqueuing_device own{{work_, rank_, board_, stages_, messages_}, patient};
    int const count = static_cast<int>(work_.program_of(rank_).size());
    for (position_ = 0; position_ < count;)
      position_ = execute_item(work_, rank_, position_, own);
    board_.join();
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
  device_board board_;
  event iteration_end_;
  transport messages_;
  graph iteration_;
  int position_ = 0;      // the item to enqueue next
  bool captured_ = false; // events were last recorded in a capture, and cannot be asked
};

} // namespace cuda
} // namespace pipelining::inline v0_1
