// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One plan of a runner for NCCL on its rank. Header for
//! pipelining::cuda::nccl_plan.

#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cuda/checked_messages.cuh>
#include <pipe/cuda/device_board.cuh>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl_messages.cuh>
#include <pipe/cuda/nccl_options.cuh>
#include <pipe/cuda/shared_device.cuh>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace pipelining::inline v0_3::cuda::detail {

//! True when all messages of a rank are to go through one stream.
//! @throws std::invalid_argument where not even one lane fits next to the program's kernels.
[[nodiscard]] inline bool one_stream(nccl_options const& options, int lanes) {
  int processors = 0;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, options.gpu),
        "cudaDeviceGetAttribute");
  check_room(options, lanes, processors);
  int const blocks = lanes * most_blocks(options.max_blocks) + registered_blocks(options);
  return options.one_message_stream || options.graph || blocks > processors;
}

//! A plan, the places of its items on the streams of a rank, and how far it has come.
//!
//! The graph is destroyed before the communicators, which wait for the graphs that use them.
struct nccl_plan {
  plan lowered;                           //!< the plan
  int rank;                               //!< the device of the plan that runs here
  int number;                             //!< among all that the runner has taken
  bool watched;                           //!< nccl_options::watched
  device_board board;                     //!< of the rank
  std::unique_ptr<message_checks> checks; //!< of its messages, if they have headers
  message_lanes lanes;                    //!< what carries its messages
  graph iteration{};                      //!< the whole iteration, once it is captured
  int steps = 0;                          //!< that have ended
  int captures = 0;                       //!< graphs so far
  int position = 0;                       //!< the item to enqueue next
  int launched = 0;                       //!< the items that are on the streams

  //! @param shared outlives this; its memory may grow. @pre nothing is on its streams, and its GPU
  //! is current.
  //! @throws std::invalid_argument as one_stream; error
  nccl_plan(plan work, int own, int taken, shared_device& shared, nccl_options const& options)
      : lowered(std::move(work)), rank(own), number(taken), watched(options.watched),
        board(lowered,
              rank,
              shared,
              detail::board_options_of(options, one_stream(options, lowered.lanes_of(rank)))),
        checks(options.checked
                 ? std::make_unique<message_checks>(lowered, rank, detail::kernels_for_checks())
                 : nullptr),
        lanes{lowered, checks.get()} {}
  nccl_plan(nccl_plan const&) = delete;
  nccl_plan& operator=(nccl_plan const&) = delete;
  ~nccl_plan() = default;

  //! The items of this rank.
  [[nodiscard]] int items() const noexcept {
    return static_cast<int>(lowered.program_of(rank).size());
  }

  //! One of them.
  [[nodiscard]] item const& at(int index) const noexcept {
    return lowered.program_of(rank)[static_cast<std::size_t>(index)];
  }

  //! Where this rank stands in its program, for a report.
  //! @param threw an exception has ended its enqueuing, so the item is the one that threw; else it
  //! is the one that the GPU has not ended.
  [[nodiscard]] rooms::rank_standing standing(bool threw) {
    bool lost = false;
    try {
      board.look(launched);
    } catch (error const&) {
      lost = true;
    }
    int const count = items();
    int const unfinished = std::min(board.first_unfinished(), position);
    std::string text;
    if (threw && position < count)
      text = "was to enqueue" + item_in_words(position) + (lost ? ", and " : "");
    if (lost)
      text += "has lost its GPU";
    if (text.empty() || (lost && unfinished < launched)) {
      text += lost ? ", which " : "";
      if (unfinished == count)
        text += watched ? "has ended all items of its program"
                        : "is somewhere in its iteration, which is not watched";
      else
        text +=
          (unfinished < launched ? "has not ended" : "was to enqueue") + item_in_words(unfinished);
    }
    int const place = threw && position < count ? position : unfinished;
    if (place < count && at(place).what != operation::run)
      return {text, {lowered.message_of(at(place)).peer}};
    return {text, {}};
  }

  //! The same while its graph is in its launch: the GPU is not asked, so the rank may be at
  //! any item, and wait for any of its peers.
  [[nodiscard]] rooms::rank_standing standing_in_launch() const {
    rooms::rank_standing found{
      "is in the launch of its graph, at" + item_in_words(0) + ", or after it", {}};
    for (item const& step : lowered.program_of(rank))
      if (step.what != operation::run) {
        int const peer = lowered.message_of(step).peer;
        if (std::find(found.waits_for.begin(), found.waits_for.end(), peer) ==
            found.waits_for.end())
          found.waits_for.push_back(peer);
      }
    return found;
  }

  //! " item 3 of 40: " and what it does.
  [[nodiscard]] std::string item_in_words(int index) const {
    return " item " + std::to_string(index) + " of " + std::to_string(items()) + ": " +
           describe(at(index), lowered);
  }
};

} // namespace pipelining::inline v0_3::cuda::detail
