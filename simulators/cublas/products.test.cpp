// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The stand-in for cuBLAS against sums in double, and bad calls that it must refuse.
#include <cuda_bf16.h>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cublas_v2.h>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "simulators/cuda/standin.hpp"
#include "tests/support/device_array.hpp"

namespace {

using device_tests::device_array;

constexpr std::int64_t workspace_bytes = 256;

//! A handle with a stream and a workspace of its own.
struct library {
  library() : workspace(workspace_bytes) {
    REQUIRE(cudaStreamCreateWithFlags(&on, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasSetStream(handle, on) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasSetWorkspace(handle, workspace.data(), workspace_bytes) == CUBLAS_STATUS_SUCCESS);
  }
  library(library const&) = delete;
  library& operator=(library const&) = delete;
  ~library() {
    (void)cublasDestroy(handle);
    (void)cudaStreamDestroy(on);
  }
  device_array<unsigned char> workspace;
  cublasHandle_t handle = nullptr;
  cudaStream_t on = nullptr;
};

//! The arguments of a call, right until a test spoils them.
struct call {
  cublasOperation_t a_how = CUBLAS_OP_N, b_how = CUBLAS_OP_N;
  int m = 5, n = 3, k = 4;
  float alpha = 2, beta = 0;
  void const *a = nullptr, *b = nullptr;
  void* c = nullptr;
  cudaDataType type = CUDA_R_32F, c_type = CUDA_R_32F;
  int lda = 6, ldb = 7, ldc = 8; // wider than the matrices
  cublasComputeType_t computes = CUBLAS_COMPUTE_32F;
  float const *alpha_at = nullptr, *beta_at = nullptr;

  cublasStatus_t run(cublasHandle_t handle) const {
    return cublasGemmEx(handle,
                        a_how,
                        b_how,
                        m,
                        n,
                        k,
                        alpha_at == nullptr ? &alpha : alpha_at,
                        a,
                        type,
                        lda,
                        b,
                        type,
                        ldb,
                        beta_at == nullptr ? &beta : beta_at,
                        c,
                        c_type,
                        ldc,
                        computes,
                        CUBLAS_GEMM_DEFAULT);
  }
};

template <class Element>
constexpr cudaDataType type_of = sizeof(Element) == 2 ? CUDA_R_16BF : CUDA_R_32F;

//! The largest difference of a product from the sums in double.
template <class Element, class Result>
double error_of(bool a_across, bool b_across, float beta) {
  standin::configure({});
  library const own;
  std::mt19937 random(7);
  call p;
  p.a_how = a_across ? CUBLAS_OP_T : CUBLAS_OP_N;
  p.b_how = b_across ? CUBLAS_OP_T : CUBLAS_OP_N;
  p.beta = beta;
  p.type = type_of<Element>;
  p.c_type = type_of<Result>;
  device_array<Element> a(p.lda * 5), b(p.ldb * 5);
  device_array<Result> c(p.ldc * 3);
  a.fill(random);
  b.fill(random);
  c.fill(random);
  p.a = a.data();
  p.b = b.data();
  p.c = c.data();
  auto const left = a.numbers(), right = b.numbers(), before = c.numbers();
  CHECK(p.run(own.handle) == CUBLAS_STATUS_SUCCESS);
  CHECK(cudaStreamSynchronize(own.on) == cudaSuccess);
  CHECK(standin::summary() == "");
  c.fetch();
  auto const after = c.numbers();
  auto const at = [](int row, int column, int leading) {
    return static_cast<std::size_t>(row + column * leading);
  };
  double most = 0;
  for (int column = 0; column < p.n; ++column)
    for (int row = 0; row < p.ldc; ++row) {
      double sum = 0;
      for (int i = 0; i < p.k; ++i)
        sum += left[a_across ? at(i, row % 5, p.lda) : at(row % 5, i, p.lda)] *
               right[b_across ? at(column, i, p.ldb) : at(i, column, p.ldb)];
      // Rows after the matrix stay as they are.
      double const wanted = row < p.m
                              ? 2 * sum + static_cast<double>(beta) * before[at(row, column, p.ldc)]
                              : before[at(row, column, p.ldc)];
      most = std::max(most, std::abs(after[at(row, column, p.ldc)] - wanted));
    }
  return most;
}

//! What a call that a test has spoilt says.
struct refusal {
  cublasStatus_t status{};
  std::string why{};
};

refusal refused(std::function<void(call&, library&)> const& spoil) {
  standin::configure({});
  library own;
  device_array<float> a(6 * 5), b(7 * 5), c(8 * 3);
  a.fill_zero();
  b.fill_zero();
  c.fill_zero();
  call p;
  p.a = a.data();
  p.b = b.data();
  p.c = c.data();
  spoil(p, own);
  cublasStatus_t const status = p.run(own.handle);
  std::string const why = standin::summary();
  (void)cudaSetDevice(0);
  return {status, why};
}

bool says(refusal const& r, cublasStatus_t status, std::string const& words) {
  CAPTURE(r.why);
  CHECK(r.status == status);
  return r.why.find(words) != std::string::npos;
}

} // namespace

TEST_CASE("products of float and of bf16 are the sums in double, whichever operand is transposed") {
  for (bool const a_across : {false, true})
    for (bool const b_across : {false, true})
      for (float const beta : {0.0f, 1.0f, 0.5f}) {
        CAPTURE(a_across);
        CAPTURE(b_across);
        CAPTURE(beta);
        CHECK(error_of<float, float>(a_across, b_across, beta) < 1e-5);
        CHECK(error_of<__nv_bfloat16, float>(a_across, b_across, beta) < 1e-5);
        CHECK(error_of<__nv_bfloat16, __nv_bfloat16>(a_across, b_across, beta) < 0.1);
      }
}

TEST_CASE("a product runs at its place in the stream, and in every launch of a graph") {
  standin::configure({});
  library const own;
  device_array<float> a(6 * 5), b(7 * 5), c(8 * 3);
  std::fill(a.host.begin(), a.host.end(), 1.0f);
  std::fill(b.host.begin(), b.host.end(), 1.0f);
  a.send();
  b.send();
  c.fill_zero();
  call p;
  p.a = a.data();
  p.b = b.data();
  p.c = c.data();
  p.beta = 1;
  CHECK(cudaStreamBeginCapture(own.on, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(p.run(own.handle) == CUBLAS_STATUS_SUCCESS);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  CHECK(cudaStreamEndCapture(own.on, &graph) == cudaSuccess);
  CHECK(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
  for (int launch = 0; launch < 3; ++launch)
    CHECK(cudaGraphLaunch(ready, own.on) == cudaSuccess);
  CHECK(cudaStreamSynchronize(own.on) == cudaSuccess);
  c.fetch();
  CHECK(c.host[0] == 24.0f); // three times 2 * 4
  CHECK(standin::summary() == "");
  CHECK(cudaGraphExecDestroy(ready) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("what a product reads, writes and works in is ordered like any other access") {
  for (bool const shared : {false, true}) {
    CAPTURE(shared);
    standin::configure({});
    library const one, other;
    if (shared)
      CHECK(cublasSetWorkspace(other.handle, one.workspace.data(), workspace_bytes) ==
            CUBLAS_STATUS_SUCCESS);
    device_array<float> a(6 * 5), b(7 * 5), c(8 * 3), d(8 * 3);
    a.fill_zero();
    b.fill_zero();
    call p;
    p.a = a.data();
    p.b = b.data();
    p.c = c.data(); // which nobody has written: with beta 0 it is not read
    CHECK(p.run(one.handle) == CUBLAS_STATUS_SUCCESS);
    p.c = d.data();
    CHECK(p.run(other.handle) == CUBLAS_STATUS_SUCCESS);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK((standin::summary() == "") != shared);
    CHECK(standin::found(standin::finding::write_conflict) == shared);
  }
  standin::configure({});
  library const own;
  device_array<float> a(6 * 5), b(7 * 5), c(8 * 3);
  a.fill_zero();
  call p;
  p.a = a.data();
  p.b = b.data();
  p.c = c.data();
  CHECK(p.run(own.handle) == CUBLAS_STATUS_SUCCESS);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::found(standin::finding::uninitialised_read));
}

TEST_CASE("bad arguments are refused, each with the status of cuBLAS and a sentence") {
  auto const bad = CUBLAS_STATUS_INVALID_VALUE;
  CHECK(says(refused([](call&, library&) {}), CUBLAS_STATUS_SUCCESS, ""));
  CHECK(says(
    refused([](call& p, library&) { p.k = -1; }), bad, "with a negative size: m 5, n 3, k -1"));
  CHECK(
    says(refused([](call& p, library&) { p.lda = 4; }),
         bad,
         "with A of 5 rows and 4 columns, leading dimension 4, which must be at least the rows"));
  CHECK(says(refused([](call& p, library&) { p.b_how = CUBLAS_OP_T, p.ldb = 2; }),
             bad,
             "with B of 3 rows and 4 columns, leading dimension 2"));
  CHECK(says(refused([](call& p, library&) { p.ldc = 0; }), bad, "with C of 5 rows"));
  CHECK(says(refused([](call& p, library&) { p.n = 4; }), bad, "for C with "));
  CHECK(says(refused([](call& p, library&) { p.n = 4; }), bad, "past its end"));
  CHECK(says(refused([](call& p, library&) { p.a = &p; }), bad, "which is no memory of a device"));
  CHECK(says(refused([](call& p, library&) { p.b = static_cast<char const*>(p.b) + 2; }),
             bad,
             "which begins inside of an element"));
  CHECK(says(refused([](call& p, library&) {
               p.c = const_cast<void*>(p.a);
               p.ldc = 6;
             }),
             bad,
             "with C that overlaps A"));
  CHECK(says(refused([](call& p, library&) { p.beta_at = static_cast<float const*>(p.a); }),
             bad,
             "with a factor that does not lie in memory of the host"));
  CHECK(says(refused([](call& p, library&) { p.a_how = CUBLAS_OP_C; }),
             bad,
             "with an operation that is neither CUBLAS_OP_N nor _T"));
  CHECK(says(refused([](call& p, library&) { p.c_type = CUDA_R_16BF; }),
             CUBLAS_STATUS_NOT_SUPPORTED,
             "with types that the stand-in has no product of"));
  CHECK(says(refused([](call& p, library&) { p.computes = CUBLAS_COMPUTE_32F_FAST_TF32; }),
             CUBLAS_STATUS_NOT_SUPPORTED,
             "with a compute type other than CUBLAS_COMPUTE_32F"));
  CHECK(says(refused([](call&, library&) { cudaSetDevice(1); }),
             CUBLAS_STATUS_NOT_INITIALIZED,
             "with a handle of device 0 while device 1 is current"));
  CHECK(says(refused([](call&, library& own) { cublasSetStream(own.handle, nullptr); }),
             CUBLAS_STATUS_ALLOC_FAILED,
             "without a workspace of the handle's own"));
  CHECK(
    says(refused([](call&, library& own) {
           cublasSetWorkspace(own.handle, own.workspace.data() + 4, workspace_bytes);
         }),
         CUBLAS_STATUS_SUCCESS, // of the product, with the workspace from before
         "calls cublasSetWorkspace with memory that does not begin at a multiple of 256 bytes"));
  CHECK(says(refused([](call&, library& own) { cublasDestroy(own.handle); }),
             CUBLAS_STATUS_NOT_INITIALIZED,
             "with a handle that does not exist or is destroyed"));
}

TEST_CASE("an injected fault reaches the caller as a status") {
  standin::configure({.faults = {{.function = "cublasGemmEx"}}});
  library const own;
  device_array<float> a(6 * 5), b(7 * 5), c(8 * 3);
  a.fill_zero();
  b.fill_zero();
  call p;
  p.a = a.data();
  p.b = b.data();
  p.c = c.data();
  CHECK(p.run(own.handle) == CUBLAS_STATUS_EXECUTION_FAILED);
  CHECK(p.run(own.handle) == CUBLAS_STATUS_SUCCESS);
  CHECK(std::string(cublasGetStatusString(CUBLAS_STATUS_EXECUTION_FAILED)).find("launch") !=
        std::string::npos);
}
