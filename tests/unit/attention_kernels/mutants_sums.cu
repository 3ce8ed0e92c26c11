// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kernels that mistakes are planted in: the portable ones of sums of dim 64.
#include <pipe/attention/kernel/query_sums.cuh>

namespace at = pipelining::attention;

namespace {

using backward_call = at::detail::backward_call<__nv_bfloat16, at::causal, at::plain>;

} // namespace

extern "C" __global__ void __launch_bounds__(128)
  start_sums_64(const __grid_constant__ backward_call call,
                const __grid_constant__ at::detail::query_sums sums) {
  at::detail::start_sums_block<at::kernel_family::portable, 64>(call, sums);
}
extern "C" __global__ void __launch_bounds__(256)
  finish_sums_64(const __grid_constant__ backward_call call,
                 const __grid_constant__ at::detail::query_sums sums) {
  at::detail::finish_sums_block<at::kernel_family::portable, 64, __nv_bfloat16>(call, sums);
}
