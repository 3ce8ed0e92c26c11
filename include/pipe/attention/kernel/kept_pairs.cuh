// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Finds the pairs of a tile that a mask keeps, for the accumulators of one lane.

#include <pipe/attention/mask.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

//! Finds the pairs of a tile that are kept, a bit for each column of the lane. Asks for them in a
//! loop of its own, which takes few registers next to the registers of the products.
//! @param kept receives a mask of columns for each row of the lane; rows lie 8 apart
//! @param at   of the lane's first row and column
//! @param rows that exist, counted from there; columns likewise
template <int Columns, int Halves, mask Mask>
__device__ __forceinline__ void
ask_mask(std::uint32_t (&kept)[Halves], pair_position at, int rows, int columns, Mask const& m) {
  static_assert(Columns <= 32);
#pragma unroll
  for (int half = 0; half < Halves; ++half) {
    kept[half] = 0;
  }
#pragma unroll 1
  for (int n = 0; n < Columns; ++n) {
    int const column = n / 2 * 8 + n % 2;
#pragma unroll
    for (int half = 0; half < Halves; ++half) {
      int const row = half * 8;
      pair_position const here{at.batch, at.head, at.query + row, at.key + column};
      if (row < rows && column < columns && m.keep(here)) {
        kept[half] |= 1u << n;
      }
    }
  }
}

} // namespace pipelining::inline v0_3::attention::detail
