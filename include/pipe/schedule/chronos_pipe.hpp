// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Two looped stages per device whose activations live in turns. Header for
//! pipelining::ChronosPipe.

#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/repeat.hpp>

namespace pipelining::inline v0_3 {
namespace detail {

//! The block of ChronosPipe: a unit goes from device to device in one slot forwards and in
//! two slots backwards, on both stages of a device; the gaps between are those that hold the least.
//! Two passes of a device never meet only if its two forward passes are 3 slots modulo 6 apart.
inline constexpr strides<2> chronos_strides{.fused = true, .stride = {1, 1, 2, 2}};

} // namespace detail

//! @brief ChronosPipe: two stages per device, stage s on device s mod P, backward passes in one
//! piece, and three quarters of 1F1B's activations: while a unit waits on the first stage of a
//! device, few wait on the second.
//!
//! Peak at most floor((3P + 2) / 2) activations of one stage, each half of a microbatch, and one
//! more where P mod 6 is 5. For M >= P, B = 2F and no latency, the bubble lies between 3(P - 1) F,
//! that of interleaved 1F1B, which holds up to twice as much, and 6(P - 1) F, that of 1F1B. Any P
//! >= 1, M >= 1.
//!
//! The first stages of all devices hold most of what waits: Chronos-Recomp is
//! `with_recompute<ChronosPipe, recompute::first_stages>`. The second ones begin late and end
//! early: Chronos-Offload is `with_sharded_weights<ChronosPipe, weights_on_host>`.
//!
//! @tparam Chunks chunks of a sequence, or `dynamic`.
//! @complexity as `Repeat`.
//! @source ChronosPipe (2025, arXiv:2503.03182), by its abstract: strides and memory are
//! its, the gaps are our own derivation, and warm-up and cool-down are reordered as `Repeat` does.
//! The bubble is what our tests find at P <= 16.
template <int Chunks = 1, effort How = effort::search>
using ChronosPipeChunked = Repeat<fixed_block<detail::chronos_strides>, loops, Chunks, How>;

using ChronosPipe = ChronosPipeChunked<>; //!< @brief The same without chunks of sequences.
namespace detail {

//! Without a search for real costs.
using SweptChronosPipe = ChronosPipeChunked<1, effort::sweeps>;

} // namespace detail

} // namespace pipelining::inline v0_3
