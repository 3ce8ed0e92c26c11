// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sinks on a GPU: the state that forward begins with, and the gradient of the sinks.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/attention/built_here.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/sinks.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pipelining::inline v0_3::attention {

namespace detail {

//! The one argument of the kernel that starts at sinks.
template <class Element>
struct sink_start {
  tensor_view<Element> output;
  row_view<float> lse;
  float const* sinks; // [heads]
};

//! The one argument of the kernel that adds to the gradient of sinks.
struct sink_sums {
  row_view<float const> lse;
  row_view<float const> mean;
  float const* sinks; // [heads]
  float* gradient;    // [heads]
};

inline constexpr int sink_start_threads = 128;
inline constexpr int sink_sum_threads = 256;

//! A thread writes 16 bytes of O, the first of a row its log-sum-exp.
template <class Built, class Element>
PIPELINING_KERNEL void __launch_bounds__(sink_start_threads)
  start_at_sinks_kernel(sink_start<Element> const __grid_constant__ c) {
  auto const pieces = c.output.dim / 8;
  auto const n = std::int64_t{blockIdx.x} * sink_start_threads + threadIdx.x;
  auto const row = n / pieces;
  if (row >= c.output.batch * c.output.heads * c.output.length) {
    return;
  }
  auto const head = row % c.output.heads;
  auto const position = row / c.output.heads % c.output.length;
  auto const batch = row / c.output.heads / c.output.length;
  *reinterpret_cast<uint4*>(c.output.row(batch, position, head) + n % pieces * 8) = {0, 0, 0, 0};
  if (n % pieces == 0) {
    c.lse.at(batch, head, position) = c.sinks[head];
  }
}

//! A block for each head: sums are added up in one order.
template <class Built>
PIPELINING_KERNEL void __launch_bounds__(sink_sum_threads)
  add_sink_gradient_kernel(sink_sums const __grid_constant__ c) {
  auto const head = static_cast<std::int64_t>(blockIdx.x);
  float const sink = c.sinks[head];
  float sum = 0;
  for (auto n = static_cast<std::int64_t>(threadIdx.x); n < c.lse.batch * c.lse.length;
       n += sink_sum_threads) {
    auto const batch = n / c.lse.length;
    auto const position = n % c.lse.length;
    sum += sink_weight(sink, c.lse.at(batch, head, position)) * c.mean.at(batch, head, position);
  }
  __shared__ float sums[sink_sum_threads];
  sums[threadIdx.x] = sum;
  for (unsigned half = sink_sum_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    c.gradient[head] -= sums[0];
  }
}

} // namespace detail

//! @brief Sets the state that forward goes on from with parameters::from = carry::in, as
//! start_at_sinks does, on the GPU of the stream.
//!
//! @param output [batch, length, heads, dim], bf16 or fp16 in device memory, written
//! @param lse    [batch, heads, length], written
//! @param sinks  [heads] in device memory; minus infinity is no sink
//! @param stream in whose order the kernel runs; the call does not wait for it
//! @throws std::invalid_argument where the shapes do not agree or output is not made of pieces of
//! 16 bytes, before the launch
//! @throws cuda::error where the launch fails
template <class Element, class Built = built_here>
void start_at_sinks_on_device(tensor_view<Element> output,
                              row_view<float> lse,
                              float const* sinks,
                              cudaStream_t stream) {
  static_assert(
    detail::is_kernel_element<Element>,
    "attention::start_at_sinks_on_device: elements must be __nv_bfloat16 or __half; use "
    "attention::start_at_sinks for float");
  auto const p = detail::parameters_of(output);
  detail::check_rows("log-sum-exp", lse, p);
  detail::check_pieces("output", output);
  detail::check_kernel_sizes(p, static_cast<int>(output.dim / 8 * 8));
  auto const pieces = p.batch * p.query_length * p.heads * (output.dim / 8);
  if (pieces != 0) {
    constexpr int threads = detail::sink_start_threads;
    launch_memory once;
    detail::launcher const launch{once, stream};
    launch({(pieces + threads - 1) / threads, threads},
           detail::start_at_sinks_kernel<Built, Element>,
           {output, lse, sinks});
  }
}

//! @brief Adds the gradient of the sinks for one chunk of queries, as add_sink_gradient does, on
//! the GPU of the stream. The same call gives the same bits.
//!
//! @param lse      [batch, heads, length] of all keys, as backward took it
//! @param mean     [batch, heads, length], dO . O: what backward_on_device leaves in `mean`, and
//!                 backward_on_gpu at the start of its scratch, dense
//! @param sinks    [heads] in device memory, as forward had them
//! @param gradient [heads] in device memory, added to
//! @param stream   that of backward; the call does not wait for the kernel
//! @throws std::invalid_argument where the shapes do not agree, before the launch
//! @throws cuda::error where the launch fails
template <class Built = built_here>
void add_sink_gradient_on_device(row_view<float const> lse,
                                 row_view<float const> mean,
                                 float const* sinks,
                                 float* gradient,
                                 cudaStream_t stream) {
  parameters const p{.batch = lse.batch, .query_length = lse.length, .heads = lse.heads};
  detail::check_rows("scratch with dO . O", mean, p);
  launch_memory once;
  detail::launcher const launch{once, stream};
  launch({p.heads, detail::sink_sum_threads},
         detail::add_sink_gradient_kernel<Built>,
         {lse, mean, sinks, gradient});
}

} // namespace pipelining::inline v0_3::attention
#endif
