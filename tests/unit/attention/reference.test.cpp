// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <tests/support/attention_reference.hpp>

#include "problem.hpp"

using namespace attention_tests;

namespace {

//! A scalar that depends on O and, through `lse_weight`, on nothing else: sum of O times fixed
//! numbers.
template <class Mask, class Score>
double loss(problem<double>& p, Mask const& mask, Score const& score) {
  at::reference_forward(p.chunk(0, p.size.queries, p.size.keys),
                        p.forward_views(0, p.size.queries, p.size.keys),
                        mask,
                        score);
  auto const output = p.output.elements();
  auto const weight = p.output_gradient.elements();
  double sum = 0;
  for (std::size_t n = 0; n < output.size(); ++n) {
    sum += output[n] * weight[n];
  }
  return sum;
}

template <class Mask, class Score>
void check_gradients(Mask const& mask, Score const& score, unsigned seed) {
  std::mt19937 random(seed);
  problem<double> p(
    {.batch = 2, .queries = 5, .query_offset = 4, .keys = 9, .heads = 4, .key_heads = 2, .dim = 3});
  p.fill(random);
  (void)loss(p, mask, score);
  at::reference_backward(p.chunk(0, 5, 9), p.backward_views(0, 5, 9), mask, score);
  struct pair {
    tensor<double>* input;
    tensor<double>* gradient;
  };
  for (auto const& [input, gradient] : {pair{&p.query, &p.query_gradient},
                                        pair{&p.key, &p.key_gradient},
                                        pair{&p.value, &p.value_gradient}}) {
    for (std::int64_t b = 0; b < input->batch; ++b) {
      for (std::int64_t i = 0; i < input->length; ++i) {
        for (std::int64_t h = 0; h < input->heads; ++h) {
          for (std::int64_t d = 0; d < input->dim; ++d) {
            double& x = input->view().row(b, i, h)[d];
            double const step = 1e-5;
            double const before = x;
            x = before + step;
            double const above = loss(p, mask, score);
            x = before - step;
            double const below = loss(p, mask, score);
            x = before;
            double const slope = (above - below) / (2 * step);
            double const claimed = gradient->view().row(b, i, h)[d];
            REQUIRE(std::abs(claimed - slope) < 1e-8 * (1 + std::abs(slope)));
          }
        }
      }
    }
  }
}

} // namespace

TEST_CASE("the reference's gradients agree with finite differences") {
  auto const slopes = at::alibi_slopes(4);
  check_gradients(at::causal{}, at::plain{}, 21);
  check_gradients(at::full{}, at::soft_cap{1.5f}, 22);
  check_gradients(at::sliding_window{3, 0}, at::alibi{slopes.data()}, 23);
  check_gradients(speckled{}, bent{}, 24);
}

TEST_CASE("the reference gives known numbers") {
  // Two keys with logits 0 and ln 3 have weights 1/4 and 3/4, and log-sum-exp ln 4.
  problem<double> p({.queries = 2, .query_offset = 0, .keys = 2, .dim = 1});
  p.scale = 1;
  p.query.view().row(0, 0, 0)[0] = 1;
  p.query.view().row(0, 1, 0)[0] = 1;
  p.key.view().row(0, 1, 0)[0] = std::log(3.0);
  p.value.view().row(0, 0, 0)[0] = 8;
  p.value.view().row(0, 1, 0)[0] = 16;
  at::reference_forward(p.chunk(0, 2, 2), p.forward_views(0, 2, 2));
  CHECK(p.output.view().row(0, 0, 0)[0] == 8); // the first query sees the first key only
  CHECK(p.lse[0] == 0);
  CHECK(p.output.view().row(0, 1, 0)[0] == doctest::Approx(14));
  CHECK(p.lse[1] == doctest::Approx(std::log(4.0)));
}

TEST_CASE("a query that sees nothing gives zero and minus infinity") {
  problem<double> p({.queries = 3, .query_offset = 0, .keys = 4, .dim = 2});
  std::mt19937 random(25);
  p.fill(random);
  auto parameters = p.chunk(0, 3, 4);
  parameters.key_offset = 2; // queries 0 and 1 come before every key
  at::reference_forward(parameters, p.forward_views(0, 3, 4));
  for (std::int64_t i = 0; i < 2; ++i) {
    CHECK(p.output.view().row(0, i, 0)[0] == 0);
    CHECK(p.lse[static_cast<std::size_t>(i)] == -std::numeric_limits<double>::infinity());
  }
  CHECK(p.output.view().row(0, 2, 0)[0] == p.value.view().row(0, 0, 0)[0]);
}
