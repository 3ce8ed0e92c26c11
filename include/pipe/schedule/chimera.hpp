// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Two pipelines in opposite directions on the same devices. Header for pipelining::Chimera.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/slot_block.hpp>
#include <pipe/schedule/schedule.hpp>

#include <stdexcept>

namespace pipelining::inline v0_3 {

namespace detail {
//! @throws std::invalid_argument for an odd number of devices.
[[nodiscard]] constexpr shape arrange_both_ways(int devices, int microbatches, int held) {
  if (devices % 2 != 0)
    throw std::invalid_argument(
      "Chimera, BitPipe: the number of devices must be even, because device d and device P - 1 - d "
      "hold the same stages");
  return {.devices = devices,
          .microbatches = microbatches,
          .stages_per_device = held,
          .where = placement::bidirectional};
}
} // namespace detail

//! @brief Chimera: half of the microbatches go through the devices from the first to the last, half
//! from the last to the first, and each direction runs in the bubble of the other.
//!
//! In slots of equal length, the i-th microbatch of a direction's k-th block of P/2 runs forward on
//! stage s in slot 2Sk + 2i + s and backward in slot 2Sk + 2i + 2S - 1 - s, with S = VP stages that
//! each direction runs through to and fro. No two passes of a device fall into one slot, so the
//! order is that of the slots. The first half of the microbatches, below M/2, enters at device 0,
//! the others at the last one. The weights are held twice, and the two holders of a stage add up
//! their gradients.
//!
//! With M a multiple of P, F <= B and no latency, the bubble is (P/2 - 1)(2B + 2(M/P - 1)(B - F))
//! on every device, in times of one stage: a V-th of that of V = 1. Peak between VP - P/2 + 1
//! activations of one stage on the outer devices and VP on the two in the middle, if M >= P. Other
//! M leave out the passes of the microbatches that a last block lacks: valid, with a larger bubble.
//!
//! @tparam StagesPerDevice V of each direction, or `dynamic`. @pre P is even.
//! @complexity O(V) per pass.
//! @source Li, Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with
//! Bidirectional Pipelines" (SC 2021, arXiv:2107.06925), section 3, for V = 1; more stages per
//! device are our own; the bubble for F < B is what our tests find at P <= 12, M <= 5P and random
//! times.
template <int StagesPerDevice = dynamic>
struct ChimeraWaves {
  static_assert(StagesPerDevice == dynamic || StagesPerDevice >= 1,
                "Chimera: a device holds at least one stage of each direction");

  parameter<StagesPerDevice> stages_per_device{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return detail::arrange_both_ways(devices, microbatches, stages_per_device);
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    detail::write_by_slots(extents, device, out);
  }
};

//! @brief One stage per device and direction, as published.
using Chimera = ChimeraWaves<1>;

} // namespace pipelining::inline v0_3
