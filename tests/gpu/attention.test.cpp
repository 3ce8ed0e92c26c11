// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Attention by the front door on the GPU against the double reference: chunks whose sizes fit
// nothing, of every head dim and element type. bin/attention checks long sequences before it times
// them.
#include <pipe/attention/kernel_choice.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tests/gpu/every_attention.hpp>
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

//! Runs one call in both directions.
//! @param forward_scratch floats that forward wants, for keys in parts
//! @param forward         of (scratch, floats); backward likewise
template <class Element, class Forward, class Backward>
void check_call(attention_call_of<Element>& c,
                attention_answers const& expected,
                std::int64_t forward_scratch,
                Forward const& run_forward,
                Backward const& run_backward) {
  device_array<float> scratch(std::max(c.scratch_count(), forward_scratch)); // dO . O first
  if (!machine::on_model()) { // NaN that kernels have to overwrite; the model knows what is
                              // unwritten
    auto const bytes = static_cast<std::size_t>(c.output.count()) * sizeof(Element);
    REQUIRE(cudaMemset(c.output.data(), 0xff, bytes) == cudaSuccess);
  }
  auto const forward = run_forward(scratch.data(), forward_scratch);
  auto const backward = run_backward(scratch.data(), scratch.count());
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

void check_chunk(gpu_tests::program const& calls, at::parameters const& p) {
  machine::begin();
  attention_call c(p);
  check_call(
    c,
    attention_answers(c),
    calls.forward_scratch(p),
    [&](float* scratch, std::int64_t floats) {
      return calls.forward(p, c.forward(), scratch, floats, nullptr);
    },
    [&](float* scratch, std::int64_t floats) {
      return calls.backward(p, c.backward(), scratch, floats, nullptr);
    });
}

//! @param on_device the mask for kernels, on_host the same for the reference
template <int Dim, class Element, class Mask, class Score>
void check_kernels(at::parameters p, Mask const& on_device, Mask const& on_host, Score const& f) {
  using kernels = gpu_tests::attention_kernels<Dim, Element, Mask, Score>;
  CAPTURE(Dim);
  p.head_dim = Dim;
  attention_call_of<Element> c(p);
  check_call(
    c,
    attention_answers(c, on_host, f),
    kernels::forward_scratch(p),
    [&](float* scratch, std::int64_t floats) {
      return kernels::forward(p, c.forward(), scratch, floats, on_device, f);
    },
    [&](float* scratch, std::int64_t floats) {
      return kernels::backward(p, c.backward(), scratch, floats, on_device, f);
    });
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

TEST_CASE("every head dim and element type, with masks and scores") {
  machine::begin();
  bool const tiny = machine::on_model();
  at::parameters const p{.batch = 2,
                         .query_length = tiny ? 20 : 300,
                         .query_offset = tiny ? 70 : 700,
                         .key_length = tiny ? 90 : 1000,
                         .heads = 2,
                         .key_heads = 1};
  check_kernels<64, __nv_bfloat16>(p, at::causal{}, at::causal{}, at::plain{});
  check_kernels<128, __nv_bfloat16>(p, at::causal{}, at::causal{}, at::plain{});
  check_kernels<256, __nv_bfloat16>(p, at::causal{}, at::causal{}, at::plain{});
  // Two documents, the second of which begins within the chunk.
  device_array<std::int32_t> first(p.key_length);
  std::fill(first.host.begin() + p.query_offset + 5, first.host.end(), p.query_offset + 5);
  first.send();
  at::sliding_window const window{tiny ? 30 : 200, 3};
  gpu_tests::window_of_document const on_device{window, {first.data(), 0}};
  gpu_tests::window_of_document const on_host{window, {first.host.data(), 0}};
  check_kernels<64, __half>(p, on_device, on_host, at::soft_cap{5});
  check_kernels<128, __half>(p, on_device, on_host, at::soft_cap{5});
  check_kernels<256, __half>(p, on_device, on_host, at::soft_cap{5});
}
