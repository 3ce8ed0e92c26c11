// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What calls.cu offers to on_gpu.test.cpp; the one is compiled by nvcc, the other not.

#include <pipe/attention/kernel_choice.hpp>
#include <pipe/attention/launch_memory.cuh>
#include <pipe/attention/parameters.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace gpu_tests {

namespace at = pipelining::attention;

//! The calls of one program. calls.cu is compiled for several lists of architectures, each of which
//! stands for a program of its own.
struct program {
  at::kernel_choice (*chosen_forward)();     // of head dim 64
  at::kernel_choice (*chosen_forward_256)(); // of head dim 256
  at::kernel_choice (*chosen_backward)();
  std::int64_t (*forward_scratch)(at::parameters const&, std::int32_t held, bool portable);
  at::kernel_choice (*forward)(at::parameters const&,
                               at::forward_tensors<__nv_bfloat16> const&,
                               float* scratch,
                               std::int64_t floats,
                               cudaStream_t);
  //! The same, next to kernels that hold multiprocessors.
  at::kernel_choice (*forward_next_to)(at::parameters const&,
                                       at::forward_tensors<__nv_bfloat16> const&,
                                       float* scratch,
                                       std::int64_t floats,
                                       std::int32_t held);
  at::kernel_choice (*backward)(at::parameters const&,
                                at::backward_tensors<__nv_bfloat16> const&,
                                float* scratch,
                                std::int64_t floats,
                                cudaStream_t);
  //! Forward, then backward, with a memory.
  void (*remembering)(at::parameters const&,
                      at::forward_tensors<__nv_bfloat16> const&,
                      at::backward_tensors<__nv_bfloat16> const&,
                      float* scratch,
                      std::int64_t floats,
                      at::launch_memory&);
  //! Forward that asks for the portable kernels.
  at::kernel_choice (*portable)(at::parameters const&, at::forward_tensors<__nv_bfloat16> const&);
};

extern program const for_80_and_90a;
extern program const for_80_and_90;
extern program const for_80;

} // namespace gpu_tests
