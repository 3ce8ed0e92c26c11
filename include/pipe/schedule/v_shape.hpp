// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief V shapes with controllable memory. Header for pipelining::VShape and its named offsets.

#include <pipe/core/shape.hpp>
#include <pipe/schedule/building_block.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/v_timeline.hpp>
#include <pipe/schedule/v_workspace.hpp>

namespace pipelining::inline v0_1 {

//! @brief The least memory of the family: floor((P + 4) / 3) activations of a device's share of the
//! model, about a third of 1F1B's. Bubble with unit costs 6P - 1 - 3 (2 floor((P + 4) / 3)).
inline constexpr offsets v_min_offsets{.forward_down = 1,
                                       .forward_up = 1,
                                       .backward_down = 1,
                                       .backward_up = 1,
                                       .forward_turn = 1,
                                       .backward_turn = 1};

//! @brief Half of 1F1B's memory: floor((P + 2) / 2) activations of a device's share of the model.
//! The bubble stays bounded in M while W + 2 I >= 2 F and W + 2 F >= 2 I.
inline constexpr offsets v_half_offsets{.forward_down = 2,
                                        .forward_up = 1,
                                        .backward_down = 2,
                                        .backward_up = 1,
                                        .forward_turn = 2,
                                        .backward_turn = 1};

//! @brief No bubble on the span with unit costs and M >= 2P - 1, at 1F1B's memory.
inline constexpr offsets v_zero_bubble_offsets{.forward_down = 4,
                                               .forward_up = 2,
                                               .backward_down = 4,
                                               .backward_up = 2,
                                               .forward_turn = 1,
                                               .backward_turn = 1};

//! @brief Two stages per device in a V; the structural offsets of one microbatch set the memory.
//!
//! The block of one microbatch is repeated every interval, squeezed, and its warm-up and cool-down
//! are reordered, without holding more activations than the block does in its steady state. The
//! order looks at the costs: with unequal times or latency a search at run time goes on from there
//! (a constant evaluation stops here). Any P >= 1, M >= 1.
//!
//! With chunks, the units (microbatch, chunk) take the place of microbatches, and the backward legs
//! wait until a sequence has gone forward; peak: that of one chunk plus 2 (C - 1) chunks.
//!
//! Bubble with unit costs, M >= 2P, peak m chunks of activations:
//! max(6P - 1 - 3m, 4P - 3m + 2 ceil(m / 2), 0).
//!
//! @tparam Offsets the structure of the block. @tparam Chunks chunks of a sequence, or `dynamic`.
//! @throws std::invalid_argument (generate) when no gaps keep the passes of a device apart.
//! @complexity O(1) per pass and sweep in practice; five sweeps, about 25 ns each per pass. Search:
//! `search_effort`.
//! @source Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024
//! (arXiv:2405.15362), section 3, for the block; the reorder is our own, see
//! docs/explanation/v_shapes.md.
template <offsets Offsets, int Chunks = 1>
struct VShape {
  static_assert(Chunks == dynamic || Chunks >= 1, "VShape: a sequence has at least one chunk");

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
    lay_out_smallest(Offsets, block);
    // On two devices V-Min's own block leaves a slot open that another of its memory fills.
    if (Offsets == v_min_offsets && extents.devices == 2)
      static_cast<void>(detail::lay_out_largest(peak_of(block), block));
    detail::wait_for_sequence(block, extents.chunks);
    line.problem.limit = peak_of(block);
    detail::repeat(block, line);
  }
  template <int Devices, int Microbatches, class Cost>
  using slices = detail::v_slices<VShape, Devices, Microbatches, Cost>;
};

using VMin = VShape<v_min_offsets>;
using VHalf = VShape<v_half_offsets>;
using VZeroBubble = VShape<v_zero_bubble_offsets>;

} // namespace pipelining::inline v0_1
