// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B with the backward pass split in two. Header for pipelining::ZeroBubbleH1 and
//! pipelining::ZeroBubbleH2.

#include <pipe/schedule/schedule.hpp>

#include <algorithm>

namespace pipelining::inline v0_1 {
namespace detail {

//! The order that both hand-made zero-bubble schedules share: `reach` (P - 1 - d) forward passes
//! first, then one forward and one backward_input in turn, each backward_weight `reach` d
//! microbatches behind its backward_input.
constexpr void zero_bubble_order(shape const& extents, int reach, int device, row_writer& out) {
  int const all = extents.microbatches;
  int const warm_up = std::min(reach * (extents.devices - 1 - device), all);
  int const lag = std::min(reach * device, all);
  for (int microbatch = 0; microbatch < warm_up; ++microbatch)
    out.forward(device, microbatch);
  for (int microbatch = 0; microbatch < all; ++microbatch) {
    if (warm_up + microbatch < all)
      out.forward(device, warm_up + microbatch);
    out.backward_input(device, microbatch);
    if (microbatch >= lag)
      out.backward_weight(device, microbatch - lag);
  }
  for (int microbatch = all - lag; microbatch < all; ++microbatch)
    out.backward_weight(device, microbatch);
}

} // namespace detail

//! @brief ZB-H1: the order of 1F1B with split backward passes; device d runs the gradients of the
//! weights d microbatches late, which fills the tail of the pipeline.
//!
//! Bubble, with F, I, W the times of the three kinds, W <= I and W <= F: (P - 1)(F + I - W) on span
//! and makespan with no latency and M >= P; a latency c adds 4 (P - 1) c when M >= 2P, so the
//! bubble does not grow with M as that of 1F1B does. Peak min(P, M) activations on every device.
//! Any P >= 1, M >= 1.
//!
//! @complexity O(1) per pass.
//! @source Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section
//! 2.1 and table 2.
struct ZeroBubbleH1 {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    detail::zero_bubble_order(extents, 1, device, out);
  }
};

//! @brief ZB-H2: twice the warm-up of ZB-H1 and twice its lag, so that steady state begins with no
//! wait.
//!
//! Bubble on the span max(0, (P - 1)(F + I + 2c - 2W)) when M >= 2P - 1 and W <= F <= I; on the
//! makespan at least the (P - 1)(F + c) that the last device waits for its first input. Peak
//! min(2P - 1, M) activations on every device. With M < 2P - 1 the order stays valid and the bubble
//! is larger. Any P >= 1, M >= 1.
//!
//! @complexity O(1) per pass.
//! @source Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section
//! 2.2 and table 2.
struct ZeroBubbleH2 {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    detail::zero_bubble_order(extents, 2, device, out);
  }
};

} // namespace pipelining::inline v0_1
