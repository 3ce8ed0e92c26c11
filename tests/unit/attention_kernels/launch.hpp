// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What launch.cu offers to launch.test.cpp; the one is compiled by nvcc, the other not.

#include <pipe/attention/key_splits.hpp>
#include <pipe/attention/parameters.hpp>
#include <pipe/attention/query_sums.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kernel_tests {

namespace at = pipelining::attention;

//! Of head dim 64 or 128.
void launch_forward(at::parameters const& p,
                    at::forward_tensors<__nv_bfloat16> const& t,
                    cudaStream_t stream,
                    at::key_splits const& splits = {});

//! Parts of the keys that are best for a call of head dim 128.
std::int32_t key_splits(at::parameters const& p);

//! Of head dim 64 or 256.
void launch_backward(at::parameters const& p,
                     at::backward_tensors<__nv_bfloat16> const& t,
                     at::row_view<float> mean,
                     at::query_sums const& sums,
                     cudaStream_t stream);

void launch_merge(at::tensor_view<__nv_bfloat16> output,
                  at::row_view<float> lse,
                  at::tensor_view<__nv_bfloat16 const> other_output,
                  at::row_view<float const> other_lse,
                  cudaStream_t stream);

} // namespace kernel_tests
