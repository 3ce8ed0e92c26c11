// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The best V shape under a memory limit. Header for pipelining::VAuto.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/repeat.hpp>
#include <pipe/schedule/block/timeline.hpp>
#include <pipe/schedule/block/v_search.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/v_shape.hpp>

#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief The V shape with the smallest bubble that a limit on activations allows, for the costs at
//! hand.
//!
//! Starts from the block that fills the memory best, or from one with a longer interval where no
//! block of six slots fits, and searches from there, which takes a program; `SweptVAuto`
//! does without. Bubble with unit costs, M >= 2P
//! and m = memory_limit >= 2 floor((P + 4) / 3): max(6P - 1 - 3m, 4P - 3m + 2 ceil(m / 2), 0). Any
//! P >= 1, M >= 1.
//!
//! @tparam MemoryLimit activations of one stage for one whole microbatch that a device may hold, at
//! least 2, or `dynamic`.
//! @tparam Chunks chunks of a sequence, or `dynamic`.
//! @throws std::invalid_argument (generate) for a limit below 2, at which no V can run.
//! @complexity `search_effort`.
//! @source own derivation, see docs/explanation/v_shapes.md; the frontier is that of the adaptive
//! search of Qi et al., NeurIPS 2024.
template <int MemoryLimit = dynamic, int Chunks = 1, effort How = effort::search>
struct VAuto {
  static_assert(MemoryLimit == dynamic || MemoryLimit >= 2,
                "VAuto: a device of a V holds at least two activations, one per stage");
  static_assert(Chunks == dynamic || Chunks >= 1, "VAuto: a sequence has at least one chunk");

  //! activations of one stage that a device may hold
  parameter<MemoryLimit, dynamic, double> memory_limit{};
  parameter<Chunks> chunks{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return waves::arrange(devices, microbatches, chunks, 2);
  }
  template <cost_model Cost>
  constexpr void generate(shape const& extents, Cost const& cost, row_writer* rows) const {
    detail::generate_repeated(*this, extents, cost, rows);
  }

  //! @brief How long it looks for an order.
  static constexpr effort how = How;
  static constexpr bool searches_unit_costs = true;
  [[nodiscard]] static constexpr bool fused() noexcept { return false; }
  constexpr void start(detail::timeline& line, building_block& block) const {
    if (!(memory_limit >= 2))
      throw std::invalid_argument(
        "VAuto: the memory limit must be at least 2 activations, one for each of the two stages "
        "of a device");
    shape const& extents = line.problem.extents;
    double const all = 2.0 * extents.microbatches;
    double const wished = memory_limit;
    double const most = (wished < all ? wished : all) * extents.chunks;
    line.problem.limit = static_cast<int>(most + 1e-6);
    fill(line.problem.limit - 2 * (extents.chunks - 1), block);
    detail::wait_for_sequence(block);
    detail::repeat(block, line);
  }

private:
  //! The largest block of six slots within the limit, or the shortest longer one. With an even
  //! interval the gap at the loss always leaves room for both legs.
  static constexpr void fill(int limit, building_block& block) {
    strides<2> plan = detail::v_strides(detail::v_min_offsets);
    bool fits = detail::lay_out_largest(limit, block);
    // Each pass of a unit takes a slot, so that the lifespans on a device sum up to 4P + 4 at
    // least; an interval that is shorter than their share of the limit need not be tried.
    int const least = limit > 0 ? (4 * block.extents.devices + 4) / limit / 2 * 2 : 0;
    plan.interval = least > plan.interval + 2 ? least : plan.interval + 2;
    for (; !fits; plan.interval += 2) {
      plan.lay_out(block);
      fits = peak_of(block) <= limit;
    }
  }
};

namespace detail {

//! The same without a search: five sweeps from the block that fills the memory best.
template <int MemoryLimit = dynamic, int Chunks = 1>
using SweptVAuto = VAuto<MemoryLimit, Chunks, effort::sweeps>;

} // namespace detail

} // namespace pipelining::inline v0_3
