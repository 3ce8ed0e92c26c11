// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What launch.cu offers to launch.test.cpp; the one is compiled by nvcc, the other not.

#include <pipe/attention/parameters.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kernel_tests {

namespace at = pipelining::attention;

//! Of head dim 64 or 128.
void launch_forward(at::parameters const& p,
                    at::forward_tensors<__nv_bfloat16> const& t,
                    cudaStream_t stream,
                    float* scratch = nullptr,
                    std::int64_t floats = 0);

//! Floats with which it is fastest.
std::int64_t forward_scratch(at::parameters const& p);

//! Of head dim 64 or 256.
void launch_backward(at::parameters const& p,
                     at::backward_tensors<__nv_bfloat16> const& t,
                     float* scratch,
                     std::int64_t floats,
                     cudaStream_t stream);

void launch_merge(at::tensor_view<__nv_bfloat16> output,
                  at::row_view<float> lse,
                  at::tensor_view<__nv_bfloat16 const> other_output,
                  at::row_view<float const> other_lse,
                  cudaStream_t stream);

} // namespace kernel_tests
