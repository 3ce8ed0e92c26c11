// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B on a V, with the backward pass in one piece. Header for pipelining::OneFOneBV.

#include <pipe/core/shape.hpp>
#include <pipe/schedule/building_block.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/v_timeline.hpp>
#include <pipe/schedule/v_workspace.hpp>

namespace pipelining::inline v0_1 {
namespace detail {

//! The first slot from `from` on at which a backward pass of two slots is apart from the passes of
//! `slots` that lie before `leg_number`; both slots of an earlier backward pass count.
[[nodiscard]] constexpr int
first_free_pair(int const* slots, int leg_number, int from, int interval) {
  for (int slot = from; slot < from + interval; ++slot) {
    bool good = true;
    for (int at = 0; at < leg_number; ++at) {
      int const length = at <= leg::forward_up ? 1 : 2;
      for (int i = 0; i < 2; ++i)
        for (int k = 0; k < length; ++k)
          good = good && (slot + i - slots[at] - k) % interval != 0;
    }
    if (good)
      return slot;
  }
  return -1;
}

//! Lays a block out whose forward passes take one slot and whose backward passes take two, each in
//! the first slots that are free on its device; `loss_turn` slots lie between the forward and the
//! backward pass of device 0. Returns false when a pass finds no room.
[[nodiscard]] constexpr bool lay_out_fused(int loss_turn, building_block& block) {
  int const last = block.devices - 1;
  block.interval = leg::count;
  for (int device = 0; device <= last; ++device) {
    block.of(device)[leg::forward_down] = device;
    block.of(device)[leg::forward_up] = 2 * last + 1 - device;
  }
  int from = 2 * last + 1 + loss_turn;
  for (int i = 0; i < 2 * block.devices; ++i) {
    bool const down = i <= last;
    int const at = down ? leg::backward_down : leg::backward_up;
    int* const slots = block.of(down ? i : 2 * last + 1 - i);
    slots[at] = first_free_pair(slots, at, from, block.interval);
    if (slots[at] < 0)
      return false;
    slots[at + 2] = slots[at] + 1; // where its activation is given back
    from = slots[at] + 2;
  }
  return true;
}

} // namespace detail

//! @brief 1F1B on a V: two thirds of 1F1B's memory without splitting the backward pass.
//!
//! Peak at most 2 ceil((2P + 1) / 3) chunks of activations; bubble with unit costs (backward 2)
//! about 5 (P - 1) chunks of time. Any P >= 1, M >= 1.
//!
//! @tparam Chunks chunks of a sequence, or `dynamic`.
//! @complexity as `VShape`.
//! @source Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, appendix
//! (1F1B-V); the layout by first fit is our own.
template <int Chunks = 1>
struct OneFOneBVChunked {
  static_assert(Chunks == dynamic || Chunks >= 1, "OneFOneBV: a sequence has at least one chunk");

  int chunks = Chunks;

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return detail::v_extents(devices, microbatches, chunks);
  }

  template <cost_model Cost>
  constexpr void generate(shape const& extents, Cost const& cost, row_writer* rows) const {
    detail::generate_v(*this, extents, cost, rows);
  }

  static constexpr bool fused = true;
  static constexpr bool searches_unit_costs = false;
  constexpr void
  start(shape const& extents, detail::v_timeline& line, building_block& block) const {
    int best = 0;
    int least = 0;
    for (int loss_turn = 1; loss_turn <= leg::count; ++loss_turn) {
      if (!detail::lay_out_fused(loss_turn, block))
        continue;
      int const peak = peak_of(block);
      if (best > 0 && peak >= least)
        continue;
      best = loss_turn;
      least = peak;
    }
    static_cast<void>(detail::lay_out_fused(best, block));
    detail::wait_for_sequence(block, extents.chunks);
    line.problem.limit = peak_of(block);
    detail::repeat(block, line);
  }
  template <int Devices, int Microbatches, class Cost>
  using slices = detail::v_slices<OneFOneBVChunked, Devices, Microbatches, Cost>;
};

using OneFOneBV = OneFOneBVChunked<>;

} // namespace pipelining::inline v0_1
