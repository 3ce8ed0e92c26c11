// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Zero bubble on a V. Header for pipelining::ZeroBubbleV.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/repeat.hpp>
#include <pipe/schedule/block/timeline.hpp>
#include <pipe/schedule/block/v_search.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/v_shape.hpp>

namespace pipelining::inline v0_3 {
namespace detail {
struct zero_bubble_v_block {
  static constexpr int stages_per_device = 2;
  static constexpr bool fused = false;
  static constexpr void lay_out(building_block& block) {
    v_strides(v_zero_bubble_offsets).lay_out(block);
  }
  //! Its order by hand, where there are no chunks.
  static constexpr void write(timeline& line) {
    line.problem.limit = line.stages + 2 * (line.chunks - 1);
    for (int device = 0; line.chunks == 1 && device < line.problem.devices(); ++device)
      write_zero_bubble_v(line, device);
  }
};
} // namespace detail

//! @brief The V shape without a bubble on the span: ZB-V, at 1F1B's memory.
//!
//! Starts from the hand-made order and reorders it for the costs, at most 2P chunks of activations.
//! With unit costs and M >= 2P - 1: span without bubble, makespan (P - 1) F over the work. With
//! unequal times or latency a search goes on from there, in the program; `SweptZeroBubbleV` has
//! none. Any P >= 1, M >= 1.
//!
//! With chunks it starts from the block of `VZeroBubble` instead and holds 2 (C - 1) chunks more.
//!
//! @tparam Chunks chunks of a sequence, or `dynamic`.
//! @complexity as `Repeat`.
//! @source Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6 (ZB-V), for the
//! start.
template <int Chunks = 1, effort How = effort::search>
using ZeroBubbleVChunked = Repeat<detail::zero_bubble_v_block, waves, Chunks, How>;

using ZeroBubbleV = ZeroBubbleVChunked<>; //!< @brief The same without chunks of sequences.
namespace detail {

//! Without a search for real costs.
using SweptZeroBubbleV = ZeroBubbleVChunked<1, effort::sweeps>;

} // namespace detail

} // namespace pipelining::inline v0_3
