// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Fill and drain. Header for pipelining::GPipe.

#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_2 {

//! @brief All forward passes, then all backward passes, both in microbatch order.
//!
//! Bubble (P - 1)(F + B + 2 latency) on the span; peak M activations on every device. Any P >= 1, M
//! >= 1.
//!
//! @complexity O(1) per pass.
//! @source Huang et al., "GPipe", NeurIPS 2019, section 2.3.
struct GPipe {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
      out.forward(device, microbatch);
    for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
      out.backward(device, microbatch);
  }
};

} // namespace pipelining::inline v0_2
