// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A plan on the CUDA devices of one process. Header for pipelining::cuda::stream_runner.

#include <pipe/core/shape.hpp>
#include <pipe/cuda/graph_launcher.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/peer_copies.cuh>
#include <pipe/cuda/stream_device.cuh>
#include <pipe/cuda/wait.cuh>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/report/describe.hpp>
#include <pipe/run/check.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/execute.hpp>
#include <pipe/run/trace_of.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_2 {
namespace cuda {

//! @brief How the devices of one process run a plan.
struct streams {
  //! The CUDA device of every device of the plan; empty: all on device 0, side by side on streams
  //! of their own.
  std::vector<int> gpus{};
  //! Launch the whole iteration as one CUDA graph, captured at the first step after `warm_up` eager
  //! ones.
  bool graph = false;
  int warm_up = 2; //!< eager steps before the graph
  //! Name passes and messages for profilers: ranges of NVTX. Costs nothing where none listens.
  bool ranges = true;
  //! A report of a failure names the item at which every device stood. That takes an event for
  //! every pass and every group of messages, and as many nodes in a graph.
  bool watched = true;
  //! The checked mode, for debugging: guards around every slot of a GPU, compared when a step has
  //! ended, and poison (not a number) in slots before their first write, which must be gone from
  //! the end of every output behind its pass. Accesses through null buffers are found on the host
  //! alone: threads::guarded. Costs memory and time; a step allocates.
  bool guarded = false;
  //! Two events more for every pass, so that `stream_runner::trace` tells when it began and ended.
  bool timed = false;
  //! Items of the plan that may be on the streams of a GPU before the host waits for the first of
  //! them; devices of the plan on one GPU share it, and each may have two. The queue of a GPU holds
  //! about a thousand launches, and a host that finds it full sits in a call that no deadline ends:
  //! choose it so that as many items launch fewer kernels. 0: any number.
  int run_ahead = 64;
  //! The longest that one iteration may take.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
};

//! @brief Runs a plan on streams: several devices of one process, or several virtual devices on
//! one.
//!
//! One thread enqueues everything in one order that all devices' programs are parts of. Before the
//! end of the iteration the host waits only for items `streams::run_ahead` places back, so that it
//! does not meet a full queue of a GPU. A graph is launched by a thread beside it, which is left
//! behind where the launch does not return before the deadline. Streams, events and memory are made
//! once, what the plan keeps on the host is pinned; a step allocates nothing.
//!
//! A stage enqueues on the stream of its context only, does not synchronise and allocates nothing
//! on the device. One that throws ends the step; the next step starts afresh. After a deadline or
//! an error of CUDA the runner is of no more use; what a device still works on is then never freed,
//! since freeing would wait for it.
template <class Stages, class Clock = polling_clock>
class stream_runner {
public:
  //! @throws std::invalid_argument when the stages do not suit the plan; error when CUDA does.
  stream_runner(plan work, Stages& stages, streams options = {})
      : plan_(std::move(work)), view_(plan_.view()), stages_(stages), options_(std::move(options)) {
    check_stages(view_, stages_);
    refuse_validation(view_, "stream_runner");
    auto const devices = static_cast<std::size_t>(view_.extents.devices);
    if (options_.gpus.empty())
      options_.gpus.assign(devices, 0);
    if (options_.gpus.size() != devices)
      throw std::invalid_argument("cuda: the plan has " + std::to_string(devices) +
                                  " devices, but " + std::to_string(options_.gpus.size()) +
                                  " CUDA devices were named");
    machine_ = std::make_unique<machinery>(view_,
                                           options_.gpus,
                                           board_options{false,
                                                         options_.watched,
                                                         options_.watched && options_.graph,
                                                         options_.ranges,
                                                         options_.run_ahead,
                                                         options_.timed});
    if (options_.guarded)
      for (std::size_t d = 0; d < devices; ++d)
        machine_->boards[d].guard_slots(view_, static_cast<int>(d));
    if (options_.graph)
      launcher_ = std::make_unique<graph_launcher<Clock>>(machine_->boards.front().gpu());
    order_ = drained_order(view_);
    position_.resize(devices);
  }
  stream_runner(stream_runner const&) = delete;
  stream_runner& operator=(stream_runner const&) = delete;
  ~stream_runner() {
    if (stuck_)
      (void)machine_.release();
  }

  //! @brief Runs every pass of the plan once and waits for its end.
  //! @throws run_error past the deadline, when CUDA reports an error, or when a stage throws while
  //! it enqueues (its exception is nested).
  void step() {
    if (stuck_)
      throw run_error("cuda: an earlier step has failed, and nothing can run after it", nothing);
    try {
      launch();
    } catch (...) {
      // What was enqueued before ends by itself, and touches the stages' memory until then.
      if (!stuck_)
        wait_for_end();
      throw;
    }
    wait_for_end();
    check_guards();
    ++steps_;
  }

  //! @brief Enqueues one iteration without waiting for its end; the stream to wait on is
  //! `origin()`.
  void launch() {
    latest_ = Clock::now() + options_.deadline;
    end_recorded_ = false;
    if (options_.graph && steps_ >= options_.warm_up) {
      if (!machine_->iteration)
        machine_->iteration = capture();
      for (device_board& board : machine_->boards)
        board.restart();
      launch_graph();
    } else {
      enqueue(false);
    }
  }

  //! @brief The stream on which an iteration starts and ends: the compute stream of device 0.
  [[nodiscard]] cudaStream_t origin() const noexcept { return machine_->boards.front().compute(); }

  //! @brief The passes of the last step with their measured start and end by events, in seconds
  //! since the start of the step. Each GPU has a clock of its own; all begin with the step, to
  //! within the time in which a GPU hears of another's event.
  //! @pre the step has ended. @throws std::logic_error without streams::timed or before the first
  //! step; error when CUDA does.
  [[nodiscard]] dynamic_timetable trace() {
    if (!options_.timed || steps_ == 0)
      throw std::logic_error("cuda: there is no trace; set streams::timed and run a step");
    return trace_of(plan_, [&](int device, std::size_t item, bool end) {
      device_board& board = machine_->boards[static_cast<std::size_t>(device)];
      device_board& first = machine_->boards.front();
      pass_times const& clock = *(board.gpu() == first.gpu() ? first : board).times();
      return board.times()->seconds(item, end, clock);
    });
  }

  //! @brief Pairs of GPUs without access to each other: the host copies what they send.
  [[nodiscard]] std::vector<std::pair<int, int>> const& through_host() const noexcept {
    return machine_->transport->through_host();
  }

private:
  using enqueuing_device = stream_device<Stages, peer_copies>;

  // Everything of CUDA. Destroyed from the end: no graph outlives what it uses.
  struct machinery {
    std::vector<device_board> boards;
    std::optional<peer_copies> transport;
    event iteration_end;
    graph iteration;

    machinery(plan_view const& work, std::vector<int> const& gpus, board_options chosen)
        : iteration_end(event_of(gpus.front())) {
      boards.reserve(gpus.size());
      for (std::size_t device = 0; device < gpus.size(); ++device) {
        board_options own = chosen;
        auto const sharers = static_cast<int>(std::count(gpus.begin(), gpus.end(), gpus[device]));
        if (own.run_ahead > 0)
          own.run_ahead = std::max(2, own.run_ahead / sharers);
        boards.emplace_back(work, static_cast<int>(device), gpus[device], own);
      }
      transport.emplace(work, std::span(boards));
    }
  };

  //! An event is recorded on streams of its own GPU only.
  static event event_of(int gpu) {
    current_device const scope(gpu);
    return {};
  }

  //! Enqueues all items. Also where a stage throws, the origin ends behind all that was enqueued.
  void enqueue(bool captured) {
    machine_->transport->reset();
    spread(captured);
    position_.assign(position_.size(), 0);
    current_device current(machine_->boards.front().gpu());
    for (int const next : order_) {
      auto const d = static_cast<std::size_t>(next);
      device_board& board = machine_->boards[d];
      if (!captured)
        wait_until([&] { return board.has_room_for(position_[d]); });
      try {
        current.change_to(board.gpu());
        enqueuing_device own{view_, next, board, stages_, *machine_->transport};
        position_[d] = execute_item(view_, next, position_[d], own);
      } catch (error const&) {
        stuck_ = true;
        raise(next);
      } catch (...) {
        gather();
        raise(next);
      }
    }
    gather();
  }

  //! Nothing is asked of the GPUs until the launch has returned.
  void launch_graph() {
    position_.assign(position_.size(), 0);
    launcher_->begin(machine_->iteration, origin(), machine_->iteration_end);
    wait_until([&] { return launcher_->idle(); });
    launcher_->check();
    end_recorded_ = true;
    for (std::size_t d = 0; d < position_.size(); ++d)
      position_[d] = static_cast<int>(view_.program_of(static_cast<int>(d)).size());
  }

  void check_guards() {
    for (std::size_t d = 0; d < machine_->boards.size(); ++d) {
      device_board& board = machine_->boards[d];
      if (board.guards() == nullptr)
        continue;
      current_device const scope(board.gpu());
      try {
        board.guards()->check_all(board.compute());
      } catch (guard_error const& found) {
        throw run_error(std::string("cuda: ") + found.what(), static_cast<int>(d));
      }
    }
  }

  void wait_for_end() {
    wait_until([&] {
      if (!end_recorded_)
        machine_->iteration_end.record(origin());
      end_recorded_ = true;
      return machine_->iteration_end.happened();
    });
  }

  //! Polls until `done()`. Fails past the deadline, and when a GPU reports an error.
  template <class Done>
  void wait_until(Done done) {
    try {
      auto const look = [&] {
        // Once a GPU is lost it tells nothing any more: its events are asked while it works.
        for (std::size_t d = 0; d < position_.size(); ++d)
          machine_->boards[d].look(position_[d]);
      };
      if (poll_until<Clock>(latest_, done, look))
        return;
    } catch (error const& cause) {
      stuck_ = true;
      int const first = first_unfinished();
      std::throw_with_nested(run_error(
        std::string("cuda: the iteration has failed: ") + cause.what() + standings(), first));
    }
    fail_at_deadline();
  }

  //! Nests what is being thrown in an error that names device and pass.
  [[noreturn]] void raise(int device) const {
    std::string cause = "an exception of a type that is no std::exception";
    try {
      throw;
    } catch (std::exception const& thrown) {
      cause = thrown.what();
    } catch (...) {
    }
    int const at = position_[static_cast<std::size_t>(device)];
    item const& step = view_.program_of(device)[static_cast<std::size_t>(at)];
    std::throw_with_nested(run_error("cuda: device " + std::to_string(device) +
                                       " failed when it was to " +
                                       describe(step, view_.extents.chunks > 1) + ": " + cause,
                                     device));
  }

  [[noreturn]] void fail_at_deadline() {
    stuck_ = true;
    throw run_error("cuda: the iteration has not ended before its deadline" + standings(),
                    first_unfinished());
  }

  //! A line for every device that has not ended, as far as was known when it last said so.
  [[nodiscard]] std::string standings() const {
    std::string text;
    if (launcher_ && !launcher_->idle())
      text = "\n  the launch of its graph has not returned: the GPU has not begun it, or takes no "
             "more of it";
    for (int device = 0; device < view_.extents.devices; ++device) {
      auto const d = static_cast<std::size_t>(device);
      int const at = machine_->boards[d].first_unfinished();
      if (at < position_[d])
        text += "\n  device " + std::to_string(device) + " has not ended item " +
                std::to_string(at) + " of " + std::to_string(view_.program_of(device).size()) +
                ": " +
                describe(view_.program_of(device)[static_cast<std::size_t>(at)],
                         view_.extents.chunks > 1);
    }
    if (text.empty())
      text = options_.watched ? "\n  all devices have ended all items"
                              : "\n  where devices stand is not watched";
    for (auto const& [one, other] : through_host())
      text += "\n  messages between GPUs " + std::to_string(one) + " and " + std::to_string(other) +
              " go through the host: they have no access to each other";
    return text;
  }
  //! The first device that has not ended, or `nothing`.
  [[nodiscard]] int first_unfinished() const {
    for (std::size_t d = 0; d < position_.size(); ++d)
      if (machine_->boards[d].first_unfinished() < position_[d])
        return static_cast<int>(d);
    return nothing;
  }

  //! All streams of all devices start after what is on the origin.
  void spread(bool captured) {
    for (device_board& board : machine_->boards) {
      if (&board != &machine_->boards.front())
        machine_->boards.front().start_after(origin(), board.compute());
      board.fork(captured);
    }
  }
  //! The origin goes on after all streams of all devices.
  void gather() {
    for (device_board& board : machine_->boards) {
      board.join();
      if (&board != &machine_->boards.front())
        board.start_after(board.compute(), origin());
    }
  }

  [[nodiscard]] graph capture() {
    check(cudaStreamBeginCapture(origin(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    cudaGraph_t captured = nullptr;
    try {
      enqueue(true);
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
  std::unique_ptr<machinery> machine_;
  std::unique_ptr<graph_launcher<Clock>> launcher_; // none where there are no graphs
  std::vector<int> order_;              // which device enqueues next
  std::vector<int> position_;           // the item that each device is at
  typename Clock::time_point latest_{}; // the end of all waits of the iteration
  int steps_ = 0;
  bool end_recorded_ = false; // behind all of the iteration
  bool stuck_ = false;
};

} // namespace cuda
} // namespace pipelining::inline v0_2
