// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B with several stages per device. Header for pipelining::Interleaved.

#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_3 {
//! @brief Interleaved 1F1B: V stages per device, stage s on device s mod P; microbatches run in
//! groups, each group through all stages of a device before the next group.
//!
//! With F and B the times of one stage, that is 1/V of what a device holds, and no latency, the
//! bubble is (P - 1)(F + B) for any M >= P, 1/V of 1F1B's. The reference wants M to be a multiple
//! of the group size N, or the rest to be at least P; here groups differ by at most one microbatch
//! and none is smaller than P, so any M will do. M < P adds (V - 1)(P - M)(F + B).
//!
//! Device d holds min((V - 1) N + stagger (P - 1 - d) + 1, V M) stage activations, each 1/V of a
//! microbatch, N being the largest group. With `stagger` 2, as in the reference, a latency of at
//! most F and at most B adds 2 latency (V P - 1) whatever M, when P > 1, V > 1 and N = P divides M.
//! A longer one makes every round wait. With `stagger` 1 device 0 holds V P
//! instead of (V + 1) P - 1, at the same bubble when there is no latency; a latency then adds
//! 2 latency (V P + P - 3 + (P - 1) V (M / P - 1)) for P > 1, which grows with M.
//!
//! @tparam StagesPerDevice V, or `dynamic` for a number that is known only at run time.
//! @tparam Group the wished N; 0 stands for P. A group smaller than P saves memory and costs time.
//! @tparam Stagger forward passes by which the warm-up of a device exceeds that of the next, 1
//! or 2.
//! @throws std::invalid_argument from `arrange` for a parameter out of range.
//! @complexity O(1) per pass.
//! @source Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
//! Megatron-LM", SC 2021, section 2.2.2; uneven groups and stagger 1 are an own derivation, checked
//! by simulation.
template <int StagesPerDevice = dynamic, int Group = dynamic, int Stagger = dynamic>
using Interleaved = detail::Walk<detail::walk{}, StagesPerDevice, 1, Group, Stagger>;

} // namespace pipelining::inline v0_3
