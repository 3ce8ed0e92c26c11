// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One plan of a stream runner on the devices. Header for
//! pipelining::cuda::stream_plan.

#include <pipe/cuda/device_board.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/peer_copies.cuh>
#include <pipe/cuda/shared_device.cuh>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/describe.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/check.hpp>

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

//! A plan, the places of its items on the streams of all devices, and how far it has come.
struct stream_plan {
  plan work;                              //!< the plan
  plan_view view;                         //!< of it
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
  stream_plan(plan lowered,
              std::span<std::unique_ptr<shared_device> const> devices,
              board_options const& chosen)
      : work(std::move(lowered)), view(work.view()), order(rooms::drained_order(view)),
        position(devices.size()), ends(devices.size()) {
    boards.reserve(devices.size());
    for (std::size_t device = 0; device < devices.size(); ++device) {
      board_options own = chosen;
      auto const sharers =
        static_cast<int>(std::count_if(devices.begin(), devices.end(), [&](auto const& each) {
          return each->gpu() == devices[device]->gpu();
        }));
      if (own.run_ahead > 0)
        own.run_ahead = std::max(2, own.run_ahead / sharers);
      boards.emplace_back(view, static_cast<int>(device), *devices[device], own);
    }
    transport.emplace(view, std::span(boards));
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
      ends[d] = static_cast<int>(view.program_of(static_cast<int>(d)).size());
    }
    if (view.validation != step_validation::at_once)
      for (device_board& board : boards) {
        current_device const scope(board.gpu());
        bool const last = &board == &boards.back();
        board.decisions()->begin(board.slots(view, view.over.extents.devices - 1),
                                 last ? carried : std::span<std::byte const>(),
                                 board.compute());
      }
    spread(captured);
  }
  //! Where a device has found that the iteration begins again, takes it on to the next
  //! messages that come to it all the same, or behind its last item.
  void leave_out(int device) {
    auto const d = static_cast<std::size_t>(device);
    step_decisions const* const its = boards[d].decisions();
    if (its == nullptr || !its->wrong() || position[d] < rooms::behind_validation(view, device))
      return;
    ends[d] = rooms::behind_validation(view, device);
    auto const items = view.program_of(device);
    while (static_cast<std::size_t>(position[d]) < items.size() &&
           !rooms::arrives_early(view, device, items[static_cast<std::size_t>(position[d])]))
      position[d] = rooms::end_of_group(items, position[d]);
  }
  //! True when a validation has found the step of the iteration before wrong.
  [[nodiscard]] bool begins_again() {
    return std::any_of(boards.begin(), boards.end(), [](device_board& board) {
      return board.decisions() != nullptr && board.decisions()->wrong();
    });
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
    for (int device = 0; device < view.over.extents.devices; ++device) {
      auto const d = static_cast<std::size_t>(device);
      int const at = boards[d].first_unfinished();
      if (at < enqueued(d))
        text += "\n  device " + std::to_string(device) + " has not ended item " +
                std::to_string(at) + " of " + std::to_string(view.program_of(device).size()) +
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
    return describe(view.program_of(device)[static_cast<std::size_t>(item_index)], view);
  }
};

} // namespace pipelining::inline v0_3::cuda::detail
