// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Interleaved stages with the backward pass split in two. Header for
//! pipelining::ZeroBubbleInterleaved.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_3 {

//! @brief ZB-H1 over interleaved stages: every device owns V stages, microbatches pass through them
//! in groups, and the gradients of the weights lag behind by one pass per device.
//!
//! There are max(1, M / P) groups, as even as possible, the larger ones first; N is the size of the
//! first, P where P divides M. A device runs (V - 1) N + P - 1 - d forward passes first, half of
//! what interleaved 1F1B needs. Bubble, in times of one stage with W <= I and W <= F and no
//! latency: (P - 1)(F + I - W) on span and makespan for every M >= P. Peak (V - 1) N + P
//! activations of one stage on every device when M >= P, V M when M < P. V = 1 is ZB-H1. Any P >=
//! 1, M >= 1, V >= 1.
//!
//! @tparam StagesPerDevice V, or `dynamic` for a number that is known only at run time.
//! @complexity O(1) per pass.
//! @source Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), combined
//! with Narayanan et al., SC 2021, section 2.2.2. Where all groups are of one size, the order is
//! that of PyTorch's ScheduleInterleavedZeroBubble; uneven groups are our own.
template <int StagesPerDevice = dynamic>
using ZeroBubbleInterleaved = detail::LoopedWalk<detail::walk{.lag = 1}, StagesPerDevice, 1>;

} // namespace pipelining::inline v0_3
