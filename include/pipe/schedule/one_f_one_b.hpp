// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One forward, one backward. Header for pipelining::OneFOneB and pipelining::EagerOneFOneB.

#include <pipe/schedule/block/walk.hpp>

namespace pipelining::inline v0_3 {

//! @brief 1F1B: device d runs P - 1 - d forward passes, then one forward and one backward in turn.
//!
//! Bubble (P - 1)(F + B) with no latency; peak min(P - d, M) activations on device d. With latency
//! the steady state waits for every message, and the bubble grows with M. Any P >= 1, M >= 1.
//!
//! @complexity O(1) per pass.
//! @source Narayanan et al., "PipeDream", SOSP 2019, section 3.2, in its flushing form (Narayanan
//! et al., SC 2021,
//!         section 2.2.1).
using OneFOneB = detail::Walk<detail::walk{}>;

//! @brief 1F1B with twice the warm-up: device d runs 2 (P - 1 - d) forward passes first, so that
//! every message has the time of one pass to travel.
//!
//! Bubble (P - 1)(F + B + 2 latency), whatever M, as long as 2 latency <= F + B; a longer latency
//! makes every round wait. Peak min(2 (P - d) - 1, M) activations on device d, about twice that of
//! 1F1B. Any P >= 1, M >= 1.
//!
//! @complexity O(1) per pass.
//! @source Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023
//! (arXiv:2211.05322), section 4; the bubble is an own derivation, checked by simulation.
using EagerOneFOneB = detail::Walk<detail::walk{.reach = 2}>;

} // namespace pipelining::inline v0_3
