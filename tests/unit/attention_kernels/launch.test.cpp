// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The launchers on the stand-in for the CUDA runtime: what nvcc compiled, launched as users do.
#include "launch.hpp"

#include <pipe/attention/key_splits.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "simulators/cuda/standin.hpp"
#include "tests/support/attention_call.hpp"

namespace {

using namespace device_tests;
using namespace kernel_tests;

} // namespace

TEST_CASE("launch: forward on a stream gives the numbers of the double reference") {
  standin::configure({});
  attention_call c;
  attention_answers const expected(c);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  launch_forward(c.p, c.forward(), stream);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(standin::counters().kernels == 1);
  c.output.fetch();
  CHECK(apart(c.output.numbers(), expected.output) < 0.03); // two roundings of the largest |v|
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("launch: what kernels cannot do is refused in one sentence, before any launch") {
  standin::configure({});
  attention_call c;
  auto const refused = [&](auto const& change) {
    auto p = c.p;
    auto t = c.forward();
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

TEST_CASE("launch: backward runs three kernels on the stream and checks its call first") {
  standin::configure({});
  attention_call c;
  attention_answers const expected(c);
  launch_forward(c.p, c.forward(), nullptr);
  auto t = c.backward();
  t.log_sum_exp.length = 39;
  CHECK(sentence_of([&] {
          launch_backward(c.p, t, c.scratch.data(), c.scratch_count(), nullptr);
        }).find("log-sum-exp is [2, 4, 39]") != std::string::npos);
  CHECK(standin::counters().kernels <= 1); // forward at most
  launch_backward(c.p, c.backward(), c.scratch.data(), c.scratch_count(), nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(standin::summary() == "");
  CHECK(standin::counters().kernels == 4); // with forward
  check_gradients(c, expected);
}

TEST_CASE("launch: backward of the widest heads fits GPUs with 99 KiB of shared memory") {
  for (int const minor : {0, 6, 9}) {
    standin::configure({.compute_major = 8, .compute_minor = minor});
    auto p = some_parameters;
    p.head_dim = 256;
    attention_call c(p);
    attention_answers const expected(c);
    for (std::size_t n = 0; n < expected.output.size(); ++n) {
      c.output.host[n] = __float2bfloat16(static_cast<float>(expected.output[n]));
    }
    for (std::size_t n = 0; n < expected.lse.size(); ++n) {
      c.lse.host[n] = static_cast<float>(expected.lse[n]);
    }
    c.output.send();
    c.lse.send();
    launch_backward(c.p, c.backward(), c.scratch.data(), c.scratch_count(), nullptr);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(standin::summary() == "");
    check_gradients(c, expected);
  }
}

TEST_CASE("launch: two blocks of forward share a multiprocessor, also one with 100 KiB") {
  for (auto const& [minor, keys_of_step] : {std::pair{0, 48}, std::pair{6, 32}, std::pair{9, 32}}) {
    standin::configuration const machine{.compute_major = 8, .compute_minor = minor};
    standin::configure(machine);
    auto p = some_parameters;
    p.head_dim = 128;
    auto chunk = p; // of 32 pieces
    chunk.batch = 8;
    chunk.query_offset = 3960;
    chunk.key_length = 4000;
    auto const parts = at::detail::choose_key_splits(
      32, (4000 + keys_of_step - 1) / keys_of_step, 2 * machine.processors);
    CHECK(forward_scratch(chunk) == at::detail::key_splits::scratch(chunk, parts));
    p.query_length = 20;
    p.query_offset = 680;
    p.key_length = 700;
    attention_call c(p);
    attention_answers const expected(c);
    auto const floats = forward_scratch(p);
    REQUIRE(floats >= at::detail::key_splits::scratch(p, 2));
    device_array<float> scratch(floats);
    for (auto const given : {std::int64_t{0}, floats}) {
      auto const before = standin::counters().kernels;
      launch_forward(p, c.forward(), nullptr, scratch.data(), given);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      CHECK(standin::summary() == "");
      CHECK(standin::counters().kernels - before == (given == 0 ? 1 : 2)); // with parts, a merge
      c.output.fetch();
      CHECK(apart(c.output.numbers(), expected.output) < 0.03);
    }
  }
}

TEST_CASE("launch: merge runs on the stream and checks its call first") {
  standin::configure({});
  attention_call one;
  attention_call other;
  launch_forward(one.p, one.forward(), nullptr);
  launch_forward(other.p, other.forward(), nullptr);
  auto const mine = one.forward();
  auto const theirs = other.forward();
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
