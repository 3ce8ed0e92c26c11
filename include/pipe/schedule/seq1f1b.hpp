// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B over chunks of sequences. Header for pipelining::Seq1F1B.

#include <pipe/schedule/schedule.hpp>

#include <algorithm>

namespace pipelining::inline v0_1 {

//! @brief 1F1B over units (microbatch, chunk): sequences are cut into `Chunks` chunks; forward
//! passes take them first
//!        to last, backward passes last to first, sequences in order.
//!
//! With chunks of equal work the bubble is (P - 1)(F + B) of one chunk, 1/C of 1F1B's, and device 0
//! holds (P + C - 1) / C microbatches instead of P. Any P >= 1, M >= 1, C >= 1; C = 1 is 1F1B.
//!
//! @tparam Chunks chunks of one sequence, or `dynamic` for a number that is known only at run time.
//! @complexity O(1) per pass.
//! @source Sun et al., "Seq1F1B", NAACL 2025 (arXiv:2406.03488), the partially ordered queue.
template <int Chunks = dynamic>
struct Seq1F1B {
  static_assert(Chunks == dynamic || Chunks >= 1, "Seq1F1B: a sequence has at least one chunk");

  int chunks = Chunks;

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches, .chunks = chunks};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const all = units(extents);
    // The last forward of the head sequence must precede the first backward, hence the extra C - 1
    // units.
    int const warm_up = std::min(extents.devices - 1 - device + extents.chunks - 1, all);
    for (int unit = 0; unit < warm_up; ++unit)
      forward(extents, device, unit, out);
    for (int unit = 0; unit < all; ++unit) {
      if (warm_up + unit < all)
        forward(extents, device, warm_up + unit, out);
      out.backward(device, unit / extents.chunks, extents.chunks - 1 - unit % extents.chunks);
    }
  }

private:
  static constexpr void forward(shape const& extents, int device, int unit, row_writer& out) {
    out.forward(device, unit / extents.chunks, unit % extents.chunks);
  }
};

} // namespace pipelining::inline v0_1
