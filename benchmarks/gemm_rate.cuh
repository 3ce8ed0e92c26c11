// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How fast the GPU multiplies large matrices: what attention kernels are held against.

#include <cublas_v2.h>
#include <stdexcept>
#include <string>

#include "attention_case.cuh"

namespace benchmark {

inline void check_cublas(cublasStatus_t code, char const* call) {
  if (code != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(call) + " failed: " + cublasGetStatusString(code));
  }
}

//! Median time of a product of two square bf16 matrices of random numbers, by cuBLAS.
inline double gemm_milliseconds(int size, effort const& spend) {
  cublasHandle_t library = nullptr;
  check_cublas(cublasCreate(&library), "cublasCreate");
  auto const count = std::int64_t{size} * size;
  buffer<element> a(count), b(count), c(count);
  a.fill(1);
  b.fill(2);
  float const one = 1;
  float const zero = 0;
  auto const time = median_milliseconds(
    [&] {
      check_cublas(cublasGemmEx(library,
                                CUBLAS_OP_N,
                                CUBLAS_OP_T,
                                size,
                                size,
                                size,
                                &one,
                                a.data(),
                                CUDA_R_16BF,
                                size,
                                b.data(),
                                CUDA_R_16BF,
                                size,
                                &zero,
                                c.data(),
                                CUDA_R_16BF,
                                size,
                                CUBLAS_COMPUTE_32F,
                                CUBLAS_GEMM_DEFAULT),
                   "cublasGemmEx");
    },
    spend);
  check_cublas(cublasDestroy(library), "cublasDestroy");
  return time;
}

} // namespace benchmark
