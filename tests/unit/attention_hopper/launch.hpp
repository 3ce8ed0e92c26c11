// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What launch.cu offers to launch.test.cpp; the one is compiled by nvcc, the other not.

#include <pipe/attention/kernel_choice.hpp>
#include <pipe/attention/parameters.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace hopper_tests {

namespace at = pipelining::attention;

at::kernel_choice launch_forward(at::parameters const& p,
                                 at::forward_tensors<__nv_bfloat16> const& t,
                                 cudaStream_t stream,
                                 float* scratch = nullptr,
                                 std::int64_t floats = 0);

at::kernel_choice launch_backward(at::parameters const& p,
                                  at::backward_tensors<__nv_bfloat16> const& t,
                                  float* scratch,
                                  std::int64_t floats,
                                  cudaStream_t stream);

} // namespace hopper_tests
