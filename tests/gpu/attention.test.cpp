// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Attention by the front door on the GPU against the double reference. bin/attention checks long
// sequences and head dim 128 before it times them; here are chunks whose sizes fit nothing.
#include <pipe/attention/kernel_choice.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tests/gpu/machine.hpp>
#include <tests/support/attention_call.hpp>
#include <tests/unit/attention_gpu/calls.hpp>
#include <vector>

namespace {

using namespace device_tests;

//! The length of the difference over the length of what is right.
double relative_error(std::vector<double> const& mine, std::vector<double> const& right) {
  REQUIRE(mine.size() == right.size());
  double off = 0;
  double all = 0;
  for (std::size_t n = 0; n < right.size(); ++n) {
    off += (mine[n] - right[n]) * (mine[n] - right[n]);
    all += right[n] * right[n];
  }
  return std::sqrt(off / all);
}

//! Weights and results are rounded to bf16, by 2^-9 at most and less on average.
constexpr double allowed = 0.01;

void check_chunk(gpu_tests::program const& calls, at::parameters const& p) {
  machine::begin();
  attention_call c(p);
  attention_answers const expected(c);
  device_array<float> scratch(
    std::max(c.scratch_count(), calls.forward_scratch(p))); // for dO . O, and for keys in parts
  auto const forward =
    calls.forward(p, c.forward(), scratch.data(), calls.forward_scratch(p), nullptr);
  auto const backward = calls.backward(p, c.backward(), scratch.data(), scratch.count(), nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::string const forward_by = at::describe(forward);
  std::string const backward_by = at::describe(backward);
  CAPTURE(forward_by);
  CAPTURE(backward_by);
  CHECK(machine::findings() == "");
  for (auto* each : {&c.output, &c.query_gradient})
    each->fetch();
  for (auto* each : {&c.lse, &c.key_gradient, &c.value_gradient})
    each->fetch();
  CHECK(relative_error(c.output.numbers(), expected.output) < allowed);
  CHECK(apart(c.lse.numbers(), expected.lse) < 1e-4);
  CHECK(relative_error(c.query_gradient.numbers(), expected.query_gradient) < allowed);
  CHECK(relative_error(c.key_gradient.numbers(), expected.key_gradient) < allowed);
  CHECK(relative_error(c.value_gradient.numbers(), expected.value_gradient) < allowed);
}

//! The fastest kernels of this GPU, and those of a program that has only the portable ones.
void check_programs(at::parameters const& p) {
  for (gpu_tests::program const* calls : {&gpu_tests::for_80_and_90a, &gpu_tests::for_80})
    check_chunk(*calls, p);
}

} // namespace

// For tools that make every kernel slow.
TEST_CASE("small chunks by the fastest kernels") {
  check_chunk(gpu_tests::for_80_and_90a, some_parameters);
}
TEST_CASE("small chunks by the portable kernels") {
  check_chunk(gpu_tests::for_80, some_parameters);
}

TEST_CASE("chunks of no round size, far into the sequence") {
  bool const tiny = machine::on_model();
  // The last of many chunks, with its keys in parts where a GPU is not full otherwise.
  check_programs({.query_length = tiny ? 9 : 64,
                  .query_offset = tiny ? 131 : 8128,
                  .key_length = tiny ? 140 : 8192,
                  .heads = 4,
                  .key_heads = 1,
                  .head_dim = 64});
  check_programs({.query_length = tiny ? 33 : 333,
                  .query_offset = tiny ? 77 : 777,
                  .key_length = tiny ? 110 : 1110,
                  .heads = 6,
                  .key_heads = 3,
                  .head_dim = 64});
  check_programs({.batch = 2,
                  .query_length = tiny ? 16 : 256,
                  .query_offset = tiny ? 48 : 1792,
                  .key_length = tiny ? 64 : 2048,
                  .heads = 4,
                  .key_heads = 4,
                  .head_dim = 64});
}
