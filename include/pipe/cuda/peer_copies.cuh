// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Messages as copies between devices of one process. Header for
//! pipelining::cuda::peer_copies.

#include <pipe/cuda/device_board.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/connection_rounds.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::cuda::detail {

//! Pairs the two ends of every message on the host and copies from slot to slot on the
//! receiver's lane.
//!
//! One thread posts for all devices, in the plan's global order. The end that posts first leaves
//! its place; the second end enqueues the copy, which starts when both lanes have come to the
//! message, and lets both lanes go on after it.
class peer_copies {
public:
  //! @param boards [P], which must outlive this.
  peer_copies(plan_view const& work, std::span<device_board> boards)
      : work_(work), boards_(boards), posted_(boards.size()),
        meetings_(static_cast<std::size_t>(rooms::message_indices(work))) {
    for (int device = 0; device < work.over.extents.devices; ++device) {
      device_board& board = boards[static_cast<std::size_t>(device)];
      current_device const scope(
        board.gpu()); // an event is recorded on streams of its own GPU only
      for (item const& step : work.program_of(device))
        if (step.what != operation::run)
          end_of(step).come.emplace();
    }
    for (rooms::device_pair const& pair : rooms::device_pairs(work))
      open_access(boards[static_cast<std::size_t>(pair.one)].gpu(),
                  boards[static_cast<std::size_t>(pair.other)].gpu());
  }

  //! Pairs of GPUs, the lower first, that cannot reach each other's memory: copies between
  //! them go through the host.
  [[nodiscard]] std::vector<std::pair<int, int>> const& through_host() const noexcept {
    return through_host_;
  }

  //! Forgets messages of which one end only was posted: an iteration that ended early.
  void reset() noexcept {
    for (meeting& point : meetings_)
      point.one_end_posted = false;
  }

  //! Posts the messages of one group of one device.
  template <class Device>
  void post(Device& own, int first, std::span<item const> group) {
    posted_group& together = posted_[static_cast<std::size_t>(&own.board - boards_.data())];
    bool const exchanges = work_.message_of(group.front()).exchange != nothing;
    if (exchanges)
      together = {first, static_cast<int>(group.size()), static_cast<int>(group.size())};
    for (std::size_t k = 0; k < group.size(); ++k) {
      item const& step = group[k];
      end& mine = end_of(step);
      mine.board = &own.board;
      mine.group = exchanges ? &together : nullptr;
      mine.index = first + static_cast<int>(k);
      mine.lane = own.board.stream_for(step);
      mine.data = own.slots().message(step).data;
      meeting& point = at(step);
      point.one_end_posted = !point.one_end_posted;
      if (point.one_end_posted)
        mine.come->record(mine.lane);
      else
        transfer(point,
                 mine,
                 step.what == operation::send ? point.receiver : point.sender,
                 work_.uses_of(step)[0].bytes);
    }
  }

private:
  //! The exchange that a device has posted last; those before it have been copied by then.
  struct posted_group {
    int first = nothing;
    int count = 0;
    int left = 0; // to be copied
  };
  struct end {
    device_board* board = nullptr;
    posted_group* group = nullptr; // of an exchange
    int index = nothing;
    cudaStream_t lane = nullptr;
    std::byte* data = nullptr;
    std::optional<event>
      come; // first end: its lane has come to the message; second end: it is copied
  };
  struct meeting {
    end sender;
    end receiver;
    bool one_end_posted = false;
  };

  //! Without access CUDA copies through the host, and says nothing of it.
  void open_access(int one, int other) {
    if (one == other)
      return;
    bool reached = true;
    for (auto const& [from, to] : {std::pair(one, other), std::pair(other, one)}) {
      int able = 0;
      check(cudaDeviceCanAccessPeer(&able, from, to), "cudaDeviceCanAccessPeer");
      reached = reached && able != 0;
      if (able == 0)
        continue;
      current_device const scope(from);
      cudaError_t const code = cudaDeviceEnablePeerAccess(to, 0);
      if (code == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError();
      else
        check(code, "cudaDeviceEnablePeerAccess");
    }
    std::pair const pair(std::min(one, other), std::max(one, other));
    if (!reached &&
        std::find(through_host_.begin(), through_host_.end(), pair) == through_host_.end())
      through_host_.push_back(pair);
  }

  [[nodiscard]] meeting& at(item const& step) {
    return meetings_[static_cast<std::size_t>(rooms::message_index(work_, step))];
  }
  [[nodiscard]] end& end_of(item const& step) {
    return step.what == operation::send ? at(step).sender : at(step).receiver;
  }

  //! Copies on the lane of the end that posted second, and lets both lanes go on after it.
  static void transfer(meeting const& point, end& mine, end& theirs, std::int64_t bytes) {
    theirs.come->block(mine.lane);
    if (bytes > 0 && point.sender.data != nullptr) {
      auto const size = static_cast<std::size_t>(bytes);
      int const from = point.sender.board->gpu();
      int const to = point.receiver.board->gpu();
      if (from == to)
        check(cudaMemcpyAsync(
                point.receiver.data, point.sender.data, size, cudaMemcpyDeviceToDevice, mine.lane),
              "cudaMemcpyAsync");
      else
        check(
          cudaMemcpyPeerAsync(point.receiver.data, to, point.sender.data, from, size, mine.lane),
          "cudaMemcpyPeerAsync");
    }
    mine.come->record(mine.lane);
    mine.come->block(theirs.lane);
    note_copy(mine);
    note_copy(theirs);
  }

  //! The messages with one peer are copied in their order, and complete one by one. Those of an
  //! exchange are complete together: who waits for the last waits for all, in whatever order their
  //! other ends are posted.
  static void note_copy(end const& of) {
    if (of.group == nullptr)
      return of.board->complete(of.index, of.lane);
    posted_group& group = *of.group;
    --group.left;
    for (int k = 0; group.left == 0 && k < group.count; ++k)
      of.board->complete(group.first + k, of.lane);
  }

  plan_view work_;
  std::span<device_board> boards_;
  std::vector<posted_group> posted_; // [P]
  std::vector<meeting> meetings_;
  std::vector<std::pair<int, int>> through_host_;
};

} // namespace pipelining::inline v0_3::cuda::detail
