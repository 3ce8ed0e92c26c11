// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches backward of chunked attention on a GPU.

#include <pipe/attention/forward.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/portable/backward_mma.cuh>
#include <pipe/config.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pipelining::inline v0_2::attention {

namespace detail {

template <class Built, int Dim, class Element, mask Mask, score Score>
PIPELINING_KERNEL void __launch_bounds__(query_gradient_shape<Dim>::threads)
  query_gradient_kernel(backward_call<Element, Mask, Score> const __grid_constant__ call) {
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  query_gradient_block<Dim>(call, attention_memory);
}

template <class Built, int Dim, class Element, mask Mask, score Score>
PIPELINING_KERNEL void __launch_bounds__(key_gradient_shape<Dim, Score>::threads)
  key_gradient_kernel(backward_call<Element, Mask, Score> const __grid_constant__ call) {
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  key_gradient_block<Dim>(call, attention_memory);
}

} // namespace detail

//! @brief Gradients of one chunk of queries on the GPU of the stream: writes dQ, adds to the
//! running dK and dV.
//!
//! The chunks of a sequence come last chunk first; start with zeros before the last chunk. After
//! chunk c, dK and dV of chunk c's own keys are final. With parameters::from = carry::in, dQ is
//! added to (keys in slices, with the log-sum-exp and O of all keys). Two kernels, one after the
//! other in the stream; the same call gives the same bits.
//!
//! @tparam Dim elements of a head: 64, 128 or 256
//! @param p      sizes, offsets, scale (above 0): those of the chunk's forward
//! @param t      views of device memory, each 16-byte aligned with strides that are multiples of 16
//!               bytes; shapes as backward_tensors says
//! @param mean   scratch in device memory, [batch, heads, query_length]; holds dO . O afterwards
//! @param m      the mask of forward
//! @param f      the score of forward
//! @param stream in whose order the kernels run; the call does not wait for them
//! @throws std::invalid_argument as check_for_kernels, before any launch
//! @throws cuda::error where a launch fails
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
void backward_on_device(parameters const& p,
                        backward_tensors<Element, float, float> const& t,
                        row_view<float> mean,
                        Mask const& m,
                        Score const& f,
                        cudaStream_t stream) {
  static_assert(is_kernel_element<Element>,
                "attention::backward_on_device: elements must be __nv_bfloat16 or __half, because "
                "the matrix units multiply no others here; use attention::backward for float");
  using of_queries = query_gradient_shape<Dim>;
  using of_keys = key_gradient_shape<Dim, Score>;
  check_for_kernels<Dim>(p, t, mean);
  auto const query_blocks =
    (p.query_length + of_queries::queries - 1) / of_queries::queries * p.heads * p.batch;
  auto const key_blocks =
    (p.key_length + of_keys::keys - 1) / of_keys::keys * p.key_heads * p.batch;
  backward_call<Element, Mask, Score> const call{
    p, t, mean, m, f, static_cast<float>(p.effective_scale())};
  if (query_blocks == 0) {
    return;
  }
  detail::launch(detail::query_gradient_kernel<Built, Dim, Element, Mask, Score>,
                 call,
                 {static_cast<unsigned>(query_blocks)},
                 of_queries::threads,
                 of_queries::shared_bytes,
                 stream);
  if (key_blocks != 0) {
    detail::launch(detail::key_gradient_kernel<Built, Dim, Element, Mask, Score>,
                   call,
                   {static_cast<unsigned>(key_blocks), of_keys::parts},
                   of_keys::threads,
                   of_keys::shared_bytes,
                   stream);
  }
}

} // namespace pipelining::inline v0_2::attention
