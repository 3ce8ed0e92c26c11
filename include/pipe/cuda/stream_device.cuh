// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One device's side of the executor loop on CUDA streams. Header for
//! pipelining::cuda::stream_device.

#include <pipe/cuda/device_board.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/ranges.cuh>
#include <pipe/cuda/step_decisions.cuh>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/run_item.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

namespace pipelining::inline v0_3::cuda::detail {

//! The device that the executor loop drives: passes on the compute stream, messages through a
//! transport on their lanes, copies on the streams of their engines.
//!
//! @pre the device's GPU is current while its passes run.
//! @tparam Transport has `post(stream_device&, first, group)`, which enqueues the messages of one
//! group on the group's
//!         lane.
template <class Stages, class Transport>
struct stream_device {
  plan_view work;       //!< the plan
  int device;           //!< its device of the plan
  device_board& board;  //!< streams, events and memory
  Stages& stages;       //!< what runs the passes
  Transport& transport; //!< what moves the messages

  //! The slots in the memory of the device.
  [[nodiscard]] rooms::arena slots() const { return board.slots(work, device); }
  //! In the checked mode, poisons what an item is the first to write.
  void poison(item const& step) {
    if (board.guards() != nullptr && step.what != operation::send)
      board.guards()->before(step, board.stream_for(step));
  }

  //! Makes the stream of `step` wait for an earlier item.
  void wait_for(int earlier, item const& step) { board.wait_for(earlier, board.stream_for(step)); }

  //! True when the host knows what it must to enqueue an item: where it decides about a step
  //! of the optimizer, the rows of the totals, for which this asks.
  [[nodiscard]] bool knows_enough_for(item const& step) {
    step_decisions* const its = board.decisions();
    if (its == nullptr || !its->decides(step))
      return true;
    if (!its->asked(step.about)) {
      for (int const wait : work.waits_of(step))
        wait_for(wait, step);
      its->ask(slots(), step.about, board.compute());
    }
    return its->come();
  }

  //! Enqueues a pass, a hook or a copy.
  void run(int index, item const& step) {
    open_range const range = board.ranges().open(index);
    if (rooms::is_copy(*work.over.declared, step))
      return copy(index, step);
    cudaStream_t const its = rooms::runs_beside(step) ? board.stream_for(step) : board.compute();
    poison(step);
    if (board.times() != nullptr)
      board.times()->enter(index, its);
    enqueue(step, its);
    if (board.times() != nullptr)
      board.times()->leave(index, its);
    if (board.guards() != nullptr)
      board.guards()->after(index, its);
    board.complete(index, its);
  }

  //! Enqueues a composite pass, where its stages can do its halves at once. Each half has a
  //! stream, which starts after all items that either half waits for. The stream of passes goes
  //! on after both.
  [[nodiscard]] bool run_together(int first, std::span<item const> pair) {
    if (!rooms::runs_as_one(stages, work, pair))
      return false;
    open_range const range = board.ranges().open(first);
    open_range const other_range = board.ranges().open(first + 1);
    cudaStream_t const on = board.compute();
    for (int k = 0; k < 2; ++k) {
      poison(pair[static_cast<std::size_t>(k)]);
      if (board.times() != nullptr)
        board.times()->enter(first + k, on);
    }
    auto const join = [this, on] { board.start_after(board.beside(), on); };
    board.start_after(on, board.beside());
    try {
      rooms::run_composite(stages, slots(), pair, {on, board.beside()}, join);
    } catch (...) {
      join(); // the end of the iteration waits for all that was enqueued
      throw;
    }
    for (int k = 0; k < 2; ++k) {
      if (board.times() != nullptr)
        board.times()->leave(first + k, on);
      if (board.guards() != nullptr)
        board.guards()->after(first + k, on);
      board.complete(first + k, on);
    }
    return true;
  }

  //! Enqueues the messages of one group.
  void post(int first, std::span<item const> group) {
    open_range const range = board.ranges().open(first);
    for (item const& step : group)
      poison(step);
    transport.post(*this, first, group);
  }

  //! Lets the stream of passes wait for all others.
  void finish() { board.join(); }

private:
  //! Lets the stage enqueue a pass or a hook.
  void enqueue(item const& step, cudaStream_t on) {
    if (!rooms::run_item(stages, slots(), step, on))
      board.decisions()->find_wrong();
  }

  //! Copies a slot between the device and the host.
  void copy(int index, item const& step) {
    cudaStream_t const on = board.stream_for(step);
    rooms::arena const memory = slots();
    buffer const to = memory.output_of(step);
    if (board.times() != nullptr)
      board.times()->enter(index, on);
    if (to.bytes > 0) // what the library does not keep, it does not copy
      check(cudaMemcpyAsync(to.data,
                            memory.input_of(step).data,
                            static_cast<std::size_t>(to.bytes),
                            cudaMemcpyDefault,
                            on),
            "cudaMemcpyAsync");
    if (board.times() != nullptr)
      board.times()->leave(index, on);
    board.complete(index, on);
  }
};

} // namespace pipelining::inline v0_3::cuda::detail
