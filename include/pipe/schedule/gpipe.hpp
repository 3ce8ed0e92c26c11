// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Fill and drain. Header for pipelining::GPipe and GPipeChunked.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_3 {

//! @brief All forward passes, then all backward passes, both in microbatch order; over the chunks
//! of a sequence, which go forward in order and back from the last, this is TeraPipe.
//!
//! Bubble (P - 1)(F + B + 2 latency), F and B the times of the longest chunk, whose lengths
//! `shortest_slices` finds; peak M activations on every device. Any P >= 1, M >= 1, C >= 1.
//!
//! @tparam Chunks chunks of one sequence, or `dynamic` for a number that is known only at run time.
//! @complexity O(1) per pass.
//! @source Huang et al., "GPipe", NeurIPS 2019, section 2.3; Li et al., "TeraPipe", ICML 2021
//! (arXiv:2102.07988).
template <int Chunks = dynamic>
struct GPipeChunked {
  static_assert(Chunks == dynamic || Chunks >= 1,
                "GPipe: the number of chunks must be at least 1, or dynamic");

  detail::parameter<Chunks, 1> chunks{}; //!< C

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches, .chunks = chunks};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        out.forward(device, microbatch, chunk);
    for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
      for (int chunk = extents.chunks; chunk-- > 0;)
        out.backward(device, microbatch, chunk);
  }
};

using GPipe = GPipeChunked<1>; //!< @brief The same without chunks of sequences.

} // namespace pipelining::inline v0_3
