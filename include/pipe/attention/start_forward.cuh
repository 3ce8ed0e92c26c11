// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Starts forward of chunked attention on a GPU: portable kernels, and those for Hopper.

#include <pipe/attention/hopper/code_in_program.cuh>
#include <pipe/attention/hopper/forward.cuh>
#include <pipe/attention/kernel/merge_splits.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/kernel_choice.hpp>
#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/portable/forward_mma.cuh>
#include <pipe/attention/work_order.hpp>
#include <pipe/config.hpp>
#include <pipe/cuda/error.cuh>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace pipelining::inline v0_3::attention::detail {

template <class Built, class Shape, class Element, mask Mask, score Score, class Splits>
PIPELINING_KERNEL void __launch_bounds__(Shape::threads, Shape::blocks)
  forward_mma_kernel(forward_call<Element, Mask, Score> const __grid_constant__ call,
                     Splits const __grid_constant__ splits) {
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  run_forward_block<Shape>(call, splits, attention_memory);
}

//! Into how many parts a call of some kernels on the current GPU is best cut, see
//! choose_key_splits.
//! @param held multiprocessors that other kernels hold
//! @throws cuda::error where the runtime cannot say
template <int Dim, class Element, mask Mask, score Score, class Built>
std::int32_t best_key_splits(launch_memory& memory,
                             kernel_family family,
                             parameters const& p,
                             std::int32_t held) {
  auto const multiprocessors = memory.gpu().multiprocessors;
  if (family == kernel_family::hopper) {
    return choose_key_splits<hopper_forward_shape<Dim, Score>>(p, multiprocessors, held);
  }
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
    return choose_key_splits<Shape>(p, multiprocessors, held, std::max(1, blocks));
  });
}

//! Starts a kernel of forward, for all keys at once or for parts of them and their merge.
//! @param start starts it for the key_splits or no_key_splits that it is given
template <int Dim, class Built, class Call, class Start>
void start_in_parts(launcher const& launch,
                    Call const& call,
                    key_splits const& splits,
                    Start const& start) {
  if (splits.count == 1) {
    start(no_key_splits{});
  } else {
    start(splits);
    launch_merge<Dim, Built>(launch, call.p, call.t, splits);
  }
}

//! Forward with the portable kernels, of a call that is checked and has queries.
template <int Dim, class Built, class Element, mask Mask, score Score>
void start_on_device(launcher const& launch,
                     forward_call<Element, Mask, Score> const& call,
                     key_splits const& splits) {
  start_in_parts<Dim, Built>(launch, call, splits, [&]<class Splits>(Splits const& of) {
    with_forward_shape<Dim, Score>(launch.memory.gpu().shared_bytes, [&]<class Shape> {
      auto const kernel = forward_mma_kernel<Built, Shape, Element, Mask, Score, Splits>;
      auto const blocks = pieces_of<Shape>(call.p) * of.count;
      launch({blocks, Shape::threads, Shape::shared_bytes}, kernel, call, of);
    });
  });
}

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
choice_reason forward_code(launch_memory& memory) {
  return code_of_kernel<hopper_forward_shape<Dim, Score>>(
    reinterpret_cast<void const*>(
      forward_hopper_kernel<Built, Dim, Element, Mask, Score, no_key_splits>),
    memory);
}

//! Forward on a GPU that is known to be a Hopper, in a program that is known to have code for it.
//! The call is checked and has queries.
template <int Dim, class Built, class Element, mask Mask, score Score>
void start_on_hopper(launcher const& launch,
                     forward_call<Element, Mask, Score> const& call,
                     key_splits const& splits,
                     std::uint32_t* taken) {
  using shape = hopper_forward_shape<Dim, Score>;
  auto const& t = call.t;
  void const* const some = t.query.data;
  auto& memory = launch.memory;
  hopper_forward_maps const maps{map_of(memory, "query", t.query, shape::rows, some),
                                 map_of(memory, "key", t.key, shape::keys, some),
                                 map_of(memory, "value", t.value, shape::keys, some),
                                 map_of(memory, "output", t.output, shape::rows, some)};
  auto const multiprocessors = memory.gpu().multiprocessors;
  piece_order const order{taken, heads_together(call.p, multiprocessors, memory.gpu().l2_bytes)};
  start_in_parts<Dim, Built>(launch, call, splits, [&]<class Splits>(Splits const& of) {
    auto const pieces = pieces_of<shape>(call.p) * of.count;
    auto const blocks = blocks_of_pieces(pieces, taken != nullptr, multiprocessors);
    auto const kernel = forward_hopper_kernel<Built, Dim, Element, Mask, Score, Splits>;
    launch({blocks, shape::threads, shape::shared_bytes}, kernel, maps, call, of, order);
  });
}

} // namespace pipelining::inline v0_3::attention::detail
