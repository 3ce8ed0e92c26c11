// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Statistics of a query for backward kernels, before any key: log-sum-exp and dO . O.

#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/kernel/warp_matrix.cuh>
#include <pipe/attention/kernel_call.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

//! Statistics of a query for backward: log-sum-exp as a power of two, and dO . O.
struct query_statistics {
  float lse;
  float mean;
};

//! Log-sum-exp times log2 e; 0 for a query that saw nothing, whose weights are all 0 anyway.
__device__ inline float power_of(float lse) {
  return lse == -INFINITY ? 0.0f : lse * log2_of_e;
}

//! dO . O of the rows of a warp, to shared memory and to the scratch tensor.
template <int Rows, int Dim, class Call>
__device__ inline void find_means(
  Call const& c, pair_position block, int first, int row, int rows, float* mean, int lane) {
  using element = std::remove_pointer_t<decltype(c.t.query_gradient.data)>;
  constexpr int lanes = lanes_of_row(Dim); // 16 bytes each
#pragma unroll
  for (int step = 0; step < Rows; step += 32 / lanes) {
    int const line = row + step + lane / lanes;
    float sum = 0;
    auto const place = lane % lanes * 8;
    if (line < rows && place < Dim) {
      auto const o = *reinterpret_cast<uint4 const*>(
        c.t.output.row(block.batch, first + line, block.head) + place);
      auto const g = *reinterpret_cast<uint4 const*>(
        c.t.output_gradient.row(block.batch, first + line, block.head) + place);
      std::uint32_t const left[4] = {o.x, o.y, o.z, o.w};
      std::uint32_t const right[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        auto const a = unpack<element>(left[i]);
        auto const b = unpack<element>(right[i]);
        sum += a.x * b.x + a.y * b.y;
      }
    }
#pragma unroll
    for (int away = lanes / 2; away > 0; away /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, away);
    }
    if (lane % lanes == 0) {
      mean[line] = sum;
      if (line < rows) {
        c.mean.at(block.batch, block.head, first + line) = sum;
      }
    }
  }
}

} // namespace pipelining::inline v0_3::attention::detail
