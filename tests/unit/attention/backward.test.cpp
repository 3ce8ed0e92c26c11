// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/attention/backward.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <random>

#include "problem.hpp"

using namespace attention_tests;

namespace {

sizes random_sizes(std::mt19937& random) {
  auto const up_to = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(1, n)(random);
  };
  sizes s;
  s.batch = up_to(2);
  s.queries = up_to(70);
  s.query_offset = up_to(100) - 1;
  s.keys = s.query_offset + s.queries;
  s.key_heads = up_to(3);
  s.heads = s.key_heads * up_to(3);
  s.dim = up_to(40);
  s.value_dim = up_to(40);
  return s;
}

template <class Mask, class Score>
void check_backward(Mask const& mask, Score const& score, unsigned seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < 6; ++round) {
    problem<float> tested(random_sizes(random));
    tested.fill(random);
    problem<double> reference(tested);
    auto const n = tested.size.queries;
    auto const k = tested.size.keys;
    at::forward(tested.chunk(0, n, k), tested.forward_views(0, n, k), mask, score);
    at::backward(tested.chunk(0, n, k), tested.backward_views(0, n, k), mask, score);
    at::reference_forward(reference.chunk(0, n, k), reference.forward_views(0, n, k), mask, score);
    at::reference_backward(
      reference.chunk(0, n, k), reference.backward_views(0, n, k), mask, score);
    CHECK(distance(tested.query_gradient.elements(), reference.query_gradient.elements()) < 1e-5);
    CHECK(distance(tested.key_gradient.elements(), reference.key_gradient.elements()) < 1e-5);
    CHECK(distance(tested.value_gradient.elements(), reference.value_gradient.elements()) < 1e-5);
  }
}

} // namespace

TEST_CASE("backward agrees with the double reference") {
  auto const slopes = at::alibi_slopes(9);
  std::vector<std::int32_t> first(240);
  for (std::int32_t i = 0; i < 240; ++i) {
    first[static_cast<std::size_t>(i)] = i < 31 ? 0 : i < 130 ? 31 : 130;
  }
  at::document const documents{first.data(), 0};
  check_backward(at::causal{}, at::plain{}, 41);
  check_backward(at::full{}, at::soft_cap{3}, 42);
  check_backward(at::sliding_window{40, 2}, at::alibi{slopes.data()}, 43);
  check_backward(at::both<at::causal, at::document>{{}, documents}, at::plain{}, 44);
  check_backward(speckled{}, bent{}, 45);
}

TEST_CASE("n chunks in reverse order give the bits of one chunk") {
  std::mt19937 random(46);
  auto const check = [&](auto const& mask, auto const& score) {
    for (int round = 0; round < 5; ++round) {
      auto size = random_sizes(random);
      size.query_offset = 0;
      size.queries = size.keys = 190;
      problem<float> whole(size);
      whole.fill(random);
      at::forward(whole.chunk(0, 190, 190), whole.forward_views(0, 190, 190), mask, score);
      problem<float> parts(whole);
      parts.output = whole.output;
      parts.lse = whole.lse;
      at::backward(whole.chunk(0, 190, 190), whole.backward_views(0, 190, 190), mask, score);
      std::int64_t end = 190;
      at::workspace<float> space;
      for (auto const length : random_chunks(190, 100, random)) {
        auto const begin = end - length;
        at::backward(parts.chunk(begin, length, end),
                     parts.backward_views(begin, length, end),
                     mask,
                     score,
                     space);
        end = begin;
      }
      CHECK(different_bits(parts.query_gradient.elements(), whole.query_gradient.elements()) == 0);
      CHECK(different_bits(parts.key_gradient.elements(), whole.key_gradient.elements()) == 0);
      CHECK(different_bits(parts.value_gradient.elements(), whole.value_gradient.elements()) == 0);
    }
  };
  check(at::causal{}, at::plain{});
  check(at::sliding_window{37, 0}, at::soft_cap{4});
  check(at::both<at::causal, speckled>{}, bent{});
}

TEST_CASE("keys in slices give the gradients of all keys when dQ is carried") {
  std::mt19937 random(47);
  problem<double> whole({.batch = 1,
                         .queries = 40,
                         .query_offset = 60,
                         .keys = 100,
                         .heads = 4,
                         .key_heads = 2,
                         .dim = 8});
  whole.fill(random);
  auto const all = whole.chunk(0, 40, 100);
  at::reference_forward(all, whole.forward_views(0, 40, 100));
  at::reference_backward(all, whole.backward_views(0, 40, 100));
  problem<double> sliced(whole);
  sliced.output = whole.output;
  sliced.lse = whole.lse;
  for (std::int64_t begin = 0; begin < 100; begin += 25) {
    auto parameters = sliced.chunk(0, 40, 25);
    parameters.key_offset = begin;
    parameters.from = begin == 0 ? at::carry::none : at::carry::in;
    auto views = sliced.backward_views(0, 40, 25);
    views.key = sliced.key.view(begin, 25);
    views.value = sliced.value.view(begin, 25);
    views.key_gradient = sliced.key_gradient.view(begin, 25);
    views.value_gradient = sliced.value_gradient.view(begin, 25);
    at::backward(parameters, views);
  }
  CHECK(distance(sliced.query_gradient.elements(), whole.query_gradient.elements()) < 1e-13);
  CHECK(distance(sliced.key_gradient.elements(), whole.key_gradient.elements()) < 1e-13);
  CHECK(distance(sliced.value_gradient.elements(), whole.value_gradient.elements()) < 1e-13);
}

TEST_CASE("queries that see nothing get and give nothing") {
  std::mt19937 random(48);
  problem<float> p({.queries = 20, .query_offset = 0, .keys = 30, .heads = 2, .dim = 5});
  p.fill(random);
  auto parameters = p.chunk(0, 20, 30);
  parameters.key_offset = 20; // every query comes before every key
  at::forward(parameters, p.forward_views(0, 20, 30));
  at::backward(parameters, p.backward_views(0, 20, 30));
  for (auto* gradient : {&p.query_gradient, &p.key_gradient, &p.value_gradient}) {
    for (auto const x : gradient->elements()) {
      REQUIRE(x == 0);
    }
  }
}

TEST_CASE("running dK and dV may be wider than the tensors") {
  std::mt19937 random(49);
  problem<float> p(
    {.queries = 50, .query_offset = 0, .keys = 50, .heads = 2, .key_heads = 2, .dim = 8});
  p.fill(random);
  at::forward(p.chunk(0, 50, 50), p.forward_views(0, 50, 50));
  at::backward(p.chunk(0, 50, 50), p.backward_views(0, 50, 50));
  tensor<double> key_gradient(1, 50, 2, 8);
  tensor<double> value_gradient(1, 50, 2, 4);
  auto const narrow = p.backward_views(0, 50, 50);
  at::backward_tensors<float, float, double> const wide{narrow.query,
                                                        narrow.key,
                                                        narrow.value,
                                                        narrow.output,
                                                        narrow.log_sum_exp,
                                                        narrow.output_gradient,
                                                        narrow.query_gradient,
                                                        key_gradient.view(),
                                                        value_gradient.view()};
  at::backward(p.chunk(0, 50, 50), wide);
  CHECK(distance(p.key_gradient.elements(), key_gradient.elements()) < 2e-6);
  CHECK(distance(p.value_gradient.elements(), value_gradient.elements()) < 2e-6);
}

namespace {

//! The upper half of a float, rounded to nearest even.
struct short_float {
  std::uint16_t bits = 0;

  short_float() = default;
  short_float(float x) { // NOLINT(google-explicit-constructor)
    auto const all = std::bit_cast<std::uint32_t>(x);
    bits = static_cast<std::uint16_t>((all + 0x7fffu + (all >> 16 & 1u)) >> 16);
  }
  operator float() const { // NOLINT(google-explicit-constructor)
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

} // namespace

TEST_CASE("elements of 16 bits: chunks leave no trace, and gradients are those of the reference") {
  std::mt19937 random(12);
  sizes s{
    .batch = 1, .queries = 77, .keys = 77, .heads = 4, .key_heads = 2, .dim = 19, .value_dim = 11};
  problem<short_float> first(s);
  first.fill(random);
  problem<float> exact(first);
  auto const run = [&](std::vector<std::int64_t> const& ends) {
    problem<short_float> made(first);
    tensor<float> key_gradient(s.batch, s.keys, s.key_heads, s.dim);
    tensor<float> value_gradient(s.batch, s.keys, s.key_heads, s.value_dim);
    std::vector<float> lse(static_cast<std::size_t>(s.heads * s.queries));
    auto const statistics = [&](std::int64_t begin, std::int64_t count) {
      return at::row_view<float>{
        lse.data() + begin, s.batch, s.heads, count, s.heads * s.queries, s.queries};
    };
    for (std::size_t i = 1; i < ends.size(); ++i) {
      auto const begin = ends[i - 1];
      auto const count = ends[i] - begin;
      at::forward(made.chunk(begin, count, ends[i]),
                  at::forward_tensors<short_float>{made.query.view(begin, count),
                                                   made.key.view(0, ends[i]),
                                                   made.value.view(0, ends[i]),
                                                   made.output.view(begin, count),
                                                   statistics(begin, count)});
    }
    for (std::size_t i = ends.size() - 1; i > 0; --i) {
      auto const begin = ends[i - 1];
      auto const count = ends[i] - begin;
      at::backward(made.chunk(begin, count, ends[i]),
                   at::backward_tensors<short_float>{made.query.view(begin, count),
                                                     made.key.view(0, ends[i]),
                                                     made.value.view(0, ends[i]),
                                                     made.output.view(begin, count),
                                                     statistics(begin, count),
                                                     made.output_gradient.view(begin, count),
                                                     made.query_gradient.view(begin, count),
                                                     key_gradient.view(0, ends[i]),
                                                     value_gradient.view(0, ends[i])});
    }
    std::vector<float> all;
    for (auto const& each : {made.output.elements(), made.query_gradient.elements()})
      all.insert(all.end(), each.begin(), each.end());
    for (auto const& each : {key_gradient.elements(), value_gradient.elements()})
      all.insert(all.end(), each.begin(), each.end());
    return all;
  };
  auto const whole = run({0, 77});
  CHECK(different_bits(run({0, 1, 33, 70, 77}), whole) == 0);
  at::forward(exact.chunk(0, 77, 77), exact.forward_views(0, 77, 77));
  at::backward(exact.chunk(0, 77, 77), exact.backward_views(0, 77, 77));
  std::vector<float> expected;
  for (auto const& each : {exact.output.elements(),
                           exact.query_gradient.elements(),
                           exact.key_gradient.elements(),
                           exact.value_gradient.elements()})
    expected.insert(expected.end(), each.begin(), each.end());
  CHECK(distance(whole, expected) < 1e-2); // of outputs rounded to 8 bits
}
