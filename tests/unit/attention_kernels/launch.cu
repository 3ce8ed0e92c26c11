// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls of the attention launchers as a user's program makes them.
#include <pipe/attention/on_gpu.cuh>

#include "launch.hpp"

namespace kernel_tests {

void launch_forward(at::parameters const& p,
                    at::forward_tensors<__nv_bfloat16> const& t,
                    cudaStream_t stream,
                    float* scratch,
                    std::int64_t floats) {
  at::gpu_scratch const room{.data = scratch, .count = floats, .portable = true};
  if (p.head_dim == 128) {
    at::forward_on_gpu<128>(p, t, room, at::causal{}, at::plain{}, stream);
  } else {
    at::forward_on_gpu<64>(p, t, room, at::causal{}, at::plain{}, stream);
  }
}

std::int64_t forward_scratch(at::parameters const& p) {
  return p.head_dim == 128 ? at::forward_scratch<128, __nv_bfloat16>(p, 0, true)
                           : at::forward_scratch<64, __nv_bfloat16>(p, 0, true);
}

void launch_backward(at::parameters const& p,
                     at::backward_tensors<__nv_bfloat16> const& t,
                     float* scratch,
                     std::int64_t floats,
                     cudaStream_t stream) {
  at::gpu_scratch const room{.data = scratch, .count = floats, .portable = true};
  if (p.head_dim == 256) {
    at::backward_on_gpu<256>(p, t, room, at::causal{}, at::plain{}, stream);
  } else {
    at::backward_on_gpu<64>(p, t, room, at::causal{}, at::plain{}, stream);
  }
}

template <int Dim, class Score>
constexpr bool fits_every_gpu = at::detail::forward_shape<Dim, Score>::shared_bytes <= 99 * 1024 &&
                                at::detail::backward_shape<Dim, Score>::shared_bytes <= 99 * 1024;
static_assert(fits_every_gpu<64, at::plain> && fits_every_gpu<64, at::alibi>);
static_assert(fits_every_gpu<128, at::plain> && fits_every_gpu<128, at::alibi>);
static_assert(fits_every_gpu<256, at::plain> && fits_every_gpu<256, at::alibi>);

} // namespace kernel_tests
