// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One forward, one backward on stages that lie in waves. Header for pipelining::Hanayo.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/slot_block.hpp>
#include <pipe/schedule/schedule.hpp>

#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief Hanayo: a microbatch goes down the devices and up again, W times, through 2W stages per
//! device, and back the same way; backward passes in one piece.
//!
//! In slots of equal length, the i-th microbatch of the k-th block of P runs forward on stage s in
//! slot 2Sk + 2i + s and backward in slot 2Sk + 2i + 2S - 1 - s, with S = 2WP; the order is that of
//! the slots. In such slots it is as short as a list schedule, which runs whatever is there,
//! backward passes first, then the oldest microbatch, with at most P under way; where F < B such a
//! list is longer.
//!
//! With M a multiple of P, F <= B and no latency, the bubble is 2(P - 1)(B + (M/P - 1)(B - F)) on
//! every device, in times of one stage: for F = B 1/(2W) of 1F1B's. Peak 2WP - (P - 1 - d)
//! activations of one stage on device d, if M >= P; on the last one these are P microbatches. Other
//! M leave out the passes of the microbatches that the last block lacks: valid, with a larger
//! bubble. Any P >= 1, M >= 1.
//!
//! @tparam Waves W, or `dynamic`.
//! @throws std::invalid_argument from `arrange` when W is smaller than 1.
//! @complexity O(W) per pass.
//! @source Liu et al., "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model
//! Training Efficiency" (SC 2023, arXiv:2308.15762), for the placement and backward passes first.
//! Which microbatch goes first, how many are under way, and so the slots, are assumed; the laws are
//! what our tests find at P <= 9, M <= 4P and random times.
template <int Waves = dynamic>
struct Hanayo {
  static_assert(Waves == dynamic || Waves >= 1, "Hanayo: there is at least one wave");

  detail::parameter<Waves, 1> waves{}; //!< times down the devices and up again

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (waves < 1 || waves > 32767)
      throw std::invalid_argument("Hanayo: there is at least one wave, and at most 32767");
    return {.devices = devices,
            .microbatches = microbatches,
            .stages_per_device = 2 * waves,
            .where = placement::wave};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    detail::write_by_slots(extents, device, out);
  }
};

} // namespace pipelining::inline v0_3
