// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The launchers on the stand-in for the CUDA runtime: what nvcc compiled, launched as users do.
#include "launch.hpp"

#include <pipe/attention/reference.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/standin/standin.hpp"

namespace {

using namespace kernel_tests;
using element = __nv_bfloat16;

//! A dense tensor in device memory, filled by the host.
class device_tensor {
public:
  device_tensor(std::int64_t b, std::int64_t l, std::int64_t h, std::int64_t d) {
    auto const count = static_cast<std::size_t>(b * l * h * d);
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, count * sizeof(element)) == cudaSuccess);
    view = at::dense_tensor(static_cast<element*>(memory), b, l, h, d);
    host.resize(count);
  }
  device_tensor(device_tensor const&) = delete;
  device_tensor& operator=(device_tensor const&) = delete;
  ~device_tensor() { (void)cudaFree(view.data); }
  void fill(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (auto& x : host) {
      x = static_cast<element>(normal(random));
    }
    REQUIRE(
      cudaMemcpy(view.data, host.data(), host.size() * sizeof(element), cudaMemcpyHostToDevice) ==
      cudaSuccess);
  }
  void fetch() {
    REQUIRE(
      cudaMemcpy(host.data(), view.data, host.size() * sizeof(element), cudaMemcpyDeviceToHost) ==
      cudaSuccess);
  }
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (auto const x : host) {
      all.push_back(static_cast<double>(static_cast<float>(x)));
    }
    return all;
  }

  at::tensor_view<element> view;
  std::vector<element> host;
};

struct call {
  at::parameters p;
  device_tensor query, key, value, output;
  float* lse = nullptr;

  explicit call(at::parameters const& of)
      : p(of), query(p.batch, p.query_length, p.heads, p.head_dim),
        key(p.batch, p.key_length, p.key_heads, p.head_dim),
        value(p.batch, p.key_length, p.key_heads, p.head_dim),
        output(p.batch, p.query_length, p.heads, p.head_dim) {
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, rows() * sizeof(float)) == cudaSuccess);
    lse = static_cast<float*>(memory);
    std::mt19937 random(1);
    query.fill(random);
    key.fill(random);
    value.fill(random);
  }
  call(call const&) = delete;
  call& operator=(call const&) = delete;
  ~call() { (void)cudaFree(lse); }

  std::size_t rows() const { return static_cast<std::size_t>(p.batch * p.heads * p.query_length); }
  at::forward_tensors<element> tensors() const {
    return {query.view,
            key.view,
            value.view,
            output.view,
            at::dense_rows(lse, p.batch, p.heads, p.query_length)};
  }
};

at::parameters some_parameters() {
  at::parameters p;
  p.batch = 2;
  p.query_length = 40;
  p.query_offset = 30;
  p.key_length = 70;
  p.heads = 4;
  p.key_heads = 2;
  p.head_dim = 64;
  return p;
}

//! The sentence of the exception, or nothing.
template <class Function>
std::string sentence_of(Function const& f) {
  try {
    f();
  } catch (std::invalid_argument const& e) {
    return e.what();
  }
  return "";
}

} // namespace

TEST_CASE("launch: forward on a stream gives the numbers of the double reference") {
  standin::configure({});
  call c(some_parameters());
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  launch_forward(c.p, c.tensors(), stream);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(standin::counters().kernels == 1);
  c.output.fetch();
  auto q = c.query.numbers();
  auto k = c.key.numbers();
  auto v = c.value.numbers();
  auto o = q;
  std::vector<double> lse(c.rows());
  at::reference_forward(c.p,
                        {at::dense_tensor(q.data(), 2, 40, 4, 64),
                         at::dense_tensor(k.data(), 2, 70, 2, 64),
                         at::dense_tensor(v.data(), 2, 70, 2, 64),
                         at::dense_tensor(o.data(), 2, 40, 4, 64),
                         at::dense_rows(lse.data(), 2, 4, 40)});
  double apart = 0;
  auto const mine = c.output.numbers();
  for (std::size_t n = 0; n < o.size(); ++n) {
    apart = std::max(apart, std::abs(o[n] - mine[n]));
  }
  CHECK(apart < 0.03); // two roundings of the largest |v|, about 4
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("launch: what kernels cannot do is refused in one sentence, before any launch") {
  standin::configure({});
  call c(some_parameters());
  auto const refused = [&](auto const& change) {
    auto p = c.p;
    auto t = c.tensors();
    change(p, t);
    return sentence_of([&] { launch_forward(p, t, nullptr); });
  };
  CHECK(refused([](auto& p, auto&) { p.heads = 3; }).find("3 heads cannot share 2 key heads") !=
        std::string::npos);
  CHECK(refused([](auto& p, auto& t) {
          p.head_dim = t.query.dim = t.key.dim = t.value.dim = t.output.dim = 32;
        }) == "attention: the kernel is built for head dim 64, but the parameters ask for 32");
  CHECK(
    refused([](auto&, auto& t) { t.query.length_stride += 4; }) ==
    "attention: query has length stride 260, but kernels move 16 bytes at a time, so it must be "
    "a multiple of 8 elements");
  CHECK(
    refused([](auto&, auto& t) { t.output.data += 1; }) ==
    "attention: output does not begin at a multiple of 16 bytes, but kernels move 16 bytes at a "
    "time");
  for (double const scale : {-1.0, std::nan("")}) { // as the host refuses them
    CHECK(refused([&](auto& p, auto&) { p.scale = scale; }).find("scale must be a finite number") !=
          std::string::npos);
  }
  CHECK(refused([](auto& p, auto&) { p.query_length = 41; }).find("query is") != std::string::npos);
  CHECK(standin::counters().kernels == 0);
}

TEST_CASE("launch: backward runs two kernels on the stream and checks its call first") {
  standin::configure({});
  call c(some_parameters());
  device_tensor query_gradient(2, 40, 4, 64);
  auto const key_count = static_cast<std::size_t>(2 * 70 * 2 * 64);
  auto const zeros = [](std::size_t count) {
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, count * sizeof(float)) == cudaSuccess);
    REQUIRE(cudaMemset(memory, 0, count * sizeof(float)) == cudaSuccess);
    return static_cast<float*>(memory);
  };
  float* const key_gradient = zeros(key_count);
  float* const value_gradient = zeros(key_count);
  float* const mean = zeros(c.rows());
  launch_forward(c.p, c.tensors(), nullptr);
  auto const forward = c.tensors();
  at::backward_tensors<element> const t{forward.query,
                                        forward.key,
                                        forward.value,
                                        c.output.view,
                                        forward.log_sum_exp,
                                        forward.query, // any numbers do for dO
                                        query_gradient.view,
                                        at::dense_tensor(key_gradient, 2, 70, 2, 64),
                                        at::dense_tensor(value_gradient, 2, 70, 2, 64)};
  CHECK(sentence_of([&] {
          launch_backward(c.p, t, at::dense_rows(mean, 2, 4, 39), nullptr);
        }).find("scratch for dO . O is [2, 4, 39]") != std::string::npos);
  CHECK(standin::counters().kernels <= 1); // forward at most
  launch_backward(c.p, t, at::dense_rows(mean, 2, 4, 40), nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(standin::counters().kernels == 3);

  // sum over keys of dV_j . 1 = sum over queries of dO_i . 1, because weights of a query add to 1.
  std::vector<float> of_values(key_count);
  REQUIRE(cudaMemcpy(
            of_values.data(), value_gradient, key_count * sizeof(float), cudaMemcpyDeviceToHost) ==
          cudaSuccess);
  double left = 0;
  double right = 0;
  double size = 0;
  for (float const x : of_values) {
    left += static_cast<double>(x);
  }
  for (double const x : c.query.numbers()) {
    right += x;
    size += std::abs(x);
  }
  CHECK(std::abs(left - right) < size / 256);
  for (float* memory : {key_gradient, value_gradient, mean}) {
    REQUIRE(cudaFree(memory) == cudaSuccess);
  }
}

TEST_CASE("launch: merge runs on the stream and checks its call first") {
  standin::configure({});
  call one(some_parameters());
  call other(some_parameters());
  launch_forward(one.p, one.tensors(), nullptr);
  launch_forward(other.p, other.tensors(), nullptr);
  auto const mine = one.tensors();
  auto const theirs = other.tensors();
  auto wrong = theirs.output;
  wrong.length = 39;
  CHECK(sentence_of([&] {
          launch_merge(mine.output, mine.log_sum_exp, wrong, theirs.log_sum_exp, nullptr);
        }).find("other output is [2, 39, 4, 64]") != std::string::npos);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  one.output.fetch();
  auto const before = one.output.numbers();
  launch_merge(mine.output, mine.log_sum_exp, theirs.output, theirs.log_sum_exp, nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(standin::counters().kernels == 3);
  one.output.fetch();
  CHECK(one.output.numbers() == before); // two equal states merge to the same O
}
