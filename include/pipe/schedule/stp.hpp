// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Passes braided so that each hides the other's all-reduce. Header for pipelining::STP.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/schedule.hpp>

#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

//! @brief Synergistic tensor and pipeline parallelism: two stages per device in a V, and nearly all
//! passes in composite pairs (braids) whose layers alternate, so that the all-reduce of one runs
//! next to the compute of the other. Pairs are of two forward passes, of a forward pass and a
//! backward pass of any kind.
//!
//! With `uniform_cost::all_reduce` of R, device d waits for 2P + (d + 1) mod 2 all-reduces of
//! forward passes and of gradients of inputs that run by themselves, whatever M. Without latency
//! and R the bubble is (P - 1)(F + I - W) for F = I = W, (P - 1)(2F + 2I - 3W) for W <= F <= I.
//! Device 0 holds 3P + 1 activations of one stage, the last device 4P - 1, others max(3P + 1, 3P +
//! d). Any P.
//!
//! @tparam How pairs as composite passes or in turn.
//! @pre M >= 3P - 1.
//! @throws std::invalid_argument from `arrange` for fewer microbatches: the published program loses
//! passes of some there.
//! @complexity O(1) per pass.
//! @source "Synergistic Tensor and Pipeline Parallelism", 2025 (arXiv:2510.27257), and its
//! repository, MICLAB-BUPT/STP. The laws of the bubble and of the peak are what our tests find.
template <pairs How = pairs::overlapped>
struct STP {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (microbatches < 3 * devices - 1)
      throw std::invalid_argument("STP: " + std::to_string(microbatches) +
                                  " microbatches are too few: its braids begin when " +
                                  std::to_string(3 * devices - 1) +
                                  " are there, 3 P - 1; take "
                                  "DualPipeV or VHalf for fewer");
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = 2,
            .where = placement::wave};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const after = extents.devices - 1 - device; // devices after this one
    int const alternating = 2 * (extents.microbatches - 3 * extents.devices + 1) + 1 + 2 * device;
    int const fused = alternating - device;
    detail::paired_passes row{How == pairs::overlapped,
                              {{extents.stage_of(device, 0), 0, extents.microbatches},
                               {extents.stage_of(device, 1), 0, extents.microbatches}},
                              &out};
    using enum pass_kind;
    for (int i = 0; i < 2 * after; ++i)
      row.push(forward, 0);
    for (int i = 0; i <= device; ++i) {
      row.push(forward, 0);
      row.push(forward, 1);
    }
    if (device % 2 == 0)
      row.push(forward, 0);
    for (int i = 0; i < (device + 1) / 2; ++i)
      row.pair(forward, 0, forward, 0);
    for (int i = 0; i < after; ++i) {
      row.pair(forward, 1, backward_input, 1);
      row.pair(forward, 0, backward_weight, 1);
    }
    // Gradients of weights that are put off: those of the last pairs in turn, then of side 1.
    int put_off[2] = {row.of[0].backwards + fused / 2, row.of[1].backwards + (fused + 1) / 2};
    for (int i = 0; i < alternating; ++i) {
      int const side = i % 2 == 0 ? 1 : 0;
      row.pair(forward, side, i < fused ? backward : backward_input, side);
    }
    int const rest = extents.microbatches - extents.devices - 1 - alternating / 2;
    for (int i = 0; i < rest; ++i) {
      row.push(backward, 0);
      row.pair(forward, 1, backward_input, 1);
    }
    for (int i = 0; i <= device; ++i) {
      row.push(backward, 0);
      row.push(backward, 1);
    }
    int taken = 0;
    auto const weight = [&] {
      int const at = fused + taken++; // among the pairs in turn
      int const side = at >= alternating || at % 2 == 0 ? 1 : 0;
      out.push(row_writer::make(backward_weight, row.of[side].stage, put_off[side]++));
    };
    for (int i = 0; i < after; ++i) {
      row.push(backward, 0);
      weight();
      weight();
    }
    row.push(backward, 0);
    for (int i = 0; i < 2 * device; ++i)
      weight();
  }
};

} // namespace pipelining::inline v0_3
