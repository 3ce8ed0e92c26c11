// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Microbatches from both ends. Header for pipelining::Chimera, ChimeraWaves and BitPipe.

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

  detail::parameter<StagesPerDevice> stages_per_device{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return detail::arrange_both_ways(devices, microbatches, stages_per_device);
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    detail::write_by_slots(extents, device, out);
  }
};

//! @brief One stage per device and direction, as published.
using Chimera = ChimeraWaves<1>;

//! @brief BitPipe: two V's of 2P stages, one the mirror image of the other; half of the
//! microbatches take each, and each runs in the bubble of the other.
//!
//! A block of P microbatches has the order of `ChimeraWaves<2>`: with stages of half the size, the
//! bubble (P/2 - 1) 2B of M = P takes half of Chimera's time. Microbatches below M/2 enter at
//! device 0, the others at device P - 1. The weights are held twice, and the two holders of a stage
//! add up their gradients.
//!
//! More than P microbatches are blocks one after the other: the backward passes at the end of one
//! take turns with the forward passes at the beginning of the next, a backward pass first. That is
//! the published way, and devices wait for each other in it: every further block adds
//! 2 floor((P/2 - 1)(P/2 + 3) / 4)(F + B) to the bubble. Take M = P, or `ChimeraWaves<2>`, which
//! joins the same blocks for 2(P/2 - 1)(B - F) each. Both laws for F <= B without latency, M a
//! multiple of P. Peak between 3P/2 + 1 activations of one stage on the outer devices and 2P on the
//! two in the middle, if M >= P. Other M leave out the passes of the microbatches that a last block
//! lacks.
//!
//! @pre P is even.
//! @complexity O(1) per pass.
//! @source Wu et al., "BitPipe: Bidirectional Interleaved Pipeline Parallelism for Accelerating
//! Large Models Training" (arXiv:2410.19367) and its repository; the laws are what our tests find
//! at P <= 14, M <= 4P and random times.
struct BitPipe {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return detail::arrange_both_ways(devices, microbatches, 2);
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    detail::slot_block const block(extents, device);
    // Before slot `head` of a block there are only forward passes, and by symmetry as many
    // backward passes only at its end.
    int const outer = device < extents.devices - 1 - device ? extents.devices - 1 - device : device;
    int const head = 2 * extents.stages() - 1 - (extents.devices + outer);
    int const tail = block.slots() - head;
    // Writes the next pass of a block at or after a slot; returns the slot after it.
    auto const write = [&](int number, int slot, int end) {
      while (slot < end && !block.push(number, slot++, out)) {
      }
      return slot;
    };
    for (int number = 0; number <= block.count(); ++number) {
      for (int ends = tail, begins = 0; ends < block.slots() || begins < head;) {
        ends = write(number - 1, ends, block.slots());
        begins = write(number, begins, head);
      }
      for (int slot = head; slot < tail; ++slot)
        block.push(number, slot, out);
    }
  }
};

} // namespace pipelining::inline v0_3
