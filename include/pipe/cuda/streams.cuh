// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A plan on the CUDA devices of one process. Header for pipelining::cuda::stream_runner.

#include <pipe/core/shape.hpp>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/peer_copies.cuh>
#include <pipe/cuda/stream_device.cuh>
#include <pipe/cuda/wait.cuh>
#include <pipe/plan/describe.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/check.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/execute.hpp>

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {
namespace cuda {

//! @brief How the devices of one process run a plan.
struct streams {
  //! The CUDA device of every device of the plan; empty: all on device 0, side by side on streams
  //! of their own.
  std::vector<int> gpus{};
  //! Launch the whole iteration as one CUDA graph, captured at the first step after `warm_up` eager
  //! ones.
  bool graph = false;
  int warm_up = 2;
  //! The longest that one iteration may take.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
};

//! @brief Runs a plan on streams: several devices of one process, or several virtual devices on
//! one.
//!
//! One thread enqueues everything in one order that all devices' programs are parts of; nothing
//! waits on the host before the end of the iteration. Streams, events and memory are made once; a
//! step allocates nothing.
//!
//! A stage enqueues on the stream of its context only, does not synchronise and allocates nothing
//! on the device.
template <class Stages, class Clock = polling_clock>
class stream_runner {
public:
  //! @throws std::invalid_argument when the stages do not suit the plan; error when CUDA does.
  stream_runner(plan work, Stages& stages, streams options = {})
      : plan_(std::move(work)), view_(plan_.view()), stages_(stages), options_(std::move(options)) {
    check_stages(view_, stages_);
    if (options_.gpus.empty())
      options_.gpus.assign(static_cast<std::size_t>(view_.extents.devices), 0);
    if (options_.gpus.size() != static_cast<std::size_t>(view_.extents.devices))
      throw std::invalid_argument("cuda: the plan has " + std::to_string(view_.extents.devices) +
                                  " devices, but " + std::to_string(options_.gpus.size()) +
                                  " CUDA devices were named");
    boards_.reserve(options_.gpus.size());
    for (int device = 0; device < view_.extents.devices; ++device)
      boards_.emplace_back(view_, device, options_.gpus[static_cast<std::size_t>(device)]);
    order_ = drained_order(view_);
    transport_.emplace(view_, std::span(boards_));
    iteration_end_.emplace();
  }

  //! @brief Runs every pass of the plan once and waits for its end.
  //! @throws run_error past the deadline; error when CUDA reports one; what a stage throws while it
  //! enqueues.
  void step() {
    launch();
    iteration_end_->record(origin());
    bool const ended =
      wait_for_event<Clock>(*iteration_end_, options_.deadline, [] { return false; });
    if (!ended)
      throw run_error("cuda: the iteration has not ended before its deadline", 0);
    ++steps_;
  }

  //! @brief Enqueues one iteration without waiting; the stream to wait on is `origin()`.
  void launch() {
    if (options_.graph && steps_ >= options_.warm_up) {
      if (!graph_)
        graph_ = capture();
      graph_.launch(origin());
    } else {
      enqueue();
    }
  }

  //! @brief The stream on which an iteration starts and ends: the compute stream of device 0.
  [[nodiscard]] cudaStream_t origin() const noexcept { return boards_.front().compute(); }

private:
  using enqueuing_device = stream_device<Stages, peer_copies>;

  void enqueue() {
    spread();
    std::vector<int>& at = position_;
    at.assign(boards_.size(), 0);
    for (int const device_number : order_) {
      auto const d = static_cast<std::size_t>(device_number);
      enqueuing_device own{view_, device_number, boards_[d], stages_, *transport_};
      at[d] = execute_item(view_, device_number, at[d], own);
    }
    gather();
  }

  //! All streams of all devices start after what is on the origin.
  void spread() {
    for (device_board& board : boards_) {
      if (&board != &boards_.front())
        boards_.front().start_after(origin(), board.compute());
      board.fork();
    }
  }
  //! The origin goes on after all streams of all devices.
  void gather() {
    for (device_board& board : boards_) {
      board.join();
      if (&board != &boards_.front())
        board.start_after(board.compute(), origin());
    }
  }

  [[nodiscard]] graph capture() {
    check(cudaStreamBeginCapture(origin(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    cudaGraph_t captured = nullptr;
    try {
      enqueue();
    } catch (...) {
      // Ends the capture whatever state it is in; the streams are usable again afterwards.
      if (cudaStreamEndCapture(origin(), &captured) == cudaSuccess)
        (void)cudaGraphDestroy(captured);
      throw;
    }
    check(cudaStreamEndCapture(origin(), &captured), "cudaStreamEndCapture");
    return graph(captured);
  }

  plan plan_;
  plan_view view_;
  Stages& stages_;
  streams options_;
  std::vector<device_board> boards_;
  std::vector<int> order_; // which device enqueues next
  std::vector<int> position_;
  std::optional<peer_copies> transport_;
  std::optional<event> iteration_end_;
  graph graph_;
  int steps_ = 0;
};

} // namespace cuda
} // namespace pipelining::inline v0_1
