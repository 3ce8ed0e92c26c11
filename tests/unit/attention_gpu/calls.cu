// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The front door as a user's program calls it. PROGRAM names the list of architectures that this
// object is compiled for, and keeps the objects apart.
#include <pipe/attention/merge.cuh>
#include <pipe/attention/on_gpu.cuh>

#include "calls.hpp"

namespace gpu_tests {

namespace tags {
struct PROGRAM;
}

namespace {

using built = tags::PROGRAM; // in place of built_here, which does not know of the letter a

at::kernel_choice forward(at::parameters const& p,
                          at::forward_tensors<__nv_bfloat16> const& t,
                          float* scratch,
                          std::int64_t floats,
                          cudaStream_t stream) {
  return at::forward_on_gpu<64, __nv_bfloat16, at::causal, at::plain, built>(
    p, t, {scratch, floats}, {}, {}, stream);
}

at::kernel_choice forward_next_to(at::parameters const& p,
                                  at::forward_tensors<__nv_bfloat16> const& t,
                                  float* scratch,
                                  std::int64_t floats,
                                  std::int32_t held) {
  return at::forward_on_gpu<64, __nv_bfloat16, at::causal, at::plain, built>(
    p, t, {.data = scratch, .count = floats, .held = held}, {}, {}, nullptr);
}

at::kernel_choice backward(at::parameters const& p,
                           at::backward_tensors<__nv_bfloat16> const& t,
                           float* scratch,
                           std::int64_t floats,
                           cudaStream_t stream) {
  return at::backward_on_gpu<64, __nv_bfloat16, at::causal, at::plain, built>(
    p, t, {scratch, floats}, {}, {}, stream);
}

void remembering(at::parameters const& p,
                 at::forward_tensors<__nv_bfloat16> const& t,
                 at::backward_tensors<__nv_bfloat16> const& back,
                 float* scratch,
                 std::int64_t floats,
                 at::launch_memory& memory) {
  at::gpu_scratch const room{scratch, floats, nullptr, &memory};
  at::forward_on_gpu<64, __nv_bfloat16, at::causal, at::plain, built>(p, t, room, {}, {}, nullptr);
  at::backward_on_gpu<64, __nv_bfloat16, at::causal, at::plain, built>(
    p, back, room, {}, {}, nullptr);
}

at::kernel_choice portable(at::parameters const& p, at::forward_tensors<__nv_bfloat16> const& t) {
  return at::forward_on_gpu<64, __nv_bfloat16, at::causal, at::plain, built>(
    p, t, {.portable = true}, {}, {}, nullptr);
}

} // namespace

program const PROGRAM{
  at::chosen_forward<64, __nv_bfloat16, at::causal, at::plain, built>,
  at::chosen_forward<256, __nv_bfloat16, at::causal, at::plain, built>,
  at::chosen_backward<64, __nv_bfloat16, at::causal, at::plain, built>,
  at::forward_scratch<64, __nv_bfloat16, at::causal, at::plain, built>,
  forward,
  forward_next_to,
  backward,
  remembering,
  portable,
};

} // namespace gpu_tests
