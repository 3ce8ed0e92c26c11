// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A schedule whose composite passes complete the gradients of stages.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

namespace support {

//! Two stages per device, looped: all forward passes, then the weight gradients of the second stage
//! in one pass each with the input gradients of the first.
struct paired_weights {
  [[nodiscard]] constexpr pipelining::shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches, .stages_per_device = 2};
  }
  constexpr void
  order(pipelining::shape const& extents, int device, pipelining::row_writer& out) const {
    int const behind = device + extents.devices;
    for (int const stage : {device, behind})
      for (int m = 0; m < extents.microbatches; ++m)
        out.forward(stage, m);
    for (int m = 0; m < extents.microbatches; ++m)
      out.backward_input(behind, m);
    for (int m = 0; m < extents.microbatches; ++m) {
      out.backward_input(device, m);
      pipelining::pass with =
        pipelining::row_writer::make(pipelining::pass_kind::backward_weight, behind, m);
      with.overlapped = true;
      out.push(with);
    }
    for (int m = 0; m < extents.microbatches; ++m)
      out.backward_weight(device, m);
  }
};

} // namespace support
