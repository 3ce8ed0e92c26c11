// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Two V shapes in opposite directions on the same devices. Header for pipelining::BitPipe.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/slot_block.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_3 {

//! @brief BitPipe: two V's of 2P stages, one the mirror image of the other; half of the
//! microbatches take each, and each runs in the bubble of the other.
//!
//! A block of P microbatches has the order of `ChimeraWaves<2>`: with stages of half the size, the
//! bubble (P/2 - 1) 2B of M = P takes half of Chimera's time. Microbatches below M/2 enter at
//! device 0, the others at device P - 1. The weights are held twice, and the two holders of a stage
//! add up their gradients.
//!
//! More than P microbatches are blocks one behind the other: the backward passes at the end of one
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
    // Before slot `head` of a block there are forward passes alone, and by symmetry as many
    // backward passes alone at its end.
    int const outer = device < extents.devices - 1 - device ? extents.devices - 1 - device : device;
    int const head = 2 * stages(extents) - 1 - (extents.devices + outer);
    int const tail = block.slots() - head;
    // Writes the next pass of a block at or after a slot; returns the slot behind it.
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
