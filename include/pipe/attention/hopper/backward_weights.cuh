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

//! Products to weights times derivatives of the score, in place. Rows are keys, columns queries.
//! @tparam Whole every pair exists and is kept
//! @param at   of the lane's first row and column
//! @param rows that exist, counted from there; columns likewise
//! @param lse  of columns 8 n and 8 n + 1: log-sum-exps as powers of two
//! @param keep of (part n, its weights): takes the weights alone
template <bool Whole, int Count, mask Mask, score Score, class Lse, class Keep>
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
    float2 const base = lse(n);
    float weight[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& x = s[4 * n + e];
      int const row = e / 2 * 8;
      int const column = n * 8 + e % 2;
      pair_position const here{at.batch, at.head, at.query + column, at.key + row};
      weight[e] = 0;
      if (Whole || (row < rows && column < columns && m.keep(here))) {
        float const product = x * scale;
        float logit = x;
        if constexpr (!is_plain) {
          logit = static_cast<float>(f.value(product, here));
        }
        weight[e] = power_of_two(logit * factor - (e % 2 == 0 ? base.x : base.y));
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
    float2 const base = mean(n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const i = 4 * n + 2 * half;
      to[2 * n + half] = pack<Element>(s[i] * (d[i] - base.x), s[i + 1] * (d[i + 1] - base.y));
    }
  }
}

} // namespace pipelining::inline v0_3::attention::detail
