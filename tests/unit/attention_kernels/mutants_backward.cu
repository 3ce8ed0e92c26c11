// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kernels that mistakes are planted in: the portable one backward of dim 64.
#include <pipe/attention/portable/backward_mma.cuh>

namespace at = pipelining::attention;

namespace {

extern __shared__ __align__(1024) unsigned char memory[];

using backward_call = at::detail::backward_call<__nv_bfloat16, at::causal, at::plain>;

} // namespace

extern "C" __global__ void __launch_bounds__(128)
  backward_64(const __grid_constant__ backward_call call,
              const __grid_constant__ at::detail::query_sums sums) {
  at::detail::run_backward_block<64, at::query_order::kept>(call, sums, memory);
}
