// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Starts backward of chunked attention on a GPU: portable kernels, and those for Hopper,
//! after a kernel that sets sums of dQ to zero, and before one that rounds them where they do not.

#include <pipe/attention/hopper/backward.cuh>
#include <pipe/attention/hopper/code_in_program.cuh>
#include <pipe/attention/kernel/query_sums.cuh>
#include <pipe/attention/kernel_call.hpp>
#include <pipe/attention/kernel_choice.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/portable/backward_mma.cuh>
#include <pipe/attention/query_sums.hpp>
#include <pipe/attention/work_order.hpp>
#include <pipe/config.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3::attention::detail {

template <class Built, kernel_family Family, int Dim, class Call>
PIPELINING_KERNEL void __launch_bounds__(start_sums_threads)
  start_sums_kernel(Call const __grid_constant__ call, query_sums const __grid_constant__ sums) {
  start_sums_block<Family, Dim>(call, sums);
}

template <class Built, kernel_family Family, int Dim, class Call>
PIPELINING_KERNEL void __launch_bounds__(finishing_threads<Family, Dim>)
  finish_sums_kernel(Call const __grid_constant__ call, query_sums const __grid_constant__ sums) {
  using element = std::remove_pointer_t<decltype(call.t.query_gradient.data)>;
  finish_sums_block<Family, Dim, element>(call, sums);
}

//! Launches the kernels before and after another one, of a call that has queries.
//! @param start launches that one with so many blocks, unless there is no key
//! @param keys  of a tile
template <class Built, kernel_family Family, int Dim, class Call, class Start>
void launch_backward(
  launcher const& launch, Call const& call, query_sums const& sums, int keys, Start const& start) {
  auto const steps = call.p.batch * call.p.heads * sums.steps;
  launch({steps, start_sums_threads}, start_sums_kernel<Built, Family, Dim, Call>, call, sums);
  if (auto const blocks = sums.blocks(call.p, keys, Family); blocks != 0) {
    start(blocks);
  }
  if (!sums.is_rounded) {
    auto const finish = finish_sums_kernel<Built, Family, Dim, Call>;
    auto const blocks = finishing_blocks<Family, Dim> * steps;
    launch({blocks, finishing_threads<Family, Dim>}, finish, call, sums);
  }
}

template <class Built, int Dim, query_order Order, class Element, mask Mask, score Score>
PIPELINING_KERNEL void __launch_bounds__(backward_shape<Dim, Score>::threads)
  backward_mma_kernel(backward_call<Element, Mask, Score> const __grid_constant__ call,
                      query_sums const __grid_constant__ sums) {
  extern __shared__ __align__(1024) unsigned char attention_memory[];
  run_backward_block<Dim, Order>(call, sums, attention_memory);
}

//! Backward with the portable kernels, of a call that is checked and has queries.
template <int Dim, class Built, query_order Order, class Element, mask Mask, score Score>
void start_on_device(launcher const& launch,
                     backward_call<Element, Mask, Score> const& call,
                     query_sums const& sums) {
  using shape = backward_shape<Dim, Score>;
  launch_backward<Built, kernel_family::portable, Dim>(
    launch, call, sums, shape::keys, [&](std::int64_t blocks) {
      auto const kernel = backward_mma_kernel<Built, Dim, Order, Element, Mask, Score>;
      launch({blocks, shape::threads, shape::shared_bytes}, kernel, call, sums);
    });
}

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
choice_reason backward_code(launch_memory& memory) {
  return code_of_kernel<hopper_backward_shape<Dim>>(
    reinterpret_cast<void const*>(backward_hopper_kernel<Built, Dim, Order, Element, Mask, Score>),
    memory);
}

//! Backward on a GPU that is known to be a Hopper, in a program that is known to have code for it.
//! The call is checked and has queries.
template <int Dim, class Built, query_order Order, class Element, mask Mask, score Score>
void start_on_hopper(launcher const& launch,
                     backward_call<Element, Mask, Score> const& call,
                     query_sums sums) {
  using shape = hopper_backward_shape<Dim>;
  auto const& p = call.p;
  auto const& t = call.t;
  auto& memory = launch.memory;
  auto const multiprocessors = memory.gpu().multiprocessors;
  share_work(sums, p, Order, {shape::keys, shape::step}, multiprocessors, memory.gpu().l2_bytes);
  sums.starts_at_0 = !takes_turns<Order, Mask>;
  sums.is_rounded = rounds_sums(p, call.m);
  sums.pieces = static_cast<std::int32_t>(sums.blocks(p, shape::keys, kernel_family::hopper));
  void const* const some = t.query.data;
  // Before any launch, since they may refuse.
  hopper_backward_maps const maps{
    map_of(memory, "key", t.key, shape::rows, some),
    map_of(memory, "value", t.value, shape::rows, some),
    map_of(memory, "query", t.query, shape::step, some),
    map_of(memory, "output gradient", t.output_gradient, shape::step, some)};
  launch_backward<Built, kernel_family::hopper, Dim>(
    launch, call, sums, shape::keys, [&](std::int64_t pieces) {
      auto const blocks = blocks_of_pieces(pieces, true, multiprocessors);
      auto const kernel = backward_hopper_kernel<Built, Dim, Order, Element, Mask, Score>;
      launch({blocks, shape::threads, shape::shared_bytes}, kernel, maps, call, sums);
    });
}

} // namespace pipelining::inline v0_3::attention::detail
