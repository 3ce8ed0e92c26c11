// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Calls of the attention launchers as a user's program makes them.
#include <pipe/attention/backward.cuh>
#include <pipe/attention/forward.cuh>

#include "launch.hpp"

namespace kernel_tests {

void launch_forward(at::parameters const& p,
                    at::forward_tensors<__nv_bfloat16> const& t,
                    cudaStream_t stream,
                    at::key_splits const& splits) {
  if (p.head_dim == 128) {
    at::forward_on_device<128>(p, t, at::causal{}, at::plain{}, stream, splits);
  } else {
    at::forward_on_device<64>(p, t, at::causal{}, at::plain{}, stream, splits);
  }
}

std::int32_t key_splits(at::parameters const& p) {
  return at::key_splits_on_device<128, __nv_bfloat16>(p);
}

void launch_backward(at::parameters const& p,
                     at::backward_tensors<__nv_bfloat16> const& t,
                     at::row_view<float> mean,
                     at::query_sums const& sums,
                     cudaStream_t stream) {
  if (p.head_dim == 256) {
    at::backward_on_device<256>(p, t, mean, sums, at::causal{}, at::plain{}, stream);
  } else {
    at::backward_on_device<64>(p, t, mean, sums, at::causal{}, at::plain{}, stream);
  }
}

template <int Dim, class Score>
constexpr bool fits_every_gpu = at::detail::forward_shape<Dim, Score>::shared_bytes <= 99 * 1024 &&
                                at::detail::backward_shape<Dim, Score>::shared_bytes <= 99 * 1024;
static_assert(fits_every_gpu<64, at::plain> && fits_every_gpu<64, at::alibi>);
static_assert(fits_every_gpu<128, at::plain> && fits_every_gpu<128, at::alibi>);
static_assert(fits_every_gpu<256, at::plain> && fits_every_gpu<256, at::alibi>);

} // namespace kernel_tests
