// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/attention/score.hpp>

#include <doctest/doctest.h>

#include <cmath>

#include "problem.hpp"

namespace at = pipelining::attention;

namespace {

template <class Score>
void check_derivative(Score const& score) {
  double const step = 1e-5;
  for (double s = -8; s < 8; s += 0.37) {
    at::pair_position const pair{0, 1, 9, 4};
    double const slope = (score.value(s + step, pair) - score.value(s - step, pair)) / (2 * step);
    CHECK(score.derivative(s, score.value(s, pair), pair) == doctest::Approx(slope).epsilon(1e-7));
  }
}

} // namespace

TEST_CASE("derivatives of the scores agree with finite differences") {
  auto const slopes = at::alibi_slopes(4);
  check_derivative(at::plain{});
  check_derivative(at::soft_cap{2.5f});
  check_derivative(at::alibi{slopes.data()});
  check_derivative(attention_tests::bent{});
}

TEST_CASE("scores mean what their names say") {
  at::pair_position const pair{0, 1, 9, 4};
  CHECK(at::plain{}.value(1.5, pair) == 1.5);
  CHECK(at::soft_cap{2}.value(1.0, pair) == doctest::Approx(2 * std::tanh(0.5)));
  auto const slopes = at::alibi_slopes(8); // 1/2, 1/4, ... as in the paper
  CHECK(slopes.front() == 0.5f);
  CHECK(slopes.back() == 1.0f / 256);
  CHECK(at::alibi{slopes.data()}.value(1.0, pair) == 1 - 0.25 * 5);
  CHECK(at::alibi{slopes.data()}.value(1.0, {0, 1, 4, 9}) == 1 - 0.25 * 5);
  static_assert(at::score<at::plain> && at::score<at::soft_cap> && at::score<at::alibi>);
  static_assert(at::score<attention_tests::bent> && !at::score<at::causal>);
}
