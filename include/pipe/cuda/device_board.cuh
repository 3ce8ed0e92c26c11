// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How a plan lies on one GPU, and the side of the executor loop there. Header for
//! pipelining::cuda::device_board and pipelining::cuda::stream_device.

#include <pipe/cuda/device_guards.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/ranges.cuh>
#include <pipe/cuda/shared_device.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/waits.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/execute.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pipelining::inline v0_3::cuda {

//! @brief Options of a device: how it lays its plan out on streams.
struct board_options {
  //! All messages go through one stream, in the order of the program, instead of one stream per
  //! lane.
  bool one_message_stream = false;
  //! Every pass and every group of messages has an event, not only events that others wait for: a
  //! report can name the item at which the device stands.
  bool watched = false;
  //! The same inside graphs, where it takes an event and a node for each.
  bool watched_in_graph = false;
  //! Every pass, group of messages and hook is a range of NVTX.
  bool ranges = true;
  //! Items that may be on the streams before the host waits for the first of them; 0: any number.
  int run_ahead = 0;
  //! Every pass has two events more, which tell when it began and ended.
  bool timed = false;
  //! The slots have memory of their own, with guards around them.
  bool guarded = false;
};

namespace detail {

//! The options of a device of a runner that has these.
template <class Options>
[[nodiscard]] board_options board_options_of(Options const& chosen, bool one_message_stream) {
  return {one_message_stream,
          chosen.watched,
          chosen.watched && chosen.graph,
          chosen.ranges,
          chosen.run_ahead,
          chosen.timed,
          chosen.guarded};
}

//! Brings the rows of the totals of one device to its host, which decides with `accepts`
//! whether the stages step and whether the iteration before was right.
//!
//! The rows are copied to pinned memory on the stream of passes, after what brings them, and an
//! event tells when they have come; all stages of the device decide with one copy. Until then the
//! host enqueues nothing more for this device, since a GPU cannot take back what is enqueued, but
//! all that comes before has been: the forward passes of the next iteration run while the rows
//! travel. So a decision costs the way to the host and back, where the device has nothing left to
//! do meanwhile. Other devices go on.
class step_decisions {
public:
  //! @pre the device's GPU is current. @param work a plan that steps early or validates.
  step_decisions(plan const& work, int device)
      : bytes_(work.layout(device, slot_class::totals).bytes *
               work.layout(device, slot_class::totals).count),
        rows_(bytes_) {}

  //! Before an iteration. @param carried rows that its totals are to hold, or none.
  //! @param on the stream of passes.
  void begin(rooms::arena const& slots, std::span<std::byte const> carried, cudaStream_t on) {
    asked_ = rooms::subject::pass;
    wrong_ = false;
    if (carried.empty())
      return;
    std::copy(carried.begin(), carried.end(), rows_.data());
    totals const all = slots.all_totals();
    auto const stride = static_cast<std::size_t>(all.stride);
    check(cudaMemcpy2DAsync(slots.memory + slots.place({.of = slot_class::totals, .index = 0}),
                            stride,
                            rows_.data(),
                            stride,
                            static_cast<std::size_t>(all.bytes), // what follows in a row is a guard
                            static_cast<std::size_t>(all.rows),
                            cudaMemcpyHostToDevice,
                            on),
          "cudaMemcpy2DAsync");
  }
  //! True for items that need the rows on the host.
  [[nodiscard]] static bool decides(item const& step) noexcept {
    return step.what == operation::run &&
           (step.about == rooms::subject::early_update || step.about == rooms::subject::validation);
  }
  //! True when the rows have been asked for.
  [[nodiscard]] bool asked(rooms::subject about) const noexcept { return asked_ == about; }
  //! Asks for them. @pre the stream waits for what brings the rows to the device.
  void ask(rooms::arena const& slots, rooms::subject about, cudaStream_t on) {
    asked_ = about;
    totals const all = slots.all_totals();
    check(cudaMemcpyAsync(
            rows_.data(), all.data, static_cast<std::size_t>(bytes_), cudaMemcpyDeviceToHost, on),
          "cudaMemcpyAsync");
    come_.record(on);
    // Who steps early steps with the rows of the devices so far; the others are to be zeros.
    for (int stage = 0; about == rooms::subject::early_update && stage < all.rows; ++stage)
      if (device_of(slots.work, stage) > slots.device)
        check(
          cudaMemsetAsync(slots.memory + slots.place({.of = slot_class::totals, .index = stage}),
                          0,
                          static_cast<std::size_t>(all.bytes),
                          on),
          "cudaMemsetAsync");
  }
  //! True when they have come. @throws error when the device reports one.
  [[nodiscard]] bool come() const { return come_.happened(); }
  //! The rows of all stages. @pre they have come.
  [[nodiscard]] std::byte const* rows() const noexcept { return rows_.data(); }

  //! A stage has found that the step before was wrong, and has made it right.
  void find_wrong() noexcept { wrong_ = true; }
  //! True when a stage has found that: the iteration begins again.
  [[nodiscard]] bool wrong() const noexcept { return wrong_; }

private:
  std::int64_t bytes_; // of all rows
  pinned_memory rows_;
  event come_;
  rooms::subject asked_ =
    rooms::subject::pass; // what the rows were asked for last; a pass asks for none
  bool wrong_ = false;
};

//! An event before and one after every pass of one device, and one at the start of its
//! iteration. Made once; eager iterations and graphs record them anew.
class pass_times {
public:
  //! @pre the GPU of the device is current.
  pass_times(plan const& work, int device) : start_(cudaEventDefault) {
    auto const steps = work.program_of(device);
    before_.resize(steps.size());
    behind_.resize(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].what != operation::run || steps[i].about != rooms::subject::pass)
        continue;
      before_[i].emplace(cudaEventDefault);
      behind_[i].emplace(cudaEventDefault);
    }
  }

  //! The iteration begins. @param captured it goes into a graph.
  void begin(cudaStream_t on, bool captured) {
    captured_ = captured;
    record(start_, on);
  }
  //! The pass of an item begins; nothing for items that are none.
  void enter(int item, cudaStream_t on) { record(before_[static_cast<std::size_t>(item)], on); }
  //! The pass of an item has ended.
  void leave(int item, cudaStream_t on) { record(behind_[static_cast<std::size_t>(item)], on); }

  //! When a pass began or ended, in seconds since the iteration of `clock` began: another
  //! device on the same GPU, or this one.
  //! @pre the iteration has ended. @throws error when CUDA does.
  [[nodiscard]] double seconds(std::size_t item, bool end, pass_times const& clock) const {
    return (end ? behind_ : before_)[item]->seconds_since(clock.start_);
  }

private:
  void record(event& which, cudaStream_t on) const {
    if (captured_)
      which.record_in_graph(on);
    else
      which.record(on);
  }
  void record(std::optional<event>& which, cudaStream_t on) const {
    if (which)
      record(*which, on);
  }

  event start_;
  std::vector<std::optional<event>> before_; // of each item
  std::vector<std::optional<event>> behind_;
  bool captured_ = false;
};

//! How one plan lies on the streams and in the memory of one device, and its events, made
//! once.
//!
//! Stream 0 computes, stream l + 1 carries lane l, and each engine that copies has one after these.
//! An item has an event when another item waits for it.
class device_board {
public:
  //! @param shared memory and streams that other plans of the device use, too; it outlives this.
  //! @pre nothing runs on it: its memory may grow.
  device_board(plan const& work, int device, shared_device& shared, board_options chosen = {})
      : shared_(&shared),
        shared_lanes_(chosen.one_message_stream ? std::max(0, work.lanes_of(device) - 1) : 0),
        ranges_(chosen.ranges ? item_ranges(work, device) : item_ranges()) {
    current_device const scope(gpu());
    shared.reserve(chosen.guarded ? 0 : work.arena_bytes_of(device), work.host_bytes_of(device));
    if (chosen.guarded)
      guards_.emplace(work, device);
    if (work.validation != step_validation::at_once)
      decisions_.emplace(work, device);
    auto const steps = work.program_of(device);
    std::size_t last = static_cast<std::size_t>(work.lanes_of(device) - shared_lanes_);
    for (item const& step : steps)
      last = std::max(last, index_for(step));
    shared.reserve_streams(last + 1);
    if (std::any_of(steps.begin(), steps.end(), [](item const& step) {
          return step.what == operation::run && step.work.overlapped;
        }))
      shared.reserve_beside();
    ends_.resize(last + 1);
    start_.emplace();
    done_.resize(steps.size());
    in_graph_.resize(steps.size());
    ended_on_.assign(last + 1, nothing);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      stream_index_.push_back(static_cast<int>(index_for(steps[i])));
      // The messages of a group end together.
      if (steps[i].joins)
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
    if (chosen.timed)
      times_.emplace(work, device);
    if (chosen.run_ahead > 0)
      place_fences(steps, std::max(1, chosen.run_ahead / 2));
  }

  //! The number of the CUDA device.
  [[nodiscard]] int gpu() const noexcept { return shared_->gpu(); }
  //! The arena on the device.
  [[nodiscard]] std::byte* memory() const noexcept {
    return guards_ ? guards_->memory() : shared_->memory();
  }
  //! The arena on the host, pinned; null where nothing waits there.
  [[nodiscard]] std::byte* host_memory() const noexcept { return shared_->host_memory(); }
  //! The slots of the device. @param work, device as the board was made with.
  [[nodiscard]] rooms::arena slots(plan const& work, int device) const noexcept {
    return {work,
            device,
            memory(),
            host_memory(),
            guards_ ? rooms::guard_bytes : 0,
            decisions_ ? decisions_->rows() : nullptr};
  }
  //! The host's decisions about steps of the optimizer, or null where it makes none.
  [[nodiscard]] step_decisions* decisions() noexcept { return decisions_ ? &*decisions_ : nullptr; }
  //! True when a validation has found the step of the iteration before wrong.
  [[nodiscard]] bool begins_again() const noexcept { return decisions_ && decisions_->wrong(); }
  //! The guards of the checked mode, or null.
  [[nodiscard]] device_guards* guards() noexcept { return guards_ ? &*guards_ : nullptr; }
  //! When passes began and ended, or null where nobody asks for it.
  [[nodiscard]] pass_times* times() noexcept { return times_ ? &*times_ : nullptr; }
  //! The ranges of items in a profile.
  [[nodiscard]] item_ranges const& ranges() const noexcept { return ranges_; }
  //! A stream by number; 0 runs the passes.
  [[nodiscard]] cudaStream_t stream_at(int index) const noexcept {
    return shared_->stream_at(static_cast<std::size_t>(index));
  }
  //! The stream of passes.
  [[nodiscard]] cudaStream_t compute() const noexcept { return stream_at(0); }
  //! Passes have one, every lane, and every engine that copies.
  [[nodiscard]] int stream_count() const noexcept { return static_cast<int>(ends_.size()); }
  //! The stream that an item belongs on.
  [[nodiscard]] cudaStream_t stream_for(item const& step) const noexcept {
    return shared_->stream_at(index_for(step));
  }

  //! Lets all streams wait for the compute stream so far: the start of an iteration.
  //! @param captured the iteration goes into a graph.
  void fork(bool captured = false) {
    captured_ = captured;
    restart();
    if (times_)
      times_->begin(compute(), captured);
    start_->record(compute());
    for (int index = 1; index < stream_count(); ++index)
      start_->block(stream_at(index));
  }
  //! The compute stream waits for all others: the end of an iteration.
  void join() {
    for (int index = 1; index < stream_count(); ++index) {
      event& end = ends_[static_cast<std::size_t>(index)];
      end.record(stream_at(index));
      end.block(compute());
    }
  }
  //! Lets all later work on `after` wait for all work so far on `before`, a stream of this device.
  void start_after(cudaStream_t before, cudaStream_t after) {
    start_->record(before);
    start_->block(after);
  }
  //! The stream of second halves of composite passes. @pre the plan has such passes.
  [[nodiscard]] cudaStream_t beside() const noexcept { return shared_->beside(); }
  //! Lets all later work on `waiting` wait for an item of this device.
  void wait_for(int item_index, cudaStream_t waiting) const {
    done_[static_cast<std::size_t>(item_index)]->block(waiting);
  }
  //! A pass or a copy begins on a stream.
  void enter(int item_index, cudaStream_t on) {
    if (times_)
      times_->enter(item_index, on);
  }
  //! The call that enqueues it is back.
  void leave(int item_index, cudaStream_t on) {
    if (times_)
      times_->leave(item_index, on);
    if (guards_)
      guards_->after(item_index, on);
    complete(item_index, on);
  }
  //! Notes that an item is complete when its stream has come this far, if any item or
  //! report asks for it.
  void complete(int item_index, cudaStream_t on) {
    auto const i = static_cast<std::size_t>(item_index);
    if (done_[i])
      done_[i]->record(on);
    if (captured_ && in_graph_[i])
      in_graph_[i]->record_in_graph(on);
  }

  //! The next iteration has not begun: nothing of it is complete.
  void restart() noexcept {
    ended_ = 0;
    next_fence_ = 0;
    ended_on_.assign(ended_on_.size(), nothing);
  }
  //! True when the host may enqueue the item: no more than board_options::run_ahead items
  //! are on the streams. Asks the streams once in half as many items, each for its last one.
  //! @pre not in a capture. @throws error when the device reports one.
  [[nodiscard]] bool has_room_for(int item_index) {
    while (next_fence_ < fences_.size() && fences_[next_fence_].before <= item_index) {
      int const last = fences_[next_fence_].ended;
      auto const at = static_cast<std::size_t>(last);
      if (last >= ended_ && !done_[at]->happened()) // if a look has not found it complete
        return false;
      ended_on_[static_cast<std::size_t>(stream_index_[at])] = last;
      ++next_fence_;
    }
    return true;
  }
  //! Looks how far the device has come; `first_unfinished` remembers it.
  //! @param end the items before it are enqueued, or launched with their graph.
  //! @throws error when the device reports one.
  void look(int end) {
    auto const& events = captured_ ? in_graph_ : done_;
    for (; ended_ < end; ++ended_) {
      auto const at = static_cast<std::size_t>(ended_);
      if (ended_ <= ended_on_[static_cast<std::size_t>(stream_index_[at])])
        continue; // it need not be asked again
      auto const& done = events[at];
      if (done && !done->happened())
        return;
    }
  }
  //! The first item that was not complete when the device was last looked at; `end` of that
  //! look if all were. Items without an event count as complete with those after them.
  [[nodiscard]] int first_unfinished() const noexcept { return ended_; }

private:
  //! Before an item is enqueued another one must have ended.
  struct fence {
    int before;
    int ended;
  };

  //! Items go in windows; before the host goes on to the next but one, every stream has ended its
  //! last item, or group, of a window, and with it all before.
  void place_fences(std::span<item const> steps, int window) {
    std::vector<int> last(ends_.size(), nothing); // of each stream, in this window
    int const count = static_cast<int>(steps.size());
    for (int i = 0; i < count; ++i) {
      item const& step = steps[static_cast<std::size_t>(i)];
      // The messages of a group end together, with the first one's event.
      if (!step.joins)
        last[index_for(step)] = i;
      if ((i + 1) % window != 0)
        continue;
      for (int& item : last) {
        if (item == nothing || i + 1 + window >= count)
          continue;
        fences_.push_back({i + 1 + window, item});
        if (!done_[static_cast<std::size_t>(item)])
          done_[static_cast<std::size_t>(item)].emplace();
        item = nothing;
      }
    }
  }

  [[nodiscard]] std::size_t index_for(item const& step) const noexcept {
    int const own = step.stream();
    if (rooms::runs_beside(step))
      return static_cast<std::size_t>(own - shared_lanes_);
    return static_cast<std::size_t>(shared_lanes_ > 0 ? std::min(own, 1) : own);
  }

  shared_device* shared_;
  int shared_lanes_; // that have no stream of their own
  std::optional<device_guards> guards_;
  std::optional<step_decisions> decisions_;
  item_ranges ranges_;
  std::optional<pass_times> times_;
  std::vector<event> ends_; // of the streams
  std::vector<std::optional<event>> done_;
  std::vector<std::optional<event>> in_graph_;
  std::optional<event> start_;
  std::vector<int> stream_index_; // of each item
  std::vector<int> ended_on_;     // the last item of each stream that a fence has found complete
  std::vector<fence> fences_;
  std::size_t next_fence_ = 0;
  bool captured_ = false; // the iteration is in a graph, and the other events cannot be asked
  int ended_ = 0;         // items known to be complete
};

//! The device that the executor loop drives: passes on the compute stream, messages through a
//! transport on their lanes, copies on the streams of their engines.
//!
//! @pre the device's GPU is current while its passes run.
//! @tparam Transport has `post(stream_device&, first, group)`, which enqueues the messages of one
//! group on the group's
//!         lane.
template <class Stages, class Transport>
struct stream_device {
  plan const& work;     //!< the plan
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
    if (rooms::is_copy(work.over.declared, step))
      return copy(index, step);
    cudaStream_t const its = rooms::runs_beside(step) ? board.stream_for(step) : board.compute();
    poison(step);
    board.enter(index, its);
    enqueue(step, its);
    board.leave(index, its);
  }

  //! Enqueues a composite pass, where its stages can do its halves at once. Each half has a
  //! stream, which starts after all items that either half waits for. The stream of passes goes
  //! on after both.
  [[nodiscard]] bool run_together(int first, std::span<item const> pair) {
    return rooms::visit_composite(stages, work, pair, [&](auto const& composite) {
      open_range const range = board.ranges().open(first);
      open_range const other_range = board.ranges().open(first + 1);
      cudaStream_t const on = board.compute();
      for (int k = 0; k < 2; ++k) {
        poison(pair[static_cast<std::size_t>(k)]);
        board.enter(first + k, on);
      }
      auto const join = [this, on] { board.start_after(board.beside(), on); };
      board.start_after(on, board.beside());
      try {
        composite(slots(), on, board.beside(), join);
      } catch (...) {
        join(); // the end of the iteration waits for all that was enqueued
        throw;
      }
      for (int k = 0; k < 2; ++k)
        board.leave(first + k, on);
    });
  }

  //! Enqueues the messages of one group.
  void post(int first, std::span<item const> group) {
    open_range const range = board.ranges().open(first);
    for (item const& step : group)
      poison(step);
    transport.post(*this, first, group);
  }

  //! True when the iteration begins again.
  [[nodiscard]] bool begins_again() const noexcept { return board.begins_again(); }
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
    board.enter(index, on);
    if (to.bytes > 0) // what the library does not keep, it does not copy
      check(cudaMemcpyAsync(to.data,
                            memory.input_of(step).data,
                            static_cast<std::size_t>(to.bytes),
                            cudaMemcpyDefault,
                            on),
            "cudaMemcpyAsync");
    board.leave(index, on);
  }
};

} // namespace detail

} // namespace pipelining::inline v0_3::cuda
