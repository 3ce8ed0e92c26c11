// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Slices of sequences on interleaved stages with split backward passes. Header for
//! pipelining::SVPP.

#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_3 {

//! @brief SVPP of MEPipe: V looped stages per device, chunks of sequences ("slices") and split
//! backward passes, with a knob that trades bubble for memory.
//!
//! Microbatches pass in groups of N = ceil(P / C), the last with what is left. Device d runs
//! (V - 1) N C + C - 1 + P - 1 - d forward passes, then a forward and a backward_input pass in
//! turn, each with the gradient of the weights of the unit d places before.
//!
//! With F, I, W the times of one chunk on one stage, W <= F, W <= I, no latency and
//! M C >= P + C - 1, the bubble is (P - 1)(F + I - W) on span and makespan where the last group has
//! at least P chunks, there is only one group, or V = 1; other last groups may add to it. Every
//! device holds min((V - 1) N C + P + C - 1, V M C) chunks of one stage; where C divides P or P
//! divides C that is V max(P, C) + min(P, C) - 1.
//!
//! With at most `forwards` forward passes before the first backward pass, V C at least, no device
//! holds more chunks of one stage than that: groups shrink until (V - 1) N C + C is no more, then
//! the warm-up of the first devices and the lag of the gradients of the weights. That groups
//! shrink, and where gradients of weights go, is our reading of the paper. Any P >= 1, M >= 1.
//!
//! Seq1F1BZeroBubbleInterleaved is the same with groups of even sizes: it never loses to a small
//! last group, but holds more where N does not divide M.
//!
//! @tparam StagesPerDevice V, or `dynamic`. @tparam Chunks C, or `dynamic`. @tparam Forwards
//! forward passes of a device before its first backward pass, or `dynamic`; 0: no limit.
//! @throws std::invalid_argument from `arrange` for a parameter out of range.
//! @complexity O(1) per pass.
//! @source Sun et al., "MEPipe: Democratizing LLM Training with Memory-Efficient Slice-Level
//! Pipeline Scheduling on Cost-Effective Accelerators", EuroSys 2025, whose order we compose from
//! its description: groups and warm-up of interleaved stages, chunks of Seq1F1B, lag of ZB-H1.
template <int StagesPerDevice = dynamic, int Chunks = dynamic, int Forwards = dynamic>
using SVPP = detail::
  Walk<detail::walk{.lag = 1, .remainder_last = true}, StagesPerDevice, Chunks, 0, 1, Forwards>;

} // namespace pipelining::inline v0_3
