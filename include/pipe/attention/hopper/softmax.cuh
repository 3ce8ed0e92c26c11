// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Logits and online softmax on the accumulators of wgmma.
//!
//! A lane holds two rows of a product, 8 apart: numbers 4 n and 4 n + 1 are columns 8 n and 8 n + 1
//! of the first row, counted from the lane's own column, the next two those of the second.

#include <pipe/attention/kernel/kept_pairs.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

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

//! How far above the base of its row, as a power of two, a logit may be before the base follows: so
//! far that sums are hardly ever scaled, and so little that weights fit a half.
inline constexpr float most_above_base = 8;

//! 2^-n for a whole n of at least 0, which may be 0 where n is above 126. No exponential: those are
//! counted.
__device__ __forceinline__ float shrunk_by(float n) {
  return __int_as_float((127 - static_cast<int>(fminf(n, 127.0f))) << 23);
}

//! Online softmax of the two rows that a lane shares with three others. Weights are relative to a
//! base, which only follows the largest logit where that has grown far above it: most tiles need
//! neither the largest of a row nor sums that are scaled.
//! @source Zadouri et al. 2026 (FlashAttention-4): sums that are scaled seldom
struct row_pair {
  float base[2]; // a power of two; 0 where the row has no sum
  float sum[2];  // of this lane alone
  int most;      // bits of the largest power that needs no new base; least where a row has no sum

  //! Makes logits powers of two of their weights; factor takes them to powers. Whether some base of
  //! the warp has to follow them.
  template <int Count>
  __forceinline__ __device__ bool compare(float (&s)[Count], float factor) const {
    int top = INT_MIN;
#pragma unroll
    for (int i = 0; i < Count; i += 2) {
      s[i] = s[i] * factor - base[i % 4 / 2];
      s[i + 1] = s[i + 1] * factor - base[i % 4 / 2];
      // Where one is above 0, floats are in the order of their bits: three to an instruction.
      top = max(max(top, __float_as_int(s[i])), __float_as_int(s[i + 1]));
    }
    return __any_sync(0xffffffffu, top >= most) != 0;
  }

  //! Moves bases to the powers and what was summed with them. The first base of a row is its
  //! largest power, whose weight is 1, which no rounding changes: a query that sees one key gets
  //! its value to the bit. Later ones are further by whole numbers, so that no sum is rounded.
  template <int Count, int Columns>
  __forceinline__ __device__ void follow(float (&s)[Count], float (&output)[Columns]) {
    most = __float_as_int(most_above_base);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 2 * half; i < Count; i += 4) {
        top = fmaxf(top, fmaxf(s[i], s[i + 1]));
      }
      top = largest_of_row(top);
      bool const is_empty = sum_of_row(sum[half]) == 0;
      float move = fmaxf(ceilf(top), 0.0f);
      float const shrink = shrunk_by(move);
      if (is_empty) { // may move down as well
        move = top == -INFINITY ? 0.0f : top;
        most = top == -INFINITY ? INT_MIN : most;
      }
      base[half] += move;
      sum[half] *= shrink;
#pragma unroll
      for (int i = 2 * half; i < Count; i += 4) {
        s[i] -= move;
        s[i + 1] -= move;
      }
#pragma unroll
      for (int i = 2 * half; i < Columns; i += 4) {
        output[i] *= shrink;
        output[i + 1] *= shrink;
      }
    }
  }

  //! Turns powers to weights and sums them.
  template <int Count>
  __forceinline__ __device__ void add(float (&s)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i += 2) {
      s[i] = power_of_two(s[i]);
      s[i + 1] = power_of_two(s[i + 1]);
      sum[i % 4 / 2] += s[i] + s[i + 1];
    }
  }
};

} // namespace pipelining::inline v0_3::attention::detail
