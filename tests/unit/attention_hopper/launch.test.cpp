// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The launcher for Hopper on the stand-in for the CUDA runtime: tensor maps as the driver makes
// them, and refusals.
#include "launch.hpp"

#include <pipe/attention/reference.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/standin/standin.hpp"

namespace {

using namespace hopper_tests;
using element = __nv_bfloat16;

//! Device memory.
template <class Number>
class device_array {
public:
  explicit device_array(std::int64_t count) : host(static_cast<std::size_t>(count)) {
    REQUIRE(cudaMalloc(&memory_, host.size() * sizeof(Number)) == cudaSuccess);
  }
  device_array(device_array const&) = delete;
  device_array& operator=(device_array const&) = delete;
  ~device_array() { (void)cudaFree(memory_); }
  Number* data() const { return static_cast<Number*>(memory_); }
  void fill(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (auto& x : host) {
      x = static_cast<Number>(normal(random));
    }
    copy(memory_, host.data(), cudaMemcpyHostToDevice);
  }
  void fetch() { copy(host.data(), memory_, cudaMemcpyDeviceToHost); }
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (auto const x : host) {
      all.push_back(static_cast<double>(static_cast<float>(x)));
    }
    return all;
  }
  std::vector<Number> host;

private:
  void copy(void* to, void const* from, cudaMemcpyKind kind) {
    REQUIRE(cudaMemcpy(to, from, host.size() * sizeof(Number), kind) == cudaSuccess);
  }
  void* memory_ = nullptr;
};

//! Two sequences of forty queries, four heads over two, after thirty keys.
struct call {
  at::parameters p{.batch = 2,
                   .query_length = 40,
                   .query_offset = 30,
                   .key_length = 70,
                   .heads = 4,
                   .key_heads = 2,
                   .head_dim = 64};
  device_array<element> query{2 * 40 * 4 * 64}, key{2 * 70 * 2 * 64}, value{2 * 70 * 2 * 64},
    output{2 * 40 * 4 * 64};
  device_array<float> lse{2 * 4 * 40};

  call() {
    std::mt19937 random(1);
    query.fill(random);
    key.fill(random);
    value.fill(random);
  }
  at::forward_tensors<element> tensors() const {
    return {at::dense_tensor(query.data(), 2, 40, 4, 64),
            at::dense_tensor(key.data(), 2, 70, 2, 64),
            at::dense_tensor(value.data(), 2, 70, 2, 64),
            at::dense_tensor(output.data(), 2, 40, 4, 64),
            at::dense_rows(lse.data(), 2, 4, 40)};
  }
};

//! The sentence of the exception, or nothing.
std::string refusal(at::parameters const& p, at::forward_tensors<element> const& t) {
  try {
    launch_forward(p, t, nullptr);
  } catch (std::invalid_argument const& e) {
    return e.what();
  }
  return "";
}

} // namespace

TEST_CASE("hopper launch: forward on a stream gives the numbers of the double reference") {
  standin::configure({});
  call c;
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  auto q = c.query.numbers();
  auto k = c.key.numbers();
  auto v = c.value.numbers();
  auto o = q;
  std::vector<double> lse(2 * 4 * 40);
  at::reference_forward(c.p,
                        {at::dense_tensor(q.data(), 2, 40, 4, 64),
                         at::dense_tensor(k.data(), 2, 70, 2, 64),
                         at::dense_tensor(v.data(), 2, 70, 2, 64),
                         at::dense_tensor(o.data(), 2, 40, 4, 64),
                         at::dense_rows(lse.data(), 2, 4, 40)});
  device_array<float> scratch(at::key_splits::scratch(c.p, 2));
  for (auto const& splits : {at::key_splits{}, at::key_splits::in(scratch.data(), c.p, 2)}) {
    auto const before = standin::counters().kernels;
    launch_forward(c.p, c.tensors(), stream, splits);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(standin::summary() == "");
    CHECK(standin::counters().kernels - before == splits.count);
    c.output.fetch();
    double apart = 0;
    auto const mine = c.output.numbers();
    for (std::size_t n = 0; n < o.size(); ++n) {
      apart = std::max(apart, std::abs(o[n] - mine[n]));
    }
    CHECK(apart < 0.03); // two roundings of the largest |v|, about 4
  }
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("hopper launch: keys are cut where a chunk alone does not fill the GPU") {
  CHECK(at::choose_key_splits(132, 64, 132) == 1); // one full round
  CHECK(at::choose_key_splits(106, 64, 132) == 1); // four fifths of one
  CHECK(at::choose_key_splits(66, 64, 132) == 2);  // two parts fill it
  CHECK(at::choose_key_splits(64, 64, 132) == 2);  // 97 % of the fullest
  CHECK(at::choose_key_splits(32, 64, 132) == 4);
  CHECK(at::choose_key_splits(32, 4, 132) == 2); // two tiles at least
  CHECK(at::choose_key_splits(32, 1, 132) == 1);
  CHECK(at::choose_key_splits(0, 8, 132) == 1);
}

TEST_CASE("hopper launch: no keys, no queries") {
  standin::configure({});
  call c;
  auto p = c.p;
  auto t = c.tensors();
  p.key_length = t.key.length = t.value.length = 0;
  t.key.data = t.value.data = nullptr;
  launch_forward(p, t, nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::summary() == "");
  c.output.fetch();
  auto const mine = c.output.numbers();
  CHECK(std::all_of(mine.begin(), mine.end(), [](double x) { return x == 0; }));
  p.query_length = t.query.length = t.output.length = t.log_sum_exp.length = 0;
  launch_forward(p, t, nullptr);
  CHECK(standin::counters().kernels == 1);
}

TEST_CASE("hopper launch: what the kernels cannot do is refused in one sentence") {
  {
    standin::configuration older;
    older.compute_major = 8;
    standin::configure(older);
    call c;
    CHECK(refusal(c.p, c.tensors()).find("compute capability 9.0") != std::string::npos);
  }
  standin::configure({});
  call c;
  auto t = c.tensors();
  t.key.length_stride = -t.key.length_stride;
  CHECK(refusal(c.p, t) == "attention: key has stride -128, but tensor copies need strides of 0 or "
                           "more and below 2^40 bytes");
  t = c.tensors();
  at::key_splits splits;
  splits.count = 2;
  CHECK_THROWS_WITH_AS(
    launch_forward(c.p, t, nullptr, splits),
    "attention: keys in parts need scratch that begins at a multiple of 16 bytes",
    std::invalid_argument);
  CHECK(standin::counters().kernels == 0);
}
