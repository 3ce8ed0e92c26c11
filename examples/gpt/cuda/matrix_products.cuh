// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The three products of a linear layer by cuBLAS. Matrices lie row by row.

#include <pipe/cuda/handles.cuh>

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cublas_v2.h>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "../memory.hpp"

namespace gpt::on_gpu {

namespace cuda = pipelining::cuda;

//! @throws std::runtime_error where a call of cuBLAS has failed
inline void check_blas(cublasStatus_t status, char const* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string("cublas: ") + call +
                             " failed: " + cublasGetStatusString(status));
  }
}

//! A handle with a workspace of its own, for the products of one virtual device: the same products
//! have the same bits then, whatever other streams do. Belongs to the GPU that is current.
class matrix_products {
public:
  explicit matrix_products(std::int64_t workspace_bytes)
      : workspace_(workspace_bytes), workspace_bytes_(workspace_bytes) {
    check_blas(cublasCreate(&handle_), "cublasCreate");
  }
  matrix_products(matrix_products const&) = delete;
  matrix_products& operator=(matrix_products const&) = delete;
  ~matrix_products() { (void)cublasDestroy(handle_); }

  void use(cudaStream_t stream) {
    if (known_ && stream == stream_)
      return;
    check_blas(cublasSetStream(handle_, stream), "cublasSetStream"); // takes the workspace away
    check_blas(
      cublasSetWorkspace(handle_, workspace_.data(), static_cast<std::size_t>(workspace_bytes_)),
      "cublasSetWorkspace");
    stream_ = stream;
    known_ = true;
  }

  //! An operand as cuBLAS sees it, whose matrices lie column by column: transposed.
  template <class Element>
  struct operand {
    cublasOperation_t how;
    Element const* data;
    std::int64_t leading;
  };
  struct extents {
    std::int64_t rows, columns, inner;
  };

  template <class Element>
  void multiply(operand<Element> a, operand<Element> b, float* c, extents of, product_goes where) {
    constexpr cudaDataType type = std::is_same_v<Element, float> ? CUDA_R_32F : CUDA_R_16BF;
    static_assert(std::is_same_v<Element, float> || std::is_same_v<Element, __nv_bfloat16>);
    float const one = 1;
    float const before = where == product_goes::added ? 1 : 0;
    check_blas(cublasGemmEx(handle_,
                            a.how,
                            b.how,
                            size(of.rows),
                            size(of.columns),
                            size(of.inner),
                            &one,
                            a.data,
                            type,
                            size(a.leading),
                            b.data,
                            type,
                            size(b.leading),
                            &before,
                            c,
                            CUDA_R_32F,
                            size(of.rows),
                            CUBLAS_COMPUTE_32F,
                            CUBLAS_GEMM_DEFAULT),
               "cublasGemmEx");
  }

private:
  static int size(std::int64_t count) {
    if (count > std::numeric_limits<int>::max()) {
      throw std::invalid_argument("a matrix has " + std::to_string(count) +
                                  " rows or columns, more than cuBLAS counts");
    }
    return static_cast<int>(count);
  }

  cuda::device_memory workspace_;
  std::int64_t workspace_bytes_;
  cublasHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool known_ = false;
};

//! A matrix [inputs, outputs] at work on some tokens.
template <class Element>
struct matrix_pass {
  matrix_products& products;
  Element const* matrix;
  float* gradient;
  std::int64_t tokens, inputs, outputs;

  //! y [tokens, outputs] = x [tokens, inputs] times the matrix
  void forward(float* y, Element const* x, product_goes to = product_goes::instead) const {
    products.multiply<Element>(
      {CUBLAS_OP_N, matrix, outputs}, {CUBLAS_OP_N, x, inputs}, y, {outputs, tokens, inputs}, to);
  }
  //! dx [tokens, inputs] = dy [tokens, outputs] times the transposed matrix
  void backward_input(float* dx, Element const* dy, product_goes to = product_goes::instead) const {
    products.multiply<Element>({CUBLAS_OP_T, matrix, outputs},
                               {CUBLAS_OP_N, dy, outputs},
                               dx,
                               {inputs, tokens, outputs},
                               to);
  }
  //! The gradient of the matrix += transposed(x) dy
  void backward_weight(Element const* x, Element const* dy) const {
    products.multiply<Element>({CUBLAS_OP_N, dy, outputs},
                               {CUBLAS_OP_T, x, inputs},
                               gradient,
                               {outputs, inputs, tokens},
                               product_goes::added);
  }
};

} // namespace gpt::on_gpu
