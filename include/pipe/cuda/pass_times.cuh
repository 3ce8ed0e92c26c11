// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief When the passes of a device ran, by events on its GPU. Header for
//! pipelining::cuda::pass_times.

#include <pipe/cuda/handles.cuh>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace pipelining::inline v0_3::cuda::detail {

//! An event before and one behind every pass of one device, and one at the start of its
//! iteration. Made once; eager iterations and graphs record them anew.
class pass_times {
public:
  //! @pre the GPU of the device is current.
  pass_times(plan_view const& work, int device) : start_(cudaEventDefault) {
    auto const steps = work.program_of(device);
    before_.resize(steps.size());
    behind_.resize(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].what != operation::run || steps[i].about != subject::pass)
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
  //! It has ended.
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

} // namespace pipelining::inline v0_3::cuda::detail
