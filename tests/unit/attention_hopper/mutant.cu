// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One kernel for Hopper, compiled with headers that mutants.py has broken: that of the macros.
#if defined(MUTANT_FORWARD)
#include <pipe/attention/hopper/forward.cuh>
#else
#include <pipe/attention/hopper/backward.cuh>
#endif

namespace at = pipelining::attention;

#define JOIN_(name, dim) name##_##dim
#define JOIN(name, dim) JOIN_(name, dim)

extern __shared__ __align__(1024) unsigned char memory[];

#if defined(MUTANT_FORWARD)
extern "C" __global__ void __launch_bounds__(at::detail::hopper_forward_shape<DIM>::threads, 1)
  JOIN(forward, DIM)(
    const __grid_constant__ at::detail::hopper_forward_maps maps,
    const __grid_constant__ at::detail::forward_call<__nv_bfloat16, at::causal, at::plain> call,
    const __grid_constant__ at::detail::piece_order order) {
  at::detail::forward_hopper_block<DIM>(call, maps, at::detail::no_key_splits{}, order, memory);
}
#else
#if DIM == 64
#include "window_of_head.inc"
using mask_type = window_of_head;
#elif DIM == 80
using mask_type = at::sliding_window;
#else
using mask_type = at::causal;
#endif
using call_type = at::detail::backward_call<__nv_bfloat16, mask_type, at::plain>;

extern "C" __global__ void __launch_bounds__(at::detail::hopper_backward_shape<DIM>::threads, 1)
#if defined(MUTANT_FREE)
  JOIN(JOIN(backward, DIM), free)
#else
  JOIN(backward, DIM)
#endif
    (const __grid_constant__ at::detail::hopper_backward_maps maps,
     const __grid_constant__ call_type call,
     const __grid_constant__ at::detail::query_sums sums) {
#if defined(MUTANT_FREE)
  constexpr auto order = at::query_order::free;
#else
  constexpr auto order = at::query_order::kept;
#endif
  at::detail::backward_hopper_block<DIM, order>(call, maps, sums, memory);
}
#endif
