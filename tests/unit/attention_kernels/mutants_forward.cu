// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kernels that mistakes are planted in: the portable ones forward of dim 64.
#include <pipe/attention/portable/forward_mma.cuh>

namespace at = pipelining::attention;

namespace {

extern __shared__ __align__(1024) unsigned char memory[];

using forward_call = at::detail::forward_call<__nv_bfloat16, at::causal, at::plain>;

} // namespace

extern "C" __global__ void __launch_bounds__(128, 2)
  forward_64(const __grid_constant__ forward_call call) {
  at::detail::run_forward_block<at::detail::forward_shape<64>>(
    call, at::detail::no_key_splits{}, memory);
}
extern "C" __global__ void __launch_bounds__(128, 2)
  forward_64_compact(const __grid_constant__ forward_call call) {
  at::detail::run_forward_block<at::detail::forward_shape<64, at::plain, true>>(
    call, at::detail::no_key_splits{}, memory);
}
