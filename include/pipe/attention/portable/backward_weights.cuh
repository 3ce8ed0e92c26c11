// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Weights and gradients of the logits in backward, on the accumulators of mma.sync.

#include <pipe/attention/kernel/tile_search.cuh>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Products to weights (in s) and to gradients of the products (in d, which comes with dO . V).
//! Rows are keys and columns queries.
//! @tparam Whole  every pair of the tile exists and is kept
//! @param first   of the lane's pairs
//! @param rows    that exist, counted from there; columns likewise
//! @param numbers shared memory with two floats of the query of each column, from the lane's first
//! on
template <bool Whole, int Tiles, int Columns, class Call>
__device__ inline void make_gradients(float (&s)[Tiles][Columns][4],
                                      float (&d)[Tiles][Columns][4],
                                      pair_position first,
                                      int rows,
                                      int columns,
                                      Call const& c,
                                      unsigned char const* numbers) {
  constexpr bool is_plain = std::is_same_v<std::remove_cvref_t<decltype(c.f)>, plain>;
  float const factor = is_plain ? c.scale * log2_of_e : log2_of_e;
#pragma unroll
  for (int n = 0; n < Columns; ++n) {
    auto const four = *reinterpret_cast<float4 const*>(numbers + n * 8 * 8);
    float const lse[2] = {four.x, four.z};
    float const mean[2] = {four.y, four.w};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      int const column = n * 8 + e;
#pragma unroll
      for (int half = 0; half < 2 * Tiles; ++half) {
        int const row = half * 8;
        float& x = s[half / 2][n][half % 2 * 2 + e];
        float& y = d[half / 2][n][half % 2 * 2 + e];
        pair_position const at{first.batch, first.head, first.query + column, first.key + row};
        if (Whole || (row < rows && column < columns && c.m.keep(at))) {
          float const product = x * c.scale;
          float logit = x;
          if constexpr (!is_plain) {
            logit = static_cast<float>(c.f.value(product, at));
          }
          x = power_of_two(logit * factor - lse[e]);
          y = x * (y - mean[e]);
          if constexpr (!is_plain) {
            y *= static_cast<float>(c.f.derivative(product, logit, at));
          }
        } else {
          x = 0;
          y = 0;
        }
      }
    }
  }
}

} // namespace pipelining::inline v0_3::attention::detail
