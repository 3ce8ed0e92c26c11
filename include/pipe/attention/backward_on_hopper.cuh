// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches backward of chunked attention on a Hopper GPU.

#include <pipe/attention/forward.cuh>
#include <pipe/attention/hopper/code_in_program.cuh>
#include <pipe/attention/hopper/key_gradient.cuh>
#include <pipe/attention/hopper/launch.cuh>
#include <pipe/attention/hopper/query_gradient.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/config.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pipelining::inline v0_2::attention {

namespace detail {

template <class Built, int Dim, class Element, mask Mask, score Score>
PIPELINING_KERNEL void
__launch_bounds__(threads_on_hopper<hopper_query_gradient_shape<Dim, Score>::threads>, 1)
  query_gradient_hopper_kernel(hopper_backward_maps const __grid_constant__ maps,
                               backward_call<Element, Mask, Score> const __grid_constant__ call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  query_gradient_hopper_block<Dim>(call, maps, attention_memory);
#else
  (void)maps;
  (void)call;
  __trap(); // never reached: no launch fits the bounds, see hopper/code_in_program.cuh
#endif
}

template <class Built, int Dim, class Element, mask Mask, score Score>
PIPELINING_KERNEL void __launch_bounds__(threads_on_hopper<hopper_key_gradient_shape<Dim>::threads>,
                                         1)
  key_gradient_hopper_kernel(hopper_backward_maps const __grid_constant__ maps,
                             backward_call<Element, Mask, Score> const __grid_constant__ call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  key_gradient_hopper_block<Dim>(call, maps, attention_memory);
#else
  (void)maps;
  (void)call;
  __trap(); // never reached: no launch fits the bounds, see hopper/code_in_program.cuh
#endif
}

} // namespace detail

namespace detail {

template <int Dim, class Element, mask Mask, score Score, class Built>
hopper_code backward_code() {
  auto const of_queries = code_of_kernel<hopper_query_gradient_shape<Dim, Score>>(
    reinterpret_cast<void const*>(query_gradient_hopper_kernel<Built, Dim, Element, Mask, Score>));
  return of_queries != hopper_code::there
           ? of_queries
           : code_of_kernel<hopper_key_gradient_shape<Dim>>(reinterpret_cast<void const*>(
               key_gradient_hopper_kernel<Built, Dim, Element, Mask, Score>));
}

} // namespace detail

//! @brief Says whether the program has code for sm_90a of the backward kernels and runs it on the
//! current GPU. To be asked where is_hopper; see hopper/code_in_program.cuh.
//! @throws cuda::error where the runtime cannot say
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
[[nodiscard]] bool has_backward_on_hopper() {
  return detail::backward_code<Dim, Element, Mask, Score, Built>() == detail::hopper_code::there;
}

namespace detail {

//! Encodes the tensors of a call for the copy engine.
template <class OfQueries, class OfKeys, class Element>
hopper_backward_maps maps_of(backward_tensors<Element, float, float> const& t) {
  void const* const some = t.query.data;
  return {map_of("query", t.query, OfQueries::rows, some),
          map_of("output gradient", t.output_gradient, OfQueries::rows, some),
          map_of("query gradient", t.query_gradient, OfQueries::rows, some),
          map_of("key", t.key, OfQueries::step, some),
          map_of("value", t.value, OfQueries::step, some),
          map_of("key", t.key, OfKeys::rows, some),
          map_of("value", t.value, OfKeys::rows, some),
          map_of("query", t.query, OfKeys::step, some),
          map_of("output gradient", t.output_gradient, OfKeys::step, some)};
}

//! Backward on a GPU that is known to be a Hopper, in a program that is known to have code for it.
template <int Dim, class Built, class Element, mask Mask, score Score>
void start_on_hopper(parameters const& p,
                     backward_tensors<Element, float, float> const& t,
                     row_view<float> mean,
                     Mask const& m,
                     Score const& f,
                     cudaStream_t stream) {
  using of_queries = hopper_query_gradient_shape<Dim, Score>;
  using of_keys = hopper_key_gradient_shape<Dim>;
  auto const query_work =
    (p.query_length + of_queries::own - 1) / of_queries::own * p.heads * p.batch;
  auto const key_work = (p.key_length + of_keys::own - 1) / of_keys::own * p.key_heads * p.batch;
  if (query_work == 0) {
    return;
  }
  auto maps = maps_of<of_queries, of_keys>(t);
  backward_call<Element, Mask, Score> call{
    p, t, mean, m, f, static_cast<float>(p.effective_scale())};
  void* arguments[] = {&maps, &call};
  launch_staying<of_queries>(
    reinterpret_cast<void const*>(query_gradient_hopper_kernel<Built, Dim, Element, Mask, Score>),
    query_work,
    arguments,
    stream);
  if (key_work != 0) {
    launch_staying<of_keys>(
      reinterpret_cast<void const*>(key_gradient_hopper_kernel<Built, Dim, Element, Mask, Score>),
      key_work,
      arguments,
      stream);
  }
}

} // namespace detail

//! @brief Gradients of one chunk of queries on a Hopper GPU: writes dQ, adds to the running dK and
//! dV.
//!
//! Does what backward_on_device does, with the instructions of sm_90a, and within the same
//! tolerance; the bits differ. The same call gives the same bits: two kernels, one after the other
//! in the stream, in which every sum has one owner and one order; query_gradient_hopper.cuh says
//! why two. The program has to be compiled for sm_90a (-gencode arch=compute_90a,code=sm_90a);
//! backward_on_gpu does without where it is not.
//!
//! @tparam Dim elements of a head: 64 or 128
//! @param p      sizes, offsets, scale (above 0): those of the chunk's forward
//! @param t      as for backward_on_device; strides of query, key, value, output gradient and query
//!               gradient must be above 0
//! @param mean   scratch in device memory, [batch, heads, query_length]; holds dO . O afterwards
//! @param m      the mask of forward; tiles that it skips are neither read nor multiplied
//! @param f      the score of forward
//! @param stream in whose order the kernels run, on the current GPU; the call does not wait for
//! them
//! @throws std::invalid_argument as check_for_kernels, and where the current GPU is no Hopper or
//! the program has no code for it, before any launch
//! @throws cuda::error where a launch fails
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
void backward_on_hopper(parameters const& p,
                        backward_tensors<Element, float, float> const& t,
                        row_view<float> mean,
                        Mask const& m,
                        Score const& f,
                        cudaStream_t stream) {
  static_assert(is_kernel_element<Element>,
                "attention::backward_on_hopper: elements must be __nv_bfloat16 or __half, because "
                "the matrix units multiply no others here; use attention::backward for float");
  check_for_kernels<Dim>(p, t, mean);
  detail::check_hopper(detail::backward_code<Dim, Element, Mask, Score, Built>,
                       "backward_on_device");
  detail::start_on_hopper<Dim, Built>(p, t, mean, m, f, stream);
}

} // namespace pipelining::inline v0_2::attention
