// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/attention/merge.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

#include "problem.hpp"

using namespace attention_tests;

namespace {

//! A state (O, log-sum-exp) of two heads over one query.
struct state {
  std::vector<double> output;
  std::vector<double> lse;
};

state merged(state a, state const& b) {
  at::merge(at::dense_tensor(a.output.data(), 1, 1, 2, 3),
            at::dense_rows(a.lse.data(), 1, 2, 1),
            at::dense_tensor(b.output.data(), 1, 1, 2, 3),
            at::dense_rows(b.lse.data(), 1, 2, 1));
  return a;
}

state random_state(std::mt19937& random) {
  std::normal_distribution<double> normal;
  state s;
  for (int n = 0; n < 6; ++n) {
    s.output.push_back(normal(random));
  }
  s.lse = {20 * normal(random), 20 * normal(random)};
  return s;
}

state nothing() {
  return {std::vector<double>(6, 0.0),
          std::vector<double>(2, -std::numeric_limits<double>::infinity())};
}

} // namespace

TEST_CASE("merge is commutative and associative, and the empty state is neutral") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    auto const a = random_state(random);
    auto const b = random_state(random);
    auto const c = random_state(random);
    CHECK(distance(merged(a, b).output, merged(b, a).output) < 1e-15);
    CHECK(distance(merged(a, b).lse, merged(b, a).lse) < 1e-15);
    auto const left = merged(merged(a, b), c);
    auto const right = merged(a, merged(b, c));
    CHECK(distance(left.output, right.output) < 1e-14);
    CHECK(distance(left.lse, right.lse) < 1e-14);
    for (auto const& same : {merged(a, nothing()), merged(nothing(), a)}) {
      CHECK(different_bits(same.output, a.output) == 0);
      CHECK(different_bits(same.lse, a.lse) == 0);
    }
  }
  auto const empty = merged(nothing(), nothing());
  CHECK(different_bits(empty.output, nothing().output) == 0);
  CHECK(different_bits(empty.lse, nothing().lse) == 0);
}

TEST_CASE("attention over two sets of keys, merged or carried in, is attention over all keys") {
  std::mt19937 random(12);
  for (std::int64_t cut : {1, 17, 64, 96}) {
    problem<double> whole({.batch = 2,
                           .queries = 21,
                           .query_offset = 70,
                           .keys = 97,
                           .heads = 4,
                           .key_heads = 2,
                           .dim = 8});
    whole.fill(random);
    at::reference_forward(whole.chunk(0, 21, 97), whole.forward_views(0, 21, 97));

    auto const slice =
      [&](problem<double>& p, std::int64_t first, std::int64_t count, at::carry from) {
        auto parameters = p.chunk(0, 21, count);
        parameters.key_offset = first;
        parameters.from = from;
        auto views = p.forward_views(0, 21, count);
        views.key = p.key.view(first, count);
        views.value = p.value.view(first, count);
        at::forward(parameters, views);
      };
    problem<double> one(whole);
    problem<double> two(whole);
    slice(one, 0, cut, at::carry::none);
    slice(two, cut, 97 - cut, at::carry::none);
    at::merge(one.output.view(), one.statistics(0, 21), two.output.view(), two.statistics(0, 21));
    CHECK(distance(one.output.elements(), whole.output.elements()) < 1e-14);
    CHECK(distance(one.lse, whole.lse) < 1e-14);

    problem<double> carried(whole);
    slice(carried, cut, 97 - cut, at::carry::none);
    slice(carried, 0, cut, at::carry::in);
    CHECK(distance(carried.output.elements(), whole.output.elements()) < 1e-14);
    CHECK(distance(carried.lse, whole.lse) < 1e-14);
  }
}

TEST_CASE("merge refuses shapes that do not agree") {
  std::vector<float> numbers(12);
  CHECK_THROWS_WITH_AS(at::merge(at::dense_tensor(numbers.data(), 1, 1, 2, 3),
                                 at::dense_rows(numbers.data(), 1, 2, 1),
                                 at::dense_tensor(numbers.data(), 1, 2, 2, 3),
                                 at::dense_rows(numbers.data(), 1, 2, 1)),
                       "attention: other output is [1, 2, 2, 3], but the parameters ask for "
                       "[batch, length, heads, dim] = [1, 1, 2, 3]",
                       std::invalid_argument);
}
