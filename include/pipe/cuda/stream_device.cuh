// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One device's side of the executor loop on CUDA streams. Header for
//! pipelining::cuda::stream_device.

#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/ranges.cuh>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/waits.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/run_item.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace pipelining::inline v0_1 {
namespace cuda {

//! @brief How a device lays its plan out on streams.
struct board_options {
  //! All messages go through one stream, in the order of the program, instead of one stream per
  //! lane.
  bool one_message_stream = false;
  //! Every pass and every group of messages has an event, not only those that others wait for: a
  //! report can name the item at which the device stands.
  bool watched = false;
  //! The same inside graphs, where it takes an event and a node for each.
  bool watched_in_graph = false;
  //! Every pass, group of messages and hook is a range of NVTX.
  bool ranges = true;
};

//! @brief The streams, events and memory of one device of a plan, made once.
//!
//! Stream 0 computes, stream l + 1 carries lane l. An item has an event when another item waits for
//! it.
class device_board {
public:
  //! @param gpu the CUDA device to make everything on.
  device_board(plan_view const& work, int device, int gpu, board_options chosen = {})
      : gpu_(gpu), one_message_stream_(chosen.one_message_stream),
        memory_(make_memory(work, device, gpu)),
        ranges_(chosen.ranges ? item_ranges(work, device) : item_ranges()) {
    current_device const scope(gpu);
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    streams_.emplace_back(least);
    // Messages go first: the device at the other end waits for them.
    int const lanes = work.lanes[device];
    for (int lane = 0; lane < (one_message_stream_ && lanes > 1 ? 1 : lanes); ++lane)
      streams_.emplace_back(greatest);
    ends_.resize(streams_.size());
    start_.emplace();
    auto const steps = work.program_of(device);
    done_.resize(steps.size());
    in_graph_.resize(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      // The messages of a group end together.
      if (i > 0 && steps[i].what != operation::run && steps[i - 1].what != operation::run &&
          steps[i].group == steps[i - 1].group)
        continue;
      if (chosen.watched)
        done_[i].emplace();
      if (chosen.watched_in_graph)
        in_graph_[i].emplace();
    }
    for (item const& step : steps)
      for (int const wait : work.waits_of(step))
        if (!done_[static_cast<std::size_t>(wait)])
          done_[static_cast<std::size_t>(wait)].emplace();
  }

  [[nodiscard]] int gpu() const noexcept { return gpu_; }
  [[nodiscard]] std::byte* memory() const noexcept { return memory_.data(); }
  [[nodiscard]] item_ranges const& ranges() const noexcept { return ranges_; }
  [[nodiscard]] cudaStream_t stream_at(int index) const noexcept {
    return streams_[static_cast<std::size_t>(index)].get();
  }
  [[nodiscard]] cudaStream_t compute() const noexcept { return stream_at(0); }
  [[nodiscard]] int stream_count() const noexcept { return static_cast<int>(streams_.size()); }
  [[nodiscard]] cudaStream_t stream_for(item const& step) const noexcept {
    int const own = stream_of(step);
    return stream_at(one_message_stream_ && own > 1 ? 1 : own);
  }

  //! @brief All streams wait for what is on the compute stream: the start of an iteration.
  //! @param captured the iteration goes into a graph.
  void fork(bool captured = false) {
    captured_ = captured;
    restart();
    start_->record(compute());
    for (int index = 1; index < stream_count(); ++index)
      start_->block(stream_at(index));
  }
  //! @brief The compute stream waits for all others: the end of an iteration.
  void join() {
    for (int index = 1; index < stream_count(); ++index) {
      event& end = ends_[static_cast<std::size_t>(index)];
      end.record(stream_at(index));
      end.block(compute());
    }
  }
  //! @brief What follows on `after` waits for what is on `before`, a stream of this device, now.
  void start_after(cudaStream_t before, cudaStream_t after) {
    start_->record(before);
    start_->block(after);
  }
  //! @brief What follows on `waiting` waits for an item of this device.
  void wait_for(int item_index, cudaStream_t waiting) const {
    done_[static_cast<std::size_t>(item_index)]->block(waiting);
  }
  //! @brief Notes that an item is complete when its stream has come this far, if any item or
  //! report asks for it.
  void complete(int item_index, cudaStream_t on) {
    auto const i = static_cast<std::size_t>(item_index);
    if (done_[i])
      done_[i]->record(on);
    if (captured_ && in_graph_[i])
      in_graph_[i]->record_in_graph(on);
  }

  //! @brief The next iteration has not begun: nothing of it is complete.
  void restart() noexcept { ended_ = 0; }
  //! @brief Looks how far the device has come; `first_unfinished` remembers it.
  //! @param end the items before it are enqueued, or launched with their graph.
  //! @throws error when the device reports one.
  void look(int end) {
    auto const& events = captured_ ? in_graph_ : done_;
    for (; ended_ < end; ++ended_) {
      auto const& done = events[static_cast<std::size_t>(ended_)];
      if (done && !done->happened())
        return;
    }
  }
  //! @brief The first item that was not complete when the device was last looked at; `end` of that
  //! look if all were. Items without an event count as complete with those behind them.
  [[nodiscard]] int first_unfinished() const noexcept { return ended_; }

private:
  static device_memory make_memory(plan_view const& work, int device, int gpu) {
    current_device const scope(gpu);
    return device_memory(work.arena_bytes[device]);
  }

  int gpu_;
  bool one_message_stream_;
  device_memory memory_;
  item_ranges ranges_;
  std::vector<stream> streams_;
  std::vector<event> ends_;
  std::vector<std::optional<event>> done_;
  std::vector<std::optional<event>> in_graph_;
  std::optional<event> start_;
  bool captured_ = false; // the iteration is in a graph, and the other events cannot be asked
  int ended_ = 0;         // items known to be complete
};

//! @brief What the executor loop drives: passes on the compute stream, messages through a transport
//! on their lanes.
//!
//! @tparam Transport has `post(stream_device&, first, group)`, which enqueues the messages of one
//! group on the group's
//!         lane.
template <class Stages, class Transport>
struct stream_device {
  plan_view work;
  int device;
  device_board& board;
  Stages& stages;
  Transport& transport;

  [[nodiscard]] arena slots() const { return {work, device, board.memory()}; }

  void wait_for(int earlier, item const& step) { board.wait_for(earlier, board.stream_for(step)); }

  void run(int index, item const& step) {
    current_device const scope(board.gpu());
    open_range const range = board.ranges().open(index);
    run_item(stages, slots(), step, board.compute());
    board.complete(index, board.compute());
  }

  void post(int first, std::span<item const> group) {
    open_range const range = board.ranges().open(first);
    transport.post(*this, first, group);
  }

  void finish() { board.join(); }
};

} // namespace cuda
} // namespace pipelining::inline v0_1
