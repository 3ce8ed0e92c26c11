// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One forward, one backward. Header for pipelining::OneFOneB.

#include <pipe/schedule/schedule.hpp>

#include <algorithm>

namespace pipelining::inline v0_1 {

//! @brief 1F1B: device d runs P - 1 - d forward passes, then one forward and one backward in turn.
//!
//! Bubble (P - 1)(F + B) with no latency; peak min(P - d, M) activations on device d. With latency
//! the steady state waits for every message, and the bubble grows with M. Any P >= 1, M >= 1.
//!
//! @complexity O(1) per pass.
//! @source Narayanan et al., "PipeDream", SOSP 2019, section 3.2, in its flushing form (Narayanan
//! et al., SC 2021,
//!         section 2.2.1).
struct OneFOneB {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const warm_up = std::min(extents.devices - 1 - device, extents.microbatches);
    for (int microbatch = 0; microbatch < warm_up; ++microbatch)
      out.forward(device, microbatch);
    for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch) {
      if (warm_up + microbatch < extents.microbatches)
        out.forward(device, warm_up + microbatch);
      out.backward(device, microbatch);
    }
  }
};

} // namespace pipelining::inline v0_1
