// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One plan of a stream runner on the devices. Header for
//! pipelining::cuda::stream_plan.

#include <pipe/cuda/device_board.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/shared_device.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/connection_rounds.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove/messages.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
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
  peer_copies(plan const& work, std::span<device_board> boards)
      : work_(work), over_(work.over), boards_(boards), posted_(boards.size()),
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
    bool const exchanges = work_.exchange_at(group.front()) != nothing;
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
    return meetings_[static_cast<std::size_t>(rooms::message_index(work_, over_, step))];
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

  plan const& work_;
  pipeline_view over_; // of the plan
  std::span<device_board> boards_;
  std::vector<posted_group> posted_; // [P]
  std::vector<meeting> meetings_;
  std::vector<std::pair<int, int>> through_host_;
};

//! Takes every device as far as its next pass, and past it; the ends of a group of
//! messages one right after the other.
//!
//! @param may_run whether a device may run the pass that it stands at now. @param go called with
//! each device that moves. @return whether any has.
//! @throws what the functions throw.
template <class MayRun, class Go>
bool take_turns(plan const& work, rooms::plan_walk& walk, MayRun may_run, Go go) {
  bool moved = false;
  for (int device = 0; device < work.over.extents.devices; ++device) {
    auto const steps = work.program_of(device);
    bool ran = false;
    while (!walk.ended(device)) {
      if (steps[static_cast<std::size_t>(walk.at(device))].what == operation::run) {
        if (ran || !may_run(device))
          break;
        ran = true;
        walk.move_to(device, rooms::end_of_group(steps, walk.at(device)));
        go(device);
      } else if (!walk.go_on(device, go)) {
        break;
      }
      moved = true;
    }
  }
  return moved;
}

//! One order of all items of all devices in which the ends of a group come one right after
//! the other: for each item or group, the device whose turn it is.
//!
//! Devices take turns of one pass each, so that none is much later than the others: a host that
//! enqueues in this order, and only so far ahead, lets no device run dry while it waits for
//! another.
//!
//! @pre prove(work)
//! @complexity O(n P) for n items.
[[nodiscard]] inline std::vector<int> drained_order(plan const& work) {
  std::vector<int> order;
  rooms::plan_walk walk(work);
  while (take_turns(
    work, walk, [](int) { return true; }, [&order](int device) { order.push_back(device); })) {
  }
  return order;
}

//! A plan, the places of its items on the streams of all devices, and how far it has come.
struct stream_plan {
  plan lowered;                           //!< the plan
  std::vector<device_board> boards{};     //!< [P]
  std::optional<peer_copies> transport{}; //!< of messages
  graph iteration{};                      //!< the whole iteration, once it is captured
  std::vector<int> order;                 //!< which device enqueues next
  std::vector<int> position;              //!< the item that each device is at
  //! [P], the item after the last one of this iteration where it begins again; else after all.
  std::vector<int> ends;
  int steps = 0; //!< that have ended

  //! @param devices [P], which outlive this; their memory may grow.
  //! @pre nothing is on their streams. @throws error
  stream_plan(plan work,
              std::span<std::unique_ptr<shared_device> const> devices,
              board_options const& chosen)
      : lowered(std::move(work)), order(drained_order(lowered)), position(devices.size()),
        ends(devices.size()) {
    boards.reserve(devices.size());
    for (std::size_t device = 0; device < devices.size(); ++device) {
      board_options own = chosen;
      auto const sharers =
        static_cast<int>(std::count_if(devices.begin(), devices.end(), [&](auto const& each) {
          return each->gpu() == devices[device]->gpu();
        }));
      if (own.run_ahead > 0)
        own.run_ahead = std::max(2, own.run_ahead / sharers);
      boards.emplace_back(lowered, static_cast<int>(device), *devices[device], own);
    }
    transport.emplace(lowered, std::span(boards));
  }
  stream_plan(stream_plan const&) = delete;
  stream_plan& operator=(stream_plan const&) = delete;
  ~stream_plan() = default;

  //! The stream on which an iteration starts and ends.
  [[nodiscard]] cudaStream_t origin() const noexcept { return boards.front().compute(); }

  //! All devices are at their first item. @param carried rows that the totals of the last
  //! device are to hold, or none.
  void begin(std::span<std::byte const> carried, bool captured) {
    transport->reset();
    for (std::size_t d = 0; d < boards.size(); ++d) {
      position[d] = 0;
      ends[d] = static_cast<int>(lowered.program_of(static_cast<int>(d)).size());
    }
    if (lowered.validation != step_validation::at_once)
      for (device_board& board : boards) {
        current_device const scope(board.gpu());
        bool const last = &board == &boards.back();
        board.decisions()->begin(board.slots(lowered, lowered.over.extents.devices - 1),
                                 last ? carried : std::span<std::byte const>(),
                                 board.compute());
      }
    spread(captured);
  }
  //! Where a device has found that the iteration begins again, takes it on to the next
  //! messages that come to it all the same, or after its last item.
  void leave_out(int device) {
    auto const d = static_cast<std::size_t>(device);
    if (!boards[d].begins_again() || position[d] < rooms::behind_validation(lowered, device))
      return;
    ends[d] = rooms::behind_validation(lowered, device);
    auto const items = lowered.program_of(device);
    while (static_cast<std::size_t>(position[d]) < items.size() &&
           !rooms::arrives_early(lowered, device, items[static_cast<std::size_t>(position[d])]))
      position[d] = rooms::end_of_group(items, position[d]);
  }
  //! True when a validation has found the step of the iteration before wrong.
  [[nodiscard]] bool begins_again() const {
    return std::any_of(
      boards.begin(), boards.end(), [](device_board const& board) { return board.begins_again(); });
  }

  //! Lets all streams of all devices wait for the origin so far.
  void spread(bool captured) {
    for (device_board& board : boards) {
      if (&board != &boards.front())
        boards.front().start_after(origin(), board.compute());
      board.fork(captured);
    }
  }
  //! The origin goes on after all streams of all devices.
  void gather() {
    for (device_board& board : boards) {
      board.join();
      if (&board != &boards.front())
        board.start_after(board.compute(), origin());
    }
  }

  //! Looks how far the devices have come. @throws error when one reports it.
  void look() {
    // Once a GPU is lost it tells nothing any more: its events are asked while it works.
    for (std::size_t d = 0; d < boards.size(); ++d)
      boards[d].look(enqueued(d));
  }
  //! The first device that has not ended its enqueued items, or `nothing`.
  [[nodiscard]] int first_unfinished() const {
    for (std::size_t d = 0; d < boards.size(); ++d)
      if (boards[d].first_unfinished() < enqueued(d))
        return static_cast<int>(d);
    return nothing;
  }
  //! A line for every device that has not ended, as far as was known when it last said so.
  [[nodiscard]] std::string standings() const {
    std::string text;
    for (int device = 0; device < lowered.over.extents.devices; ++device) {
      auto const d = static_cast<std::size_t>(device);
      int const at = boards[d].first_unfinished();
      if (at < enqueued(d))
        text += "\n  device " + std::to_string(device) + " has not ended item " +
                std::to_string(at) + " of " + std::to_string(lowered.program_of(device).size()) +
                ": " + in_words(device, at);
    }
    return text;
  }
  //! The item of a device before which all are on its streams.
  [[nodiscard]] int enqueued(std::size_t device) const {
    return std::min(position[device], ends[device]);
  }
  //! Describes an item.
  [[nodiscard]] std::string in_words(int device, int item_index) const {
    return describe(lowered.program_of(device)[static_cast<std::size_t>(item_index)], lowered);
  }
};

} // namespace pipelining::inline v0_3::cuda::detail
