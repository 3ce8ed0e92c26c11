// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/attention/sinks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "problem.hpp"

using namespace attention_tests;

namespace {

//! O of a softmax over the logits of the keys and one logit more, whose value is 0; and the sum of
//! O . dO, by loops that know nothing of the library's.
double naive(problem<double>& all, std::vector<double> const& sinks, std::vector<double>* output) {
  auto const& s = all.size;
  double loss = 0;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t i = 0; i < s.queries; ++i) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        auto const of = h / (s.heads / s.key_heads);
        auto const seen = std::min(s.keys, s.query_offset + i + 1); // causal
        auto below = std::exp(sinks[static_cast<std::size_t>(h)]);
        std::vector<double> sum(static_cast<std::size_t>(s.value_dim), 0.0);
        for (std::int64_t j = 0; j < seen; ++j) {
          double product = 0;
          for (std::int64_t d = 0; d < s.dim; ++d) {
            product += all.query.view().row(b, i, h)[d] * all.key.view().row(b, j, of)[d];
          }
          auto const weight = std::exp(product / std::sqrt(static_cast<double>(s.dim)));
          below += weight;
          for (std::int64_t d = 0; d < s.value_dim; ++d) {
            sum[static_cast<std::size_t>(d)] += weight * all.value.view().row(b, j, of)[d];
          }
        }
        for (std::int64_t d = 0; d < s.value_dim; ++d) {
          auto const o = sum[static_cast<std::size_t>(d)] / below;
          loss += o * all.output_gradient.view().row(b, i, h)[d];
          if (output != nullptr) {
            output->push_back(o);
          }
        }
      }
    }
  }
  return loss;
}

//! Slope of the naive loss along one number.
double slope(problem<double>& all, std::vector<double> const& sinks, double& along) {
  constexpr double step = 1e-5;
  auto const before = along;
  along = before + step;
  auto const more = naive(all, sinks, nullptr);
  along = before - step;
  auto const less = naive(all, sinks, nullptr);
  along = before;
  return (more - less) / (2 * step);
}

} // namespace

TEST_CASE("a sink is one logit more, with a gradient, in any chunks") {
  std::mt19937 random(21);
  problem<double> all({.batch = 2,
                       .queries = 9,
                       .query_offset = 3,
                       .keys = 12,
                       .heads = 4,
                       .key_heads = 2,
                       .dim = 4,
                       .value_dim = 5});
  all.fill(random);
  std::vector<double> sinks{0.5, -2, 3, -std::numeric_limits<double>::infinity()};
  std::vector<double> gradient(4, 0.0);
  std::vector<double> expected;
  naive(all, sinks, &expected);
  for (auto const& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 4}, {4, 5}}) {
    auto p = all.chunk(first, count, 3 + first + count);
    p.from = at::carry::in;
    auto const t = all.forward_views(first, count, p.key_length);
    at::start_at_sinks(t.output, t.log_sum_exp, sinks.data());
    at::forward(p, t);
  }
  CHECK(distance(all.output.elements(), expected) < 1e-14);
  for (auto const& [first, count] : {std::pair<std::int64_t, std::int64_t>{4, 5}, {0, 4}}) {
    auto const p = all.chunk(first, count, 3 + first + count);
    auto const t = all.backward_views(first, count, p.key_length);
    at::backward(p, t);
    at::add_sink_gradient(p, t, sinks.data(), gradient.data());
  }
  for (std::size_t h = 0; h < 3; ++h) {
    CHECK(gradient[h] == doctest::Approx(slope(all, sinks, sinks[h])).epsilon(1e-7));
    CHECK(std::abs(gradient[h]) > 1e-3);
  }
  CHECK(gradient[3] == 0);
  // The other gradients know of the sink through the log-sum-exp.
  for (std::int64_t d = 0; d < 4; ++d) {
    CHECK(all.query_gradient.view().row(1, 5, 2)[d] ==
          doctest::Approx(slope(all, sinks, all.query.view().row(1, 5, 2)[d])).epsilon(1e-7));
    CHECK(all.key_gradient.view().row(0, 3, 1)[d] ==
          doctest::Approx(slope(all, sinks, all.key.view().row(0, 3, 1)[d])).epsilon(1e-7));
    CHECK(all.value_gradient.view().row(1, 0, 0)[d] ==
          doctest::Approx(slope(all, sinks, all.value.view().row(1, 0, 0)[d])).epsilon(1e-7));
  }
}

TEST_CASE("a query that sees no key has its sink alone") {
  std::mt19937 random(22);
  problem<float> all({.queries = 2, .keys = 0, .dim = 4});
  all.fill(random);
  auto p = all.chunk(0, 2, 0);
  p.from = at::carry::in;
  float const sink = 1.5;
  auto const t = all.forward_views(0, 2, 0);
  at::start_at_sinks(t.output, t.log_sum_exp, &sink);
  at::forward(p, t);
  CHECK(all.lse == std::vector<float>{1.5, 1.5});
  CHECK(all.output.elements() == std::vector<float>(8, 0));
  float gradient = 0;
  at::add_sink_gradient(p, all.backward_views(0, 2, 0), &sink, &gradient);
  CHECK(gradient == 0);
}

TEST_CASE("sinks refuse shapes that do not agree") {
  problem<float> all({.queries = 2, .keys = 1, .heads = 3, .dim = 4});
  float const sinks[3] = {};
  CHECK_THROWS_WITH_AS(at::start_at_sinks(all.output.view(), all.statistics(0, 1), sinks),
                       "attention: log-sum-exp is [1, 3, 1], but the parameters ask for "
                       "[batch, heads, query length] = [1, 3, 2]",
                       std::invalid_argument);
}
