// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kernels that mistakes are planted in: the portable ones of dim 64.
#include <pipe/attention/kernel/query_sums.cuh>
#include <pipe/attention/portable/backward_mma.cuh>
#include <pipe/attention/portable/forward_mma.cuh>

namespace at = pipelining::attention;

namespace {

extern __shared__ __align__(1024) unsigned char memory[];

using forward_call = at::detail::forward_call<__nv_bfloat16, at::causal, at::plain>;
using backward_call = at::detail::backward_call<__nv_bfloat16, at::causal, at::plain>;

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
extern "C" __global__ void __launch_bounds__(128)
  start_sums_64(const __grid_constant__ backward_call call,
                const __grid_constant__ at::detail::query_sums sums) {
  at::detail::start_sums_block<at::kernel_family::portable, 64>(call, sums);
}
extern "C" __global__ void __launch_bounds__(128)
  backward_64(const __grid_constant__ backward_call call,
              const __grid_constant__ at::detail::query_sums sums) {
  at::detail::run_backward_block<64, at::query_order::kept>(call, sums, memory);
}
extern "C" __global__ void __launch_bounds__(256)
  finish_sums_64(const __grid_constant__ backward_call call,
                 const __grid_constant__ at::detail::query_sums sums) {
  at::detail::finish_sums_block<at::kernel_family::portable, 64, __nv_bfloat16>(call, sums);
}
