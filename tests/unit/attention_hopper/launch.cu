// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls of the launcher for Hopper as a user's program makes them.
#include <pipe/attention/backward_on_hopper.cuh>
#include <pipe/attention/forward_on_hopper.cuh>

#include "launch.hpp"

namespace hopper_tests {

void launch_forward(at::parameters const& p,
                    at::forward_tensors<__nv_bfloat16> const& t,
                    cudaStream_t stream,
                    at::key_splits const& splits) {
  at::forward_on_hopper<64>(p, t, at::causal{}, at::plain{}, stream, splits);
}

void launch_backward(at::parameters const& p,
                     at::backward_tensors<__nv_bfloat16> const& t,
                     at::row_view<float> mean,
                     at::query_sums const& sums,
                     cudaStream_t stream) {
  at::backward_on_hopper<64>(p, t, mean, sums, at::causal{}, at::plain{}, stream);
}

} // namespace hopper_tests
