// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One kernel for Hopper, compiled with headers that mutants.py has broken: that of the macro.
#if defined(MUTANT_FORWARD)
#include <pipe/attention/hopper/forward.cuh>
#else
#include <pipe/attention/hopper/backward.cuh>
#include <pipe/attention/kernel/query_sums.cuh>
#endif

namespace at = pipelining::attention;

extern __shared__ __align__(1024) unsigned char memory[];

#if defined(MUTANT_FORWARD)
extern "C" __global__ void __launch_bounds__(at::hopper_forward_shape<64>::threads, 1)
  forward_64(const __grid_constant__ at::hopper_forward_maps maps,
             const __grid_constant__ at::forward_call<__nv_bfloat16, at::causal, at::plain> call) {
  at::detail::forward_hopper_block<64>(call, maps, at::no_key_splits{}, memory);
}
#else
using call_64 = at::backward_call<__nv_bfloat16, at::causal, at::plain>;

extern "C" __global__ void __launch_bounds__(at::detail::start_sums_threads)
  start_sums_64(const __grid_constant__ call_64 call,
                const __grid_constant__ at::query_sums sums) {
  at::detail::start_sums_block<at::kernel_family::hopper, 64>(call, sums);
}
extern "C" __global__ void __launch_bounds__(at::hopper_backward_shape<64>::threads, 1)
  backward_64(const __grid_constant__ at::hopper_backward_maps maps,
              const __grid_constant__ call_64 call,
              const __grid_constant__ at::query_sums sums) {
  at::detail::backward_hopper_block<64, at::query_order::kept>(call, maps, sums, memory);
}
extern "C" __global__ void __launch_bounds__(at::detail::finish_sums_threads)
  finish_sums_64(const __grid_constant__ call_64 call,
                 const __grid_constant__ at::query_sums sums) {
  at::detail::finish_sums_block<at::kernel_family::hopper, 64, __nv_bfloat16>(call, sums);
}
#endif
