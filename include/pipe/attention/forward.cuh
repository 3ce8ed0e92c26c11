// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches forward of chunked attention on a GPU.

#include <pipe/attention/kernel/merge_splits.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/portable/forward_mma.cuh>
#include <pipe/config.hpp>
#include <pipe/cuda/error.cuh>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace pipelining::inline v0_3::attention {

namespace detail {

template <int... Architectures>
struct built_for {};

} // namespace detail

//! @brief The architectures of this compilation, as a part of the names of kernels: two libraries
//! that are built for different GPUs keep their own kernels.
using built_here = detail::built_for<__CUDA_ARCH_LIST__>;

namespace detail {

template <class Built, class Shape, class Element, mask Mask, score Score, class Splits>
PIPELINING_KERNEL void __launch_bounds__(Shape::threads, Shape::blocks)
  forward_mma_kernel(forward_call<Element, Mask, Score> const __grid_constant__ call,
                     Splits const __grid_constant__ splits) {
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  run_forward_block<Shape>(call, splits, attention_memory);
}

//! As key_splits_on_device.
template <int Dim, class Element, mask Mask, score Score, class Built>
std::int32_t
key_splits_on_device(parameters const& p, launch_memory& memory, std::int32_t held = 0) {
  return with_forward_shape<Dim, Score>(memory.gpu().shared_bytes, [&]<class Shape> {
    auto const* const kernel = reinterpret_cast<void const*>(
      forward_mma_kernel<Built, Shape, Element, Mask, Score, key_splits>);
    memory.allow_shared_memory(kernel, Shape::shared_bytes);
    auto const blocks = memory.fact_of(kernel, [&] { // of one multiprocessor, at a time
      int count = 0;
      cuda::check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                    &count, kernel, Shape::threads, Shape::shared_bytes),
                  "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
      return count;
    });
    return choose_key_splits<Shape>(p, memory.gpu().multiprocessors, held, std::max(1, blocks));
  });
}

//! Forward with the portable kernels, of a call that is checked.
template <int Dim, class Built, class Element, mask Mask, score Score>
void start_on_device(parameters const& p,
                     forward_tensors<Element, float> const& t,
                     Mask const& m,
                     Score const& f,
                     cudaStream_t stream,
                     key_splits const& splits,
                     launch_memory& memory) {
  auto const blocks = pieces_of<forward_shape<Dim, Score>>(p); // of all shapes
  check_key_splits(splits, blocks);
  if (blocks == 0) {
    return;
  }
  forward_call<Element, Mask, Score> const call{
    p, t, m, f, static_cast<float>(p.effective_scale())};
  auto const start = [&]<class Splits>(Splits const& of) {
    with_forward_shape<Dim, Score>(memory.gpu().shared_bytes, [&]<class Shape> {
      launch(memory,
             forward_mma_kernel<Built, Shape, Element, Mask, Score, Splits>,
             call,
             {static_cast<unsigned>(blocks * of.count)},
             Shape::threads,
             Shape::shared_bytes,
             stream,
             of);
    });
  };
  if (splits.count == 1) {
    start(no_key_splits{});
  } else {
    start(splits);
    launch_merge<Dim, Built>(memory, p, t, splits, stream);
  }
}

} // namespace detail

//! @brief Into how many parts a call of forward_on_device on the current GPU is best cut, see
//! choose_key_splits.
//! @throws cuda::error where the runtime cannot say
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
[[nodiscard]] std::int32_t key_splits_on_device(parameters const& p) {
  launch_memory once;
  return detail::key_splits_on_device<Dim, Element, Mask, Score, Built>(p, once);
}

//! @brief Attention of one chunk of queries over the keys cached so far, on the GPU of the stream.
//!
//! Writes O and the natural-log log-sum-exp; a query that sees no key gets O = 0 and -infinity.
//! With parameters::from = carry::in it goes on from the (O, log-sum-exp) of other keys instead.
//! Does what attention::forward of the host does, with sums in float and weights rounded to
//! elements. The same call gives the same bits.
//!
//! @tparam Dim elements of a head: 64, 80, 96, 112, 128, 256, or head_dims(192, 128)
//! @param p      sizes, offsets, scale (above 0)
//! @param t      views of device memory, bf16 or fp16, each 16-byte aligned with strides that are
//!               multiples of 8 elements; shapes as forward_tensors says
//! @param m      which pairs are kept; tiles that it skips are neither read nor multiplied
//! @param f      what is done to scale * query . key
//! @param stream in whose order the kernels run; the call does not wait for them
//! @param splits with a count above 1: the keys are cut into so many parts that run side by side,
//!               and a second kernel merges them. For queries that alone do not fill the GPU. The
//!               scratch must be 16-byte aligned and stay until then
//! @throws std::invalid_argument as check_for_kernels, and where the scratch of splits is missing
//! or not aligned, before any launch
//! @throws cuda::error where a launch fails
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
void forward_on_device(parameters const& p,
                       forward_tensors<Element, float> const& t,
                       Mask const& m,
                       Score const& f,
                       cudaStream_t stream,
                       key_splits const& splits = {}) {
  static_assert(detail::is_kernel_element<Element>,
                "attention::forward_on_device: elements must be __nv_bfloat16 or __half, because "
                "the matrix units multiply no others here; use attention::forward for float");
  detail::check_for_kernels<Dim>(p, t);
  launch_memory once;
  detail::start_on_device<Dim, Built>(p, t, m, f, stream, splits, once);
}

} // namespace pipelining::inline v0_3::attention
