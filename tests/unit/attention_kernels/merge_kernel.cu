// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The merge kernel under plain names, for the PTX interpreter.
#include <pipe/attention/merge.cuh>

namespace at = pipelining::attention;

extern "C" __global__ void
merge_64(const __grid_constant__ at::detail::merge_call<__nv_bfloat16> call) {
  at::detail::merge_block<64>(call);
}
extern "C" __global__ void
merge_256(const __grid_constant__ at::detail::merge_call<__nv_bfloat16> call) {
  at::detail::merge_block<256>(call);
}

namespace kernel_tests {

void launch_merge(at::tensor_view<__nv_bfloat16> output,
                  at::row_view<float> lse,
                  at::tensor_view<__nv_bfloat16 const> other_output,
                  at::row_view<float const> other_lse,
                  cudaStream_t stream) {
  at::merge_on_device<64>(output, lse, other_output, other_lse, stream);
}

} // namespace kernel_tests
