// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kernels of sums around the one of mutant.cu, which comes first.
#include <pipe/attention/kernel/query_sums.cuh>

extern "C" __global__ void __launch_bounds__(at::detail::start_sums_threads)
  JOIN(start_sums, DIM)(const __grid_constant__ call_type call,
                        const __grid_constant__ at::detail::query_sums sums) {
  at::detail::start_sums_block<at::kernel_family::hopper, DIM>(call, sums);
}
extern "C" __global__ void
__launch_bounds__(at::detail::finishing_threads<at::kernel_family::hopper, DIM>)
  JOIN(finish_sums, DIM)(const __grid_constant__ call_type call,
                         const __grid_constant__ at::detail::query_sums sums) {
  at::detail::finish_sums_block<at::kernel_family::hopper, DIM, __nv_bfloat16>(call, sums);
}
