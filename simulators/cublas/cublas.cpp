// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The few functions of cuBLAS that the library's examples call, on the modelled machine.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cublas_v2.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "simulators/cuda/src/call.hpp"
#include "simulators/cuda/src/work.hpp"

using namespace standin;
using namespace standin::detail;

namespace {

//! What a handle stands for.
struct library_context {
  int device = 0;
  std::uint64_t epoch = 0; //!< of the machine that it was made on
  cudaStream_t on = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

std::map<cublasHandle_t, std::unique_ptr<library_context>>& contexts() {
  static std::map<cublasHandle_t, std::unique_ptr<library_context>> all;
  return all;
}

//! A matrix as it lies in memory: columns, one after the other.
struct stored_matrix {
  char const* name;
  void const* data;
  cudaDataType type;
  int rows, columns, leading;

  [[nodiscard]] std::size_t element() const { return type == CUDA_R_16BF ? 2 : 4; }
  [[nodiscard]] char const* column(int c) const {
    return static_cast<char const*>(data) +
           static_cast<std::size_t>(c) * static_cast<std::size_t>(leading) * element();
  }
  [[nodiscard]] std::size_t column_bytes() const {
    return static_cast<std::size_t>(rows) * element();
  }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(column(columns - 1) - column(0)) + column_bytes();
  }
  [[nodiscard]] float at(int row, int c) const {
    char const* const place = column(c) + static_cast<std::size_t>(row) * element();
    if (type == CUDA_R_16BF) {
      __nv_bfloat16 value;
      std::memcpy(&value, place, sizeof value);
      return __bfloat162float(value);
    }
    float value = 0;
    std::memcpy(&value, place, sizeof value);
    return value;
  }
  void put(int row, int c, float value) const {
    char* const place = const_cast<char*>(column(c)) + static_cast<std::size_t>(row) * element();
    if (type == CUDA_R_16BF) {
      __nv_bfloat16 const rounded = __float2bfloat16_rn(value);
      std::memcpy(place, &rounded, sizeof rounded);
    } else {
      std::memcpy(place, &value, sizeof value);
    }
  }
};

//! C = alpha op(A) op(B) + beta C
struct product {
  bool a_across, b_across;
  int m, n, k;
  float alpha, beta;
  stored_matrix a, b, c;
};

//! An operand as it is multiplied, [outer, inner]: row by row of op(A), column by column of op(B).
std::vector<float> in_order(stored_matrix const& x, bool by_rows) {
  std::vector<float> numbers;
  numbers.reserve(static_cast<std::size_t>(x.rows) * static_cast<std::size_t>(x.columns));
  for (int outer = 0; outer < (by_rows ? x.rows : x.columns); ++outer)
    for (int inner = 0; inner < (by_rows ? x.columns : x.rows); ++inner)
      numbers.push_back(by_rows ? x.at(outer, inner) : x.at(inner, outer));
  return numbers;
}

//! In float, one term after the other: the same bits however often it is called.
void compute(product const& p) {
  auto const left = in_order(p.a, !p.a_across);
  auto const right = in_order(p.b, p.b_across);
  for (int column = 0; column < p.n; ++column) {
    for (int row = 0; row < p.m; ++row) {
      float const* const of_row = left.data() + static_cast<std::ptrdiff_t>(row) * p.k;
      float const* const of_column = right.data() + static_cast<std::ptrdiff_t>(column) * p.k;
      float sum = 0;
      for (int i = 0; i < p.k; ++i)
        sum += of_row[i] * of_column[i];
      float const before = p.beta == 0 ? 0 : p.beta * p.c.at(row, column);
      p.c.put(row, column, p.alpha * sum + before);
    }
  }
}

template <class Body>
cublasStatus_t blas_call(char const* function, Body body) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  cudaError_t const code = cuda_call(function, [&](model& m) {
    status = body(m);
    return cudaSuccess;
  });
  return code == cudaSuccess ? status : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t
refuse(model& m, char const* function, std::string const& why, cublasStatus_t status) {
  m.report_finding(finding::misuse, m.describe(m.self()) + " calls " + function + " " + why);
  return status;
}
cublasStatus_t refuse_value(model& m, char const* function, std::string const& why) {
  return refuse(m, function, why, CUBLAS_STATUS_INVALID_VALUE);
}

library_context* find(model& m, cublasHandle_t handle, char const* function) {
  auto const at = contexts().find(handle);
  if (at == contexts().end() || at->second->epoch != m.epoch) {
    (void)refuse_value(m, function, "with a handle that does not exist or is destroyed");
    return nullptr;
  }
  if (at->second->device != m.self().current_device) {
    (void)refuse_value(m,
                       function,
                       "with a handle of device " + std::to_string(at->second->device) +
                         " while device " + std::to_string(m.self().current_device) +
                         " is current");
    return nullptr;
  }
  return at->second.get();
}

std::string shape_of(stored_matrix const& x) {
  return std::string(x.name) + " of " + std::to_string(x.rows) + " rows and " +
         std::to_string(x.columns) + " columns, leading dimension " + std::to_string(x.leading);
}

constexpr char const* gemm = "cublasGemmEx";

cublasStatus_t check_sizes(model& m, product const& p) {
  if (p.m < 0 || p.n < 0 || p.k < 0)
    return refuse_value(m,
                        gemm,
                        "with a negative size: m " + std::to_string(p.m) + ", n " +
                          std::to_string(p.n) + ", k " + std::to_string(p.k));
  for (stored_matrix const* x : {&p.a, &p.b, &p.c})
    if (x->leading < std::max(1, x->rows))
      return refuse_value(m, gemm, "with " + shape_of(*x) + ", which must be at least the rows");
  return CUBLAS_STATUS_SUCCESS;
}

bool types_fit(product const& p) {
  bool const floats = p.a.type == CUDA_R_32F && p.c.type == CUDA_R_32F;
  bool const brains =
    p.a.type == CUDA_R_16BF && (p.c.type == CUDA_R_16BF || p.c.type == CUDA_R_32F);
  return p.a.type == p.b.type && (floats || brains);
}

//! Every matrix lies in one allocation of the device, and the result in nobody's way.
cublasStatus_t check_memory(model& m, product const& p, int device) {
  for (stored_matrix const* x : {&p.a, &p.b, &p.c}) {
    allocation const* const a = m.find_allocation(x->data);
    if (!a || a->kind == memory_kind::pinned)
      return refuse_value(m, gemm, "with " + shape_of(*x) + ", which is no memory of a device");
    if (a->device != device)
      return refuse_value(m,
                          gemm,
                          "with " + shape_of(*x) + " on device " + std::to_string(a->device) +
                            ", but the handle is of device " + std::to_string(device));
    if (reinterpret_cast<std::uintptr_t>(x->data) % x->element() != 0)
      return refuse_value(m, gemm, "with " + shape_of(*x) + ", which begins inside of an element");
    if (!inside(m, x->data, x->bytes(), std::string(gemm) + " for " + x->name))
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (stored_matrix const* x : {&p.a, &p.b})
    if (x->column(0) < p.c.column(0) + p.c.bytes() && p.c.column(0) < x->column(0) + x->bytes())
      return refuse_value(m, gemm, std::string("with C that overlaps ") + x->name);
  return CUBLAS_STATUS_SUCCESS;
}

void add_accesses(std::vector<memory_access>& to, stored_matrix const& x, bool write) {
  for (int c = 0; c < x.columns; ++c)
    to.push_back(write ? writing(x.column(c), x.column_bytes())
                       : reading(x.column(c), x.column_bytes()));
}

cublasStatus_t multiply(model& m, library_context const& own, product const& p) {
  if (auto const wrong = check_sizes(m, p))
    return wrong;
  if (!types_fit(p))
    return refuse(m,
                  gemm,
                  "with types that the stand-in has no product of; it has those of float and of "
                  "bf16, with a result in float or bf16",
                  CUBLAS_STATUS_NOT_SUPPORTED);
  if (p.m == 0 || p.n == 0)
    return CUBLAS_STATUS_SUCCESS;
  if (p.k == 0)
    return refuse(
      m, gemm, "with k 0, which the stand-in does not have", CUBLAS_STATUS_NOT_SUPPORTED);
  if (auto const wrong = check_memory(m, p, own.device))
    return wrong;
  if (own.workspace == nullptr)
    return refuse(m,
                  gemm,
                  "without a workspace of the handle's own: where several streams work the result "
                  "may differ from run to run, and a capture allocates; call cublasSetWorkspace, "
                  "after cublasSetStream, which takes it away",
                  CUBLAS_STATUS_ALLOC_FAILED);
  auto const [s, code] = work_stream(m, own.on);
  if (!s)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  ++m.counts.kernels;
  auto op = m.make(operation_kind::kernel, *s, gemm);
  add_accesses(op->accesses, p.a, false);
  add_accesses(op->accesses, p.b, false);
  if (p.beta != 0)
    add_accesses(op->accesses, p.c, false);
  add_accesses(op->accesses, p.c, true);
  // Both ends, since all of it would take longer than the product.
  std::size_t const end = std::min<std::size_t>(own.workspace_bytes, 256);
  auto* const last = static_cast<char*>(own.workspace) + own.workspace_bytes - end;
  op->accesses.push_back(writing(own.workspace, end));
  op->accesses.push_back(writing(last, end));
  op->run = [p](operation&) {
    compute(p);
    return std::vector<memory_access>{};
  };
  submit_work(m, *s, op);
  return CUBLAS_STATUS_SUCCESS;
}

} // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* out) {
  return blas_call("cublasCreate", [&](model& m) {
    if (!out)
      return CUBLAS_STATUS_INVALID_VALUE;
    if (unsafe_in_capture(m) != cudaSuccess)
      return refuse(m, "cublasCreate", "during a capture", CUBLAS_STATUS_NOT_INITIALIZED);
    m.setting_up("cublasCreate");
    m.add_context();
    auto fresh = std::make_unique<library_context>();
    fresh->device = m.self().current_device;
    fresh->epoch = m.epoch;
    *out = reinterpret_cast<cublasHandle_t>(fresh.get());
    contexts().emplace(*out, std::move(fresh));
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  return blas_call("cublasDestroy", [&](model& m) {
    library_context const* const own = find(m, handle, "cublasDestroy");
    if (!own)
      return CUBLAS_STATUS_NOT_INITIALIZED;
    int const device = own->device;
    contexts().erase(handle);
    return wait_for_device(m, device, "cublasDestroy") == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
  });
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t on) {
  return blas_call("cublasSetStream", [&](model& m) {
    library_context* const own = find(m, handle, "cublasSetStream");
    if (!own)
      return CUBLAS_STATUS_NOT_INITIALIZED;
    own->on = on;
    own->workspace = nullptr;
    own->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  return blas_call("cublasSetWorkspace", [&](model& m) {
    library_context* const own = find(m, handle, "cublasSetWorkspace");
    if (!own)
      return CUBLAS_STATUS_NOT_INITIALIZED;
    allocation const* const a = m.find_allocation(workspace);
    if (!a || a->kind != memory_kind::device || a->device != own->device)
      return refuse_value(
        m, "cublasSetWorkspace", "with memory that is not of the handle's device");
    if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)
      return refuse_value(
        m, "cublasSetWorkspace", "with memory that does not begin at a multiple of 256 bytes");
    if (bytes == 0 || !inside(m, workspace, bytes, "cublasSetWorkspace"))
      return CUBLAS_STATUS_INVALID_VALUE;
    own->workspace = workspace;
    own->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle,
                            cublasOperation_t a_how,
                            cublasOperation_t b_how,
                            int m_rows,
                            int n_columns,
                            int k_inner,
                            void const* alpha,
                            void const* a,
                            cudaDataType a_type,
                            int a_leading,
                            void const* b,
                            cudaDataType b_type,
                            int b_leading,
                            void const* beta,
                            void* c,
                            cudaDataType c_type,
                            int c_leading,
                            cublasComputeType_t compute_type,
                            cublasGemmAlgo_t) {
  return blas_call(gemm, [&](model& m) {
    library_context const* const own = find(m, handle, gemm);
    if (!own)
      return CUBLAS_STATUS_NOT_INITIALIZED;
    for (cublasOperation_t const how : {a_how, b_how})
      if (how != CUBLAS_OP_N && how != CUBLAS_OP_T)
        return refuse_value(m, gemm, "with an operation that is neither CUBLAS_OP_N nor _T");
    if (compute_type != CUBLAS_COMPUTE_32F)
      return refuse(m,
                    gemm,
                    "with a compute type other than CUBLAS_COMPUTE_32F, which the stand-in does "
                    "not have",
                    CUBLAS_STATUS_NOT_SUPPORTED);
    for (void const* const scalar : {alpha, beta})
      if (!scalar || m.find_allocation(scalar))
        return refuse_value(m, gemm, "with a factor that does not lie in memory of the host");
    bool const a_across = a_how == CUBLAS_OP_T;
    bool const b_across = b_how == CUBLAS_OP_T;
    product p{
      a_across,
      b_across,
      m_rows,
      n_columns,
      k_inner,
      0,
      0,
      {"A", a, a_type, a_across ? k_inner : m_rows, a_across ? m_rows : k_inner, a_leading},
      {"B", b, b_type, b_across ? n_columns : k_inner, b_across ? k_inner : n_columns, b_leading},
      {"C", c, c_type, m_rows, n_columns, c_leading}};
    std::memcpy(&p.alpha, alpha, sizeof p.alpha);
    std::memcpy(&p.beta, beta, sizeof p.beta);
    return multiply(m, *own, p);
  });
}

char const* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
  case CUBLAS_STATUS_SUCCESS: return "the operation completed successfully";
  case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
  case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
  case CUBLAS_STATUS_INVALID_VALUE: return "an invalid value was passed";
  case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
  case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
  default: return "an error of cuBLAS";
  }
}

} // extern "C"
