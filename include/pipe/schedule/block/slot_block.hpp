// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Blocks of microbatches in slots of equal length, on stages that lie to and fro. Header
//! for pipelining::slot_block and pipelining::detail::write_by_slots.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_3::detail {

//! The passes of a device in a block of as many microbatches as there are devices, half of them of
//! each direction where there are two.
//!
//! In slots of equal length, the i-th microbatch of a direction runs forward on stage s in slot
//! 2i + s and backward in slot 2i + 2S - 1 - s. No two passes of a device fall into one slot, not
//! even where the next block begins 2S slots later: then all slots are taken.
class slot_block {
public:
  //! @pre the placement is a wave, or bidirectional with an even number of devices.
  constexpr slot_block(shape const& extents, int device) noexcept
      : extents_(extents), device_(device), ways_(extents.routes()) {}

  //! Slots of a block on all devices.
  [[nodiscard]] constexpr int slots() const noexcept {
    return 2 * extents_.stages() + 2 * (in_block() - 1);
  }
  //! How many blocks the microbatches fill, the last perhaps in part.
  [[nodiscard]] constexpr int count() const noexcept {
    return (present(ways_ - 1) + in_block() - 1) / in_block();
  }
  //! Writes the pass of block `number` that falls into a slot, if there is one. @return whether
  //! there is; those of microbatches that do not exist are not written.
  constexpr bool push(int number, int slot, row_writer& out) const {
    int const devices = extents_.devices;
    for (int leg = 0; leg < extents_.stages_per_device; ++leg)
      for (int way = 0; way < ways_; ++way) {
        bool const mirrored = (leg + way) % 2 == 1;
        int const stage = leg * devices + (mirrored ? devices - 1 - device_ : device_);
        for (pass_kind const kind : {pass_kind::forward, pass_kind::backward}) {
          int const first =
            kind == pass_kind::forward ? stage : 2 * extents_.stages() - 1 - stage; // slot
          int const since = slot - first;
          if (since < 0 || since % 2 != 0 || since / 2 >= in_block())
            continue;
          int const microbatch = number * in_block() + since / 2;
          if (microbatch >= 0 && microbatch < present(way))
            out.push(row_writer::make(kind, stage, way * present(0) + microbatch));
          return true;
        }
      }
    return false;
  }

private:
  //! Microbatches of a direction in a block.
  [[nodiscard]] constexpr int in_block() const noexcept { return extents_.devices / ways_; }
  //! Microbatches of a direction in all.
  [[nodiscard]] constexpr int present(int way) const noexcept {
    int const first = extents_.microbatches / ways_;
    return way + 1 < ways_ ? first : extents_.microbatches - (ways_ - 1) * first;
  }

  shape extents_;
  int device_;
  int ways_;
};

//! Writes all passes of a device, blocks 2S slots apart.
//! @complexity O(V) per pass.
constexpr void write_by_slots(shape const& extents, int device, row_writer& out) {
  slot_block const block(extents, device);
  int const period = 2 * extents.stages();
  for (int slot = 0; slot < period * (block.count() + 1); ++slot)
    for (int back = 0; back < 2; ++back) // a block goes on while the next one begins
      block.push(slot / period - back, slot % period + back * period, out);
}

} // namespace pipelining::inline v0_3::detail
