// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Attention by the front door on the GPU against the double reference: chunks whose sizes fit
// nothing, of every head dim and element type. bin/attention checks long sequences before it times
// them.
#include <pipe/attention/head_dims.hpp>
#include <pipe/attention/kernel_choice.hpp>
#include <pipe/attention/merge.hpp>
#include <pipe/attention/packed_mask.hpp>
#include <pipe/attention/sinks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tests/gpu/every_attention.hpp>
#include <tests/gpu/machine.hpp>
#include <tests/support/attention_call.hpp>
#include <tests/support/attention_reference.hpp>
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
    calls.forward_scratch(p, 0, false),
    [&](float* scratch, std::int64_t floats) {
      return calls.forward(p, c.forward(), scratch, floats, nullptr);
    },
    [&](float* scratch, std::int64_t floats) {
      return calls.backward(p, c.backward(), scratch, floats, nullptr);
    });
}

constexpr int latent = at::head_dims(192, 128);

//! @param on_device the mask for kernels, on_host the same for the reference
template <int Dim, class Element, class Mask, class Score>
void check_kernels(at::parameters p, Mask const& on_device, Mask const& on_host, Score const& f) {
  using kernels = gpu_tests::attention_kernels<Dim, Element, Mask, Score>;
  p.head_dim = at::detail::query_dim(Dim);
  p.value_dim = at::detail::value_dim(Dim);
  CAPTURE(p.head_dim);
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
                         .query_length = tiny ? 20 : 150,
                         .query_offset = tiny ? 70 : 250,
                         .key_length = tiny ? 90 : 400,
                         .heads = 2,
                         .key_heads = 1};
  check_kernels<64, __nv_bfloat16>(p, at::causal{}, at::causal{}, at::plain{});
  check_kernels<128, __nv_bfloat16>(p, at::causal{}, at::causal{}, at::plain{});
  check_kernels<256, __nv_bfloat16>(p, at::causal{}, at::causal{}, at::plain{});
  check_kernels<80, __nv_bfloat16>(p, at::causal{}, at::causal{}, at::plain{});
  check_kernels<112, __nv_bfloat16>(p, at::causal{}, at::causal{}, at::plain{});
  check_kernels<latent, __nv_bfloat16>(p, at::causal{}, at::causal{}, at::plain{});
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
  check_kernels<96, __half>(p, on_device, on_host, at::soft_cap{5});
  check_kernels<latent, __half>(p, on_device, on_host, at::soft_cap{5});
}

TEST_CASE("sequences packed by their lengths, with sinks") {
  machine::begin();
  bool const tiny = machine::on_model();
  int const unit = tiny ? 5 : 16;
  // The second has no queries, the fourth no keys; the third has more keys than queries.
  std::vector<int> const query_ends{0, 7, 7, 12, 14, 21};
  std::vector<int> const key_ends{0, 5, 8, 17, 17, 24};
  device_array<std::int32_t> queries(6);
  device_array<std::int32_t> keys(6);
  for (std::size_t s = 0; s < 6; ++s) {
    queries.host[s] = unit * query_ends[s];
    keys.host[s] = unit * key_ends[s];
  }
  queries.send();
  keys.send();
  at::packed const on_device{queries.data(), keys.data(), 5, true};
  at::packed const on_host{queries.host.data(), keys.host.data(), 5, true};
  at::parameters p{.batch = 2,
                   .query_length = 21 * unit,
                   .key_length = 24 * unit,
                   .heads = 4,
                   .key_heads = 2,
                   .head_dim = 64};
  device_array<float> sinks(4);
  device_array<float> gradient(4);
  sinks.host = {0.5F, -3, 2, 1};
  gradient.host = {0, 1, 0, 0}; // is added to
  sinks.send();
  gradient.send();
  attention_call c(p);

  // What the double reference makes of the keys, merged with the state of the sinks alone.
  std::vector<double> const exact(sinks.host.begin(), sinks.host.end());
  attention_answers expected(c, on_host);
  auto sink_output = expected.output;
  auto sink_lse = expected.lse;
  at::start_at_sinks(c.of_queries(sink_output.data()), c.rows(sink_lse.data()), exact.data());
  at::merge<double, double>(c.of_queries(expected.output.data()),
                            c.rows(expected.lse.data()),
                            c.of_queries<double const>(sink_output.data()),
                            c.rows<double const>(sink_lse.data()));
  auto q = c.query.numbers();
  auto k = c.key.numbers();
  auto v = c.value.numbers();
  auto g = c.output_gradient.numbers();
  for (auto* each : {&expected.query_gradient, &expected.key_gradient, &expected.value_gradient})
    std::fill(each->begin(), each->end(), 0.0);
  at::backward_tensors<double> const t{c.of_queries(q.data()),
                                       c.of_keys(k.data()),
                                       c.of_keys(v.data()),
                                       c.of_queries(expected.output.data()),
                                       c.rows(expected.lse.data()),
                                       c.of_queries(g.data()),
                                       c.of_queries(expected.query_gradient.data()),
                                       c.of_keys(expected.key_gradient.data()),
                                       c.of_keys(expected.value_gradient.data())};
  at::reference_backward(p, t, on_host, at::plain{});
  std::vector<double> of_sinks{0, 1, 0, 0};
  at::add_sink_gradient(p, t, exact.data(), of_sinks.data());

  using kernels = gpu_tests::attention_kernels<64, __nv_bfloat16, at::packed, at::plain>;
  auto goes_on = p;
  goes_on.from = at::carry::in;
  check_call(
    c,
    expected,
    kernels::forward_scratch(p),
    [&](float* scratch, std::int64_t floats) {
      gpu_tests::start_at_sinks(c.of_queries(c.output.data()), c.rows(c.lse.data()), sinks.data());
      return kernels::forward(goes_on, c.forward(), scratch, floats, on_device, at::plain{});
    },
    [&](float* scratch, std::int64_t floats) {
      auto const choice =
        kernels::backward(p, c.backward(), scratch, floats, on_device, at::plain{});
      gpu_tests::add_sink_gradient(c.rows<float const>(c.lse.data()),
                                   c.rows<float const>(scratch),
                                   sinks.data(),
                                   gradient.data());
      return choice;
    });
  gradient.fetch();
  for (std::size_t h = 0; h < 4; ++h) {
    CHECK(gradient.host[h] == doctest::Approx(of_sinks[h]).epsilon(0.02));
    CHECK(std::abs(of_sinks[h] - (h == 1 ? 1 : 0)) > 0.01);
  }
}
