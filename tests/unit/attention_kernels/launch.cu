// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls of the attention launchers as a user's program makes them.
#include <pipe/attention/forward.cuh>

#include "launch.hpp"

namespace kernel_tests {

void launch_forward(at::parameters const& p,
                    at::forward_tensors<__nv_bfloat16> const& t,
                    cudaStream_t stream) {
  at::forward_on_device<64>(p, t, at::causal{}, at::plain{}, stream);
}

} // namespace kernel_tests
