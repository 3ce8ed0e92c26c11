// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// One kernel for Hopper, compiled with headers that mutants.py has broken.
#include <pipe/attention/forward_hopper.cuh>

namespace at = pipelining::attention;

extern __shared__ __align__(1024) unsigned char memory[];

extern "C" __global__ void __launch_bounds__(at::hopper_forward_shape<64>::threads, 1)
  forward_64(const __grid_constant__ at::hopper_forward_maps maps,
             const __grid_constant__ at::forward_call<__nv_bfloat16, at::causal, at::plain> call) {
  at::detail::forward_hopper_block<64>(call, maps, at::no_key_splits{}, memory);
}
