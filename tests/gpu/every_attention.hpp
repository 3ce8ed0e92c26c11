// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What every_attention.cu offers to attention.test.cpp: calls by the front door for every
//! head dim and element type, with a plain mask and with a mask and a score of several parts.

#include <pipe/attention/kernel_choice.hpp>
#include <pipe/attention/mask.hpp>
#include <pipe/attention/packed_mask.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/score.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace gpu_tests {

namespace at = pipelining::attention;

using window_of_document = at::both<at::sliding_window, at::document>;

//! Calls whose scratch holds so many floats.
template <int Dim, class Element, class Mask, class Score>
struct attention_kernels {
  static std::int64_t forward_scratch(at::parameters const& p);
  static at::kernel_choice forward(at::parameters const& p,
                                   at::forward_tensors<Element> const& t,
                                   float* scratch,
                                   std::int64_t floats,
                                   Mask const& m,
                                   Score const& f);
  static at::kernel_choice backward(at::parameters const& p,
                                    at::backward_tensors<Element> const& t,
                                    float* scratch,
                                    std::int64_t floats,
                                    Mask const& m,
                                    Score const& f);
};

//! Of attention/sinks.cuh.
void start_at_sinks(at::tensor_view<__nv_bfloat16> output,
                    at::row_view<float> lse,
                    float const* sinks);
void add_sink_gradient(at::row_view<float const> lse,
                       at::row_view<float const> mean,
                       float const* sinks,
                       float* gradient);

} // namespace gpu_tests
