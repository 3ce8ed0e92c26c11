// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Zero bubble schedules by hand. Header for pipelining::ZeroBubbleH1, ZeroBubbleH2 and
//! ZeroBubbleInterleaved.

#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_3 {

//! @brief ZB-H1: the order of 1F1B with split backward passes; device d runs the gradients of the
//! weights d microbatches late, which fills the tail of the pipeline.
//!
//! Bubble, with F, I, W the times of the three kinds, W <= I and W <= F: (P - 1)(F + I - W) on span
//! and makespan with no latency and M >= P; a latency c adds 4 (P - 1) c when 2 c <= W and M >= 2P,
//! so the bubble does not grow with M as that of 1F1B does. A longer latency makes every round
//! wait. Peak min(P, M) activations on every device. Any P >= 1, M >= 1.
//!
//! @complexity O(1) per pass.
//! @source Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section
//! 2.1 and table 2.
using ZeroBubbleH1 = detail::Walk<detail::walk{.lag = 1}>;

//! @brief ZB-H2: twice the warm-up of ZB-H1 and twice its lag, so that steady state begins with no
//! wait.
//!
//! Bubble on the span max(0, (P - 1)(F + I + 2c - 2W)) when M >= 2P - 1, W <= F <= I and c <= W;
//! on the makespan that or the (P - 1)(F + c) that the last device waits for its first input,
//! whichever is more. Peak
//! min(2P - 1, M) activations on every device. With M < 2P - 1 the order stays valid and the bubble
//! is larger. Any P >= 1, M >= 1.
//!
//! @complexity O(1) per pass.
//! @source Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section
//! 2.2 and table 2.
using ZeroBubbleH2 = detail::Walk<detail::walk{.reach = 2, .lag = 2}>;

//! @brief ZB-H1 over interleaved stages: every device owns V stages, microbatches pass through them
//! in groups, and the gradients of the weights lag by one pass per device.
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
using ZeroBubbleInterleaved = detail::Walk<detail::walk{.lag = 1}, StagesPerDevice>;

} // namespace pipelining::inline v0_3
