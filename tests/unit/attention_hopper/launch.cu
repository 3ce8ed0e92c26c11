// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls of the launcher for Hopper as a user's program makes them.
#include <pipe/attention/on_gpu.cuh>

#include "launch.hpp"

namespace hopper_tests {

at::kernel_choice launch_forward(at::parameters const& p,
                                 at::forward_tensors<__nv_bfloat16> const& t,
                                 cudaStream_t stream,
                                 float* scratch,
                                 std::int64_t floats) {
  return at::forward_on_gpu<64>(p, t, {scratch, floats}, at::causal{}, at::plain{}, stream);
}

at::kernel_choice launch_backward(at::parameters const& p,
                                  at::backward_tensors<__nv_bfloat16> const& t,
                                  float* scratch,
                                  std::int64_t floats,
                                  cudaStream_t stream) {
  return at::backward_on_gpu<64>(p, t, {scratch, floats}, at::causal{}, at::plain{}, stream);
}

} // namespace hopper_tests
