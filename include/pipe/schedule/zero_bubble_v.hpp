// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Zero bubble on a V. Header for pipelining::ZeroBubbleV.

#include <pipe/core/shape.hpp>
#include <pipe/schedule/building_block.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/v_hand_order.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/v_timeline.hpp>
#include <pipe/schedule/v_workspace.hpp>

namespace pipelining::inline v0_1 {
//! @brief The V shape without a bubble on the span: ZB-V, at 1F1B's memory.
//!
//! Starts from the hand-made order and reorders it for the costs, at most 2P chunks of activations.
//! With unit costs and M >= 2P - 1: span without bubble, makespan (P - 1) F over the work. With
//! unequal times or latency a search at run time goes on from there. Any P >= 1, M >= 1.
//!
//! With chunks it starts from the block of `VZeroBubble` instead and holds 2 (C - 1) chunks more.
//!
//! @tparam Chunks chunks of a sequence, or `dynamic`.
//! @complexity as `VShape`.
//! @source Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6 (ZB-V), for the
//! start.
template <int Chunks = 1>
struct ZeroBubbleVChunked {
  static_assert(Chunks == dynamic || Chunks >= 1, "ZeroBubbleV: a sequence has at least one chunk");

  int chunks = Chunks;

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return detail::v_extents(devices, microbatches, chunks);
  }

  template <cost_model Cost>
  constexpr void generate(shape const& extents, Cost const& cost, row_writer* rows) const {
    detail::generate_v(*this, extents, cost, rows);
  }

  static constexpr bool fused = false;
  static constexpr bool searches_unit_costs = false;
  constexpr void
  start(shape const& extents, detail::v_timeline& line, building_block& block) const {
    line.problem.limit = 2 * extents.devices + 2 * (extents.chunks - 1);
    if (extents.chunks == 1) {
      for (int device = 0; device < extents.devices; ++device)
        detail::write_zero_bubble_v(line, device);
      return;
    }
    lay_out_smallest(v_zero_bubble_offsets, block);
    detail::wait_for_sequence(block, extents.chunks);
    detail::repeat(block, line);
  }
  template <int Devices, int Microbatches, class Cost>
  using slices = detail::v_slices<ZeroBubbleVChunked, Devices, Microbatches, Cost>;
};

using ZeroBubbleV = ZeroBubbleVChunked<>;

} // namespace pipelining::inline v0_1
