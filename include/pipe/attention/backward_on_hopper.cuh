// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches backward of chunked attention on a Hopper GPU.

#include <pipe/attention/backward_launch.cuh>
#include <pipe/attention/hopper/backward.cuh>
#include <pipe/attention/hopper/code_in_program.cuh>
#include <pipe/attention/hopper/launch.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/work_order.hpp>
#include <pipe/config.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pipelining::inline v0_3::attention {

namespace detail {

template <class Built, int Dim, query_order Order, class Element, mask Mask, score Score>
PIPELINING_KERNEL void __launch_bounds__(threads_on_hopper<hopper_backward_shape<Dim>::threads>, 1)
  backward_hopper_kernel(hopper_backward_maps const __grid_constant__ maps,
                         backward_call<Element, Mask, Score> const __grid_constant__ call,
                         query_sums const __grid_constant__ sums) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  backward_hopper_block<Dim, Order>(call, maps, sums, attention_memory);
#else
  (void)maps;
  (void)call;
  (void)sums;
  __trap(); // never reached: no launch fits the bounds, see hopper/code_in_program.cuh
#endif
}

template <int Dim, class Element, mask Mask, score Score, class Built, query_order Order>
hopper_code backward_code(launch_memory& memory) {
  return code_of_kernel<hopper_backward_shape<Dim>>(
    reinterpret_cast<void const*>(backward_hopper_kernel<Built, Dim, Order, Element, Mask, Score>),
    memory);
}

//! Backward on a GPU that is known to be a Hopper, in a program that is known to have code for it.
template <int Dim, class Built, query_order Order, class Element, mask Mask, score Score>
void start_on_hopper(parameters const& p,
                     backward_tensors<Element, float, float> const& t,
                     row_view<float> mean,
                     query_sums sums,
                     Mask const& m,
                     Score const& f,
                     cudaStream_t stream,
                     launch_memory& memory) {
  using shape = hopper_backward_shape<Dim>;
  backward_call<Element, Mask, Score> const call{
    p, t, mean, m, f, static_cast<float>(p.effective_scale())};
  if (p.batch * p.heads * p.query_length == 0) {
    return;
  }
  auto const multiprocessors = memory.gpu().multiprocessors;
  share_work(sums, p, Order, {shape::keys, shape::step}, multiprocessors, memory.gpu().l2_bytes);
  sums.starts_at_0 = !takes_turns<Order, Mask>;
  sums.is_rounded = rounds_sums(p, m);
  sums.pieces = static_cast<std::int32_t>(sums.blocks(p, shape::keys, kernel_family::hopper));
  void const* const some = t.query.data;
  // Before any launch, since they may refuse.
  hopper_backward_maps const maps{
    map_of(memory, "key", t.key, shape::rows, some),
    map_of(memory, "value", t.value, shape::rows, some),
    map_of(memory, "query", t.query, shape::step, some),
    map_of(memory, "output gradient", t.output_gradient, shape::step, some)};
  launch_backward<Built, kernel_family::hopper, Dim>(
    memory, call, sums, shape::keys, stream, [&](unsigned pieces) {
      auto const blocks = blocks_of_pieces(pieces, true, multiprocessors);
      launch(memory,
             backward_hopper_kernel<Built, Dim, Order, Element, Mask, Score>,
             maps,
             {static_cast<unsigned>(blocks)},
             shape::threads,
             shape::shared_bytes,
             stream,
             call,
             sums);
    });
}

} // namespace detail

//! @brief Gradients of one chunk of queries on a Hopper GPU: writes dQ, adds to the running dK and
//! dV.
//!
//! Does what backward_on_device does, with the instructions of sm_90a, and within the same
//! tolerance; the bits differ. One kernel with five products of tiles, after one that prepares
//! sums; where queries see keys up to about their own, the block of the last keys of a dQ rounds
//! it, else a kernel after them does. Every number of dK and dV is summed by
//! one thread in one order. Several blocks add to one of dQ: in a kept order, in which each waits
//! for the one before, or as they come. The program has to be compiled for sm_90a (-gencode
//! arch=compute_90a,code=sm_90a); backward_on_gpu does without where it is not.
//!
//! @tparam Dim   elements of a head: 64, 128 or 256
//! @tparam Order of the sums of dQ. kept: the same call gives the same bits. free: the last bits
//!               of dQ differ from call to call; faster where few heads leave blocks waiting
//! @param p      sizes, offsets, scale (above 0): those of the chunk's forward
//! @param t      as for backward_on_device; strides of query, key, value and output gradient must
//!               be above 0
//! @param mean   scratch in device memory, [batch, heads, query_length]; holds dO . O afterwards
//! @param sums   query_sums::in scratch in device memory that nobody else uses until the
//!               kernels are over
//! @param m      the mask of forward; tiles that it skips are neither read nor multiplied
//! @param f      the score of forward
//! @param stream in whose order the kernels run, on the current GPU; the call does not wait for
//! them
//! @throws std::invalid_argument as check_for_kernels, and where the current GPU is no Hopper or
//! the program has no code for it, before any launch
//! @throws cuda::error where a launch fails
template <int Dim,
          class Element,
          mask Mask = causal,
          score Score = plain,
          class Built = built_here,
          query_order Order = query_order::kept>
void backward_on_hopper(parameters const& p,
                        backward_tensors<Element, float, float> const& t,
                        row_view<float> mean,
                        query_sums const& sums,
                        Mask const& m,
                        Score const& f,
                        cudaStream_t stream) {
  static_assert(detail::is_kernel_element<Element>,
                "attention::backward_on_hopper: elements must be __nv_bfloat16 or __half, because "
                "the matrix units multiply no others here; use attention::backward for float");
  detail::check_for_kernels<Dim>(p, t, mean);
  launch_memory once;
  detail::check_hopper(
    once, detail::backward_code<Dim, Element, Mask, Score, Built, Order>, "backward_on_device");
  detail::start_on_hopper<Dim, Built, Order>(p, t, mean, sums, m, f, stream, once);
}

} // namespace pipelining::inline v0_3::attention
