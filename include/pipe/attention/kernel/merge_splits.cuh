// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Kernel that merges what a forward call found in parts of the keys.

#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/parameters.hpp>
#include <pipe/config.hpp>

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

inline constexpr int merge_threads = 128; //!< four rows of a block, one per warp

//! Merges the parts of one query and head: O and log-sum-exp, from what is there with carry::in.
//! @source own derivation: sums of exponentials over disjoint sets add up, see merge.hpp
template <int Dim, class Element>
__device__ inline void merge_splits_block(parameters const& p,
                                          forward_tensors<Element, float> const& t,
                                          key_splits const& splits) {
  constexpr int per_lane = Dim % 32 == 0 ? Dim / 32 : 4; // neighbours
  int const lane = static_cast<int>(threadIdx.x) % 32;
  auto const rows = p.batch * p.heads * p.query_length;
  auto const row = std::int64_t{blockIdx.x} * (merge_threads / 32) + threadIdx.x / 32;
  if (row >= rows) {
    return;
  }
  auto const query = row % p.query_length;
  auto const head = row / p.query_length % p.heads;
  auto const batch = row / p.query_length / p.heads;
  int const first = lane * per_lane;
  bool const there = per_lane * 32 == Dim || first < Dim; // else the lane has none
  auto* const out = t.output.row(batch, query, head) + first;
  auto& lse = t.log_sum_exp.at(batch, head, query);
  float const before = p.from == carry::in ? lse : -INFINITY;
  float most = before;
  for (int s = 0; s < splits.count; ++s) {
    most = fmaxf(most, splits.log_sum_exp[s * rows + row]);
  }
  float const base = most == -INFINITY ? 0.0f : most;
  float sum = expf(before - base);
  float merged[per_lane];
#pragma unroll
  for (int d = 0; d < per_lane; ++d) {
    merged[d] = there && sum > 0 ? sum * static_cast<float>(out[d]) : 0.0f;
  }
  for (int s = 0; s < splits.count; ++s) {
    float const weight = expf(splits.log_sum_exp[s * rows + row] - base);
    float const* const part = splits.output + (s * rows + row) * Dim + first;
    sum += weight;
#pragma unroll
    for (int d = 0; d < per_lane; ++d) {
      merged[d] += there ? weight * part[d] : 0.0f;
    }
  }
#pragma unroll
  for (int d = 0; d < per_lane; ++d) {
    if (there) {
      out[d] = static_cast<Element>(sum > 0 ? merged[d] / sum : 0.0f);
    }
  }
  __syncwarp(); // every lane has read what the first one overwrites
  if (lane == 0) {
    lse = sum > 0 ? most + logf(sum) : -INFINITY;
  }
}

template <class Built, int Dim, class Element>
PIPELINING_KERNEL void __launch_bounds__(merge_threads)
  merge_splits_kernel(parameters const __grid_constant__ p,
                      forward_tensors<Element, float> const __grid_constant__ t,
                      key_splits const __grid_constant__ splits) {
  merge_splits_block<value_dim(Dim)>(p, t, splits);
}

template <int Dim, class Built, class Element>
void launch_merge(launcher const& launch,
                  parameters const& p,
                  forward_tensors<Element, float> const& t,
                  key_splits const& splits) {
  constexpr std::int64_t rows_of_block = merge_threads / 32;
  auto const blocks = (p.batch * p.heads * p.query_length + rows_of_block - 1) / rows_of_block;
  launch({blocks, merge_threads}, merge_splits_kernel<Built, Dim, Element>, p, t, splits);
}

} // namespace pipelining::inline v0_3::attention::detail
