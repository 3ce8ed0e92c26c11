// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches backward of chunked attention on a GPU.

#include <pipe/attention/backward_launch.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/portable/backward_mma.cuh>
#include <pipe/attention/query_sums.hpp>
#include <pipe/config.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pipelining::inline v0_3::attention {

namespace detail {

template <class Built, int Dim, query_order Order, class Element, mask Mask, score Score>
PIPELINING_KERNEL void __launch_bounds__(backward_shape<Dim, Score>::threads)
  backward_mma_kernel(backward_call<Element, Mask, Score> const __grid_constant__ call,
                      query_sums const __grid_constant__ sums) {
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  run_backward_block<Dim, Order>(call, sums, attention_memory);
}

//! Backward with the portable kernels, of a call that is checked.
template <int Dim, class Built, query_order Order, class Element, mask Mask, score Score>
void start_on_device(parameters const& p,
                     backward_tensors<Element, float, float> const& t,
                     row_view<float> mean,
                     query_sums const& sums,
                     Mask const& m,
                     Score const& f,
                     cudaStream_t stream,
                     launch_memory& memory) {
  using shape = backward_shape<Dim, Score>;
  backward_call<Element, Mask, Score> const call{
    p, t, mean, m, f, static_cast<float>(p.effective_scale())};
  launch_backward<Built, kernel_family::portable, Dim>(
    memory, call, sums, shape::keys, stream, [&](unsigned blocks) {
      launch(memory,
             backward_mma_kernel<Built, Dim, Order, Element, Mask, Score>,
             call,
             {blocks},
             shape::threads,
             shape::shared_bytes,
             stream,
             sums);
    });
}

} // namespace detail

//! @brief Gradients of one chunk of queries on the GPU of the stream: writes dQ, adds to the
//! running dK and dV.
//!
//! The chunks of a sequence come last chunk first; start with zeros before the last chunk. After
//! chunk c, dK and dV of chunk c's own keys are final. With parameters::from = carry::in, dQ is
//! added to (keys in slices, with the log-sum-exp and O of all keys). One kernel with five products
//! of tiles, between one that sets dQ to zero and one that rounds it. Every number of dK and dV is
//! summed by one thread in one order. Several blocks add to one of dQ: in a kept order, in which
//! each waits for the one before, or as they come.
//!
//! @tparam Dim   elements of a head: 64, 80, 96, 112, 128, 256, or head_dims(192, 128)
//! @tparam Order of the sums of dQ. kept: the same call gives the same bits. free: the last bits
//!               of dQ differ from call to call; faster where few heads leave blocks waiting
//! @param p      sizes, offsets, scale (above 0): those of the chunk's forward
//! @param t      views of device memory, each 16-byte aligned with strides that are multiples of 16
//!               bytes; shapes as backward_tensors says
//! @param mean   scratch in device memory, [batch, heads, query_length]; holds dO . O afterwards
//! @param sums   query_sums::in scratch in device memory, for kernel_family::portable, that nobody
//!               else uses until the kernels are over
//! @param m      the mask of forward
//! @param f      the score of forward
//! @param stream in whose order the kernels run; the call does not wait for them
//! @throws std::invalid_argument as check_for_kernels, before any launch
//! @throws cuda::error where a launch fails
template <int Dim,
          class Element,
          mask Mask = causal,
          score Score = plain,
          class Built = built_here,
          query_order Order = query_order::kept>
void backward_on_device(parameters const& p,
                        backward_tensors<Element, float, float> const& t,
                        row_view<float> mean,
                        query_sums const& sums,
                        Mask const& m,
                        Score const& f,
                        cudaStream_t stream) {
  static_assert(detail::is_kernel_element<Element>,
                "attention::backward_on_device: elements must be __nv_bfloat16 or __half, because "
                "the matrix units multiply no others here; use attention::backward for float");
  detail::check_for_kernels<Dim>(p, t, mean);
  launch_memory once;
  detail::start_on_device<Dim, Built, Order>(p, t, mean, sums, m, f, stream, once);
}

} // namespace pipelining::inline v0_3::attention
