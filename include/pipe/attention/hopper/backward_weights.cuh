// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Weights and gradients of the logits in backward, on the accumulators of wgmma.

#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

__device__ inline float2 read_two(std::uint32_t from) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(from));
  return two;
}

//! A number of the query of each accumulator of part n: 4 n ... 4 n + 3.
struct numbers_of_part {
  float of[4];
};

//! Products to weights times derivatives of the score, in place.
//! @tparam Whole  every pair exists and is kept
//! @tparam Across rows are keys and columns queries
//! @param at   of the lane's first row and column
//! @param rows that exist, counted from there; columns likewise
//! @param lse  of part n: log-sum-exps as powers of two
//! @param keep of (part n, its weights): takes the weights alone
template <bool Whole, bool Across, int Count, mask Mask, score Score, class Lse, class Keep>
__device__ __forceinline__ void make_hopper_weights(float (&s)[Count],
                                                    pair_position at,
                                                    int rows,
                                                    int columns,
                                                    float scale,
                                                    Mask const& m,
                                                    Score const& f,
                                                    Lse const& lse,
                                                    Keep const& keep) {
  constexpr bool is_plain = std::is_same_v<Score, plain>;
  float const factor = is_plain ? scale * log2_of_e : log2_of_e;
#pragma unroll
  for (int n = 0; n < Count / 4; ++n) {
    numbers_of_part const base = lse(n);
    float weight[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& x = s[4 * n + e];
      int const row = e / 2 * 8;
      int const column = n * 8 + e % 2;
      pair_position const here{
        at.batch, at.head, at.query + (Across ? column : row), at.key + (Across ? row : column)};
      weight[e] = 0;
      if (Whole || (row < rows && column < columns && m.keep(here))) {
        float const product = x * scale;
        float logit = x;
        if constexpr (!is_plain) {
          logit = static_cast<float>(f.value(product, here));
        }
        weight[e] = power_of_two(logit * factor - base.of[e]);
        x = weight[e];
        if constexpr (!is_plain) {
          x *= static_cast<float>(f.derivative(product, logit, here));
        }
      } else {
        x = 0;
      }
    }
    keep(n, weight);
    if constexpr (!Whole || !is_plain) {
      asm volatile("" ::: "memory"); // else what masks read is read for all columns at once
    }
  }
}

//! Gradients of the products, rounded to elements: s (d - mean), where d is dO . V.
template <class Element, int Count, class Mean>
__device__ __forceinline__ void make_hopper_gradients(std::uint32_t (&to)[Count / 2],
                                                      float const (&s)[Count],
                                                      float const (&d)[Count],
                                                      Mean const& mean) {
#pragma unroll
  for (int n = 0; n < Count / 4; ++n) {
    numbers_of_part const base = mean(n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const i = 4 * n + 2 * half;
      to[2 * n + half] = pack<Element>(s[i] * (d[i] - base.of[2 * half]),
                                       s[i + 1] * (d[i + 1] - base.of[2 * half + 1]));
    }
  }
}

} // namespace pipelining::inline v0_3::attention::detail
