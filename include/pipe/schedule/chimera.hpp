// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Two pipelines in opposite directions on the same devices. Header for pipelining::Chimera.

#include <pipe/schedule/schedule.hpp>

#include <stdexcept>

namespace pipelining::inline v0_2 {

//! @brief Chimera: half of the microbatches go through the devices from the first to the last, half
//! from the last to the first, and each direction runs in the bubble of the other.
//!
//! In slots of equal length, the i-th microbatch of a direction's k-th block of P/2 runs forward on
//! stage s in slot 2Pk + 2i + s and backward in slot 2Pk + 2i + 2P - 1 - s. No two passes of a device
//! fall into one slot, so the order is that of the slots. Microbatches below M/2 enter at device 0,
//! the others at device P - 1. The weights are held twice, and the two holders of a stage add up
//! their gradients.
//!
//! With M a multiple of P, F <= B and no latency, the bubble is (P/2 - 1)(2B + 2(M/P - 1)(B - F)) on
//! every device. Peak between P/2 + 1 activations of one stage on the outer devices and P on the two
//! in the middle, if M >= P. Other M leave out the passes of the microbatches that a last block
//! lacks: valid, with a larger bubble.
//!
//! @pre P is even.
//! @complexity O(1) per pass.
//! @source Li, Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with
//! Bidirectional Pipelines" (SC 2021, arXiv:2107.06925), section 3; the bubble for F < B is what
//! our tests find at P <= 12, M <= 5P and random times.
struct Chimera {
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (devices % 2 != 0)
      throw std::invalid_argument(
        "Chimera: the number of devices must be even, because device d and device P - 1 - d hold "
        "the same two stages");
    return {.devices = devices, .microbatches = microbatches, .where = placement::bidirectional};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const mirrored = extents.devices - 1 - device;
    int const half = extents.microbatches / 2;
    direction const ways[] = {{device, 0, half}, {mirrored, half, extents.microbatches - half}};
    int const slots = 2 * extents.devices;
    int const blocks = (2 * (extents.microbatches - half) + extents.devices - 1) / extents.devices;
    for (int slot = 0; slot < slots * (blocks + 1); ++slot)
      for (direction const& way : ways) {
        push(extents, pass_kind::forward, way, slot - way.stage, out);
        push(extents, pass_kind::backward, way, slot - (slots - 1 - way.stage), out);
      }
  }

private:
  //! What a device has of one direction.
  struct direction {
    int stage;
    int first; //!< microbatch
    int count; //!< of microbatches
  };

  //! Writes the pass that falls into a slot, if there is one.
  //! @param since slots since the pass of the direction's first microbatch.
  static constexpr void push(
    shape const& extents, pass_kind kind, direction const& way, int since, row_writer& out) {
    int const within = since % (2 * extents.devices);
    if (since < 0 || within % 2 != 0 || within >= extents.devices)
      return;
    int const microbatch = since / (2 * extents.devices) * (extents.devices / 2) + within / 2;
    if (microbatch < way.count)
      out.push(row_writer::make(kind, way.stage, way.first + microbatch));
  }
};

} // namespace pipelining::inline v0_2
