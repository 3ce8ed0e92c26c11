// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One kernel for Hopper, compiled with headers that mutants.py has broken: that of the macro.
#if defined(MUTANT_FORWARD)
#include <pipe/attention/hopper/forward.cuh>
#elif defined(MUTANT_QUERY_GRADIENT)
#include <pipe/attention/hopper/query_gradient.cuh>
#else
#include <pipe/attention/hopper/key_gradient.cuh>
#endif

namespace at = pipelining::attention;

extern __shared__ __align__(1024) unsigned char memory[];

#if defined(MUTANT_FORWARD)
extern "C" __global__ void __launch_bounds__(at::hopper_forward_shape<64>::threads, 1)
  forward_64(const __grid_constant__ at::hopper_forward_maps maps,
             const __grid_constant__ at::forward_call<__nv_bfloat16, at::causal, at::plain> call) {
  at::detail::forward_hopper_block<64>(call, maps, at::no_key_splits{}, memory);
}
#elif defined(MUTANT_QUERY_GRADIENT)
extern "C" __global__ void __launch_bounds__(at::hopper_query_gradient_shape<64>::threads, 1)
  query_gradient_64(
    const __grid_constant__ at::hopper_backward_maps maps,
    const __grid_constant__ at::backward_call<__nv_bfloat16, at::causal, at::plain> call) {
  at::detail::query_gradient_hopper_block<64>(call, maps, memory);
}
#else
extern "C" __global__ void __launch_bounds__(at::hopper_key_gradient_shape<64>::threads, 1)
  key_gradient_64(
    const __grid_constant__ at::hopper_backward_maps maps,
    const __grid_constant__ at::backward_call<__nv_bfloat16, at::causal, at::plain> call) {
  at::detail::key_gradient_hopper_block<64>(call, maps, memory);
}
#endif
