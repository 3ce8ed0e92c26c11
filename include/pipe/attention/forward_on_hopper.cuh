// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches forward of chunked attention on a Hopper GPU.

#include <pipe/attention/forward.cuh>
#include <pipe/attention/hopper/code_in_program.cuh>
#include <pipe/attention/hopper/forward.cuh>
#include <pipe/attention/hopper/launch.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/work_order.hpp>
#include <pipe/config.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace pipelining::inline v0_3::attention {

namespace detail {

template <class Built, int Dim, class Element, mask Mask, score Score, class Splits>
PIPELINING_KERNEL void
__launch_bounds__(threads_on_hopper<hopper_forward_shape<Dim, Score>::threads>, 1)
  forward_hopper_kernel(hopper_forward_maps const __grid_constant__ maps,
                        forward_call<Element, Mask, Score> const __grid_constant__ call,
                        Splits const __grid_constant__ splits,
                        piece_order const __grid_constant__ order) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  forward_hopper_block<Dim>(call, maps, splits, order, attention_memory);
#else
  (void)maps;
  (void)call;
  (void)splits;
  (void)order;
  __trap(); // never reached: no launch fits the bounds, see hopper/code_in_program.cuh
#endif
}

template <int Dim, class Element, mask Mask, score Score, class Built>
hopper_code forward_code(launch_memory& memory) {
  return code_of_kernel<hopper_forward_shape<Dim, Score>>(
    reinterpret_cast<void const*>(
      forward_hopper_kernel<Built, Dim, Element, Mask, Score, no_key_splits>),
    memory);
}

//! Into how many parts a call on the current GPU is best cut, see choose_key_splits.
//! @throws cuda::error where the runtime cannot say
template <int Dim, score Score = plain>
[[nodiscard]] std::int32_t
key_splits_on_hopper(launch_memory& memory, parameters const& p, std::int32_t held) {
  return choose_key_splits<hopper_forward_shape<Dim, Score>>(p, memory.gpu().multiprocessors, held);
}

//! Encodes the tensors of a call for the copy engine.
template <class Shape, class Element>
hopper_forward_maps maps_of(launch_memory& memory, forward_tensors<Element, float> const& t) {
  void const* const some = t.query.data;
  return {map_of(memory, "query", t.query, Shape::rows, some),
          map_of(memory, "key", t.key, Shape::keys, some),
          map_of(memory, "value", t.value, Shape::keys, some),
          map_of(memory, "output", t.output, Shape::rows, some)};
}

//! Forward on a GPU that is known to be a Hopper, in a program that is known to have code for it.
template <int Dim, class Built, class Element, mask Mask, score Score>
void start_on_hopper(parameters const& p,
                     forward_tensors<Element, float> const& t,
                     Mask const& m,
                     Score const& f,
                     cudaStream_t stream,
                     key_splits const& splits,
                     std::uint32_t* taken,
                     launch_memory& memory) {
  using shape = hopper_forward_shape<Dim, Score>;
  auto const work = pieces_of<shape>(p);
  check_key_splits(splits, work);
  if (work == 0) {
    return;
  }
  auto const maps = maps_of<shape>(memory, t);
  forward_call<Element, Mask, Score> const call{
    p, t, m, f, static_cast<float>(p.effective_scale())};
  auto const multiprocessors = memory.gpu().multiprocessors;
  piece_order const order{taken, heads_together(p, multiprocessors, memory.gpu().l2_bytes)};
  auto const start = [&]<class Splits>(Splits const& of) {
    auto const blocks = blocks_of_pieces(work * of.count, taken != nullptr, multiprocessors);
    launch(memory,
           forward_hopper_kernel<Built, Dim, Element, Mask, Score, Splits>,
           maps,
           {static_cast<unsigned>(blocks)},
           shape::threads,
           shape::shared_bytes,
           stream,
           call,
           of,
           order);
  };
  if (splits.count == 1) {
    start(no_key_splits{});
  } else {
    start(splits);
    launch_merge<Dim, Built>(memory, p, t, splits, stream);
  }
}

} // namespace detail

//! @brief Attention of one chunk of queries over the keys cached so far, on a Hopper GPU.
//!
//! Does what forward_on_device does, with the instructions of sm_90a, and within the same
//! tolerance; the bits differ. The same call gives the same bits. The program has to be compiled
//! for sm_90a (-gencode arch=compute_90a,code=sm_90a); forward_on_gpu does without where it is not.
//!
//! @tparam Dim as of forward_on_device
//! @param p      sizes, offsets, scale (above 0)
//! @param t      as for forward_on_device; strides must be above 0
//! @param m      which pairs are kept; tiles that it skips are neither read nor multiplied
//! @param f      what is done to scale * query . key
//! @param stream in whose order the kernels run, on the current GPU; the call does not wait for
//! them
//! @param taken  device memory of 4 bytes that hold 0, and do so again after the call; calls of one
//!               stream can share it. Blocks then stay and take pieces of work one by one; without,
//!               there is a block for each piece
//! @param splits with a count above 1: the keys are cut into so many parts that run side by side,
//!               and a second kernel merges them. The scratch must be 16-byte aligned and stay
//!               until then
//! @throws std::invalid_argument as check_for_kernels, where the current GPU is no Hopper or the
//! program has no code for it, and where the scratch of splits is missing or not aligned, before
//! any launch
//! @throws cuda::error where a launch fails
template <int Dim, class Element, mask Mask = causal, score Score = plain, class Built = built_here>
void forward_on_hopper(parameters const& p,
                       forward_tensors<Element, float> const& t,
                       Mask const& m,
                       Score const& f,
                       cudaStream_t stream,
                       key_splits const& splits = {},
                       std::uint32_t* taken = nullptr) {
  static_assert(detail::is_kernel_element<Element>,
                "attention::forward_on_hopper: elements must be __nv_bfloat16 or __half, because "
                "the matrix units multiply no others here; use attention::forward for float");
  detail::check_for_kernels<Dim>(p, t);
  launch_memory once;
  detail::check_hopper(
    once, detail::forward_code<Dim, Element, Mask, Score, Built>, "forward_on_device");
  detail::start_on_hopper<Dim, Built>(p, t, m, f, stream, splits, taken, once);
}

} // namespace pipelining::inline v0_3::attention
