// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Logits and online softmax on the accumulators of wgmma.
//!
//! A lane holds two rows of a product, 8 apart: numbers 4 n and 4 n + 1 are columns 8 n and 8 n + 1
//! of the first row, counted from the lane's own column, the next two those of the second.

#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_2::attention::detail {

//! Which pairs of a tile are kept, a bit for each column of the lane: asked for in a loop of its
//! own, which takes few registers beside those of the products.
//! @param at   of the lane's first row and column
//! @param rows that exist, counted from there; columns likewise
template <int Columns, mask Mask>
__device__ __forceinline__ void
ask_mask(std::uint32_t (&kept)[2], pair_position at, int rows, int columns, Mask const& m) {
  static_assert(Columns <= 32);
  kept[0] = 0;
  kept[1] = 0;
#pragma unroll 1
  for (int n = 0; n < Columns; ++n) {
    int const column = n / 2 * 8 + n % 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const row = half * 8;
      pair_position const here{at.batch, at.head, at.query + row, at.key + column};
      if (row < rows && column < columns && m.keep(here)) {
        kept[half] |= 1u << n;
      }
    }
  }
}

//! Logits [64, keys] of a tile from products, in place. Whole: every pair exists and is kept.
//! @param at   of the lane's first row and column
//! @param rows that exist, counted from there; columns likewise
template <bool Whole, int Count, mask Mask, score Score>
__device__ __forceinline__ void make_hopper_logits(float (&s)[Count],
                                                   pair_position at,
                                                   int rows,
                                                   int columns,
                                                   float scale,
                                                   Mask const& m,
                                                   Score const& f) {
  constexpr bool is_plain = std::is_same_v<Score, plain>;
  if constexpr (!Whole || !is_plain) {
    std::uint32_t kept[2];
    if constexpr (!Whole) {
      ask_mask<Count / 2>(kept, at, rows, columns, m);
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      bool const is_kept = Whole || (kept[i % 4 / 2] >> (i / 4 * 2 + i % 2) & 1) != 0;
      if constexpr (is_plain) {
        s[i] = is_kept ? s[i] : -INFINITY;
      } else {
        int const row = i % 4 / 2 * 8;
        int const column = i / 4 * 8 + i % 2;
        pair_position const here{at.batch, at.head, at.query + row, at.key + column};
        s[i] = is_kept ? static_cast<float>(f.value(s[i] * scale, here)) : -INFINITY;
        if (i % 4 == 3) { // else what scores read is read for all columns at once
          asm volatile("" ::: "memory");
        }
      }
    }
  }
}

//! Online softmax of the two rows that a lane shares with three others.
struct row_pair {
  float most[2];   // in units of the logits
  float sum[2];    // of this lane alone
  float shrink[2]; // of everything summed before the last tile

  //! Turns logits to weights; factor takes them to powers of two.
  template <int Count>
  __forceinline__ __device__ void add(float (&s)[Count], float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = most[half];
#pragma unroll
      for (int i = 2 * half; i < Count; i += 4) {
        top = fmaxf(top, fmaxf(s[i], s[i + 1]));
      }
      top = largest_of_row(top);
      float const base = top == -INFINITY ? 0.0f : top * factor;
      shrink[half] = power_of_two(most[half] * factor - base);
      most[half] = top;
      float added = 0;
#pragma unroll
      for (int i = 2 * half; i < Count; i += 4) {
        s[i] = power_of_two(s[i] * factor - base);
        s[i + 1] = power_of_two(s[i + 1] * factor - base);
        added += s[i] + s[i + 1];
      }
      sum[half] = sum[half] * shrink[half] + added;
    }
  }
};

} // namespace pipelining::inline v0_2::attention::detail
