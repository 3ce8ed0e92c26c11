// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the kernels of attention cannot do does not compile, and the error says what they can do.
//
// clang-format off
// case 1: expected-error {{attention::forward_on_gpu: elements must be __nv_bfloat16 or __half, because the matrix units multiply no others here; use attention::forward for float}}
// case 1: expected-error {{attention::backward_on_gpu: elements must be __nv_bfloat16 or __half, because the matrix units multiply no others here; use attention::backward for float}}
// case 1: expected-error {{attention::merge_on_device: elements must be __nv_bfloat16 or __half; use attention::merge for float}}
// case 1: expected-error {{attention: the head dim of kernels must be 64, 80, 96, 112, 128, 256 or head_dims.192, 128., because tiles of other widths are not laid out}}
// case 2: expected-error {{no instance of function template .*forward_on_gpu. matches}}
// case 2: expected-error {{argument types are: .*no_mask}}
// clang-format on
#include <pipe/attention/merge.cuh>
#include <pipe/attention/on_gpu.cuh>

namespace at = pipelining::attention;

struct a_mask {
  __host__ __device__ bool keep(at::pair_position) const { return true; }
};
struct no_mask {
  __host__ __device__ bool keeps(at::pair_position) const { return true; }
};

void calls(at::parameters const& p,
           at::forward_tensors<__nv_bfloat16> const& t,
           at::forward_tensors<float> const& in_float,
           at::backward_tensors<float> const& gradients_in_float) {
#if FAIL_CASE == 0
  at::forward_on_gpu<64>(p, t, {}, a_mask{}, at::plain{}, nullptr);
  (void)in_float;
  (void)gradients_in_float;
#elif FAIL_CASE == 1
  at::forward_on_gpu<64>(p, in_float, {}, a_mask{}, at::plain{}, nullptr);
  at::backward_on_gpu<64>(p, gradients_in_float, {}, a_mask{}, at::plain{}, nullptr);
  at::merge_on_device<64>(in_float.output, {}, in_float.output, {}, nullptr);
  at::forward_on_gpu<48>(p, t, {}, a_mask{}, at::plain{}, nullptr);
#elif FAIL_CASE == 2
  at::forward_on_gpu<64>(p, t, {}, no_mask{}, at::plain{}, nullptr);
#endif
}
