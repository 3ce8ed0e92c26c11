// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The front door for every head dim and element type.
#include <pipe/attention/on_gpu.cuh>
#include <pipe/attention/sinks.cuh>

#include "every_attention.hpp"

namespace gpu_tests {

namespace tags {
struct every_attention;
}

using built = tags::every_attention; // in place of built_here, which does not know of the letter a

template <int Dim, class Element, class Mask, class Score>
std::int64_t
attention_kernels<Dim, Element, Mask, Score>::forward_scratch(at::parameters const& p) {
  return at::forward_scratch<Dim, Element, Mask, Score, built>(p);
}

template <int Dim, class Element, class Mask, class Score>
at::kernel_choice
attention_kernels<Dim, Element, Mask, Score>::forward(at::parameters const& p,
                                                      at::forward_tensors<Element> const& t,
                                                      float* scratch,
                                                      std::int64_t floats,
                                                      Mask const& m,
                                                      Score const& f) {
  return at::forward_on_gpu<Dim, Element, Mask, Score, built>(
    p, t, {scratch, floats}, m, f, nullptr);
}

template <int Dim, class Element, class Mask, class Score>
at::kernel_choice
attention_kernels<Dim, Element, Mask, Score>::backward(at::parameters const& p,
                                                       at::backward_tensors<Element> const& t,
                                                       float* scratch,
                                                       std::int64_t floats,
                                                       Mask const& m,
                                                       Score const& f) {
  return at::backward_on_gpu<Dim, Element, Mask, Score, built>(
    p, t, {scratch, floats}, m, f, nullptr);
}

template struct attention_kernels<64, __nv_bfloat16, at::causal, at::plain>;
template struct attention_kernels<128, __nv_bfloat16, at::causal, at::plain>;
template struct attention_kernels<256, __nv_bfloat16, at::causal, at::plain>;
template struct attention_kernels<80, __nv_bfloat16, at::causal, at::plain>;
template struct attention_kernels<112, __nv_bfloat16, at::causal, at::plain>;
template struct attention_kernels<at::head_dims(192, 128), __nv_bfloat16, at::causal, at::plain>;
template struct attention_kernels<64, __nv_bfloat16, at::packed, at::plain>;
template struct attention_kernels<64, __half, window_of_document, at::soft_cap>;
template struct attention_kernels<128, __half, window_of_document, at::soft_cap>;
template struct attention_kernels<256, __half, window_of_document, at::soft_cap>;
template struct attention_kernels<96, __half, window_of_document, at::soft_cap>;
template struct attention_kernels<at::head_dims(192, 128),
                                  __half,
                                  window_of_document,
                                  at::soft_cap>;

void start_at_sinks(at::tensor_view<__nv_bfloat16> output,
                    at::row_view<float> lse,
                    float const* sinks) {
  at::start_at_sinks_on_device<__nv_bfloat16, built>(output, lse, sinks, nullptr);
}
void add_sink_gradient(at::row_view<float const> lse,
                       at::row_view<float const> mean,
                       float const* sinks,
                       float* gradient) {
  at::add_sink_gradient_on_device<built>(lse, mean, sinks, gradient, nullptr);
}

} // namespace gpu_tests
