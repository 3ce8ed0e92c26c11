// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <pipe/attention/forward.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

#include "problem.hpp"

using namespace attention_tests;

namespace {

sizes random_forward_sizes(std::mt19937& random) {
  auto const up_to = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(1, n)(random);
  };
  sizes s;
  s.batch = up_to(2);
  s.queries = up_to(90);
  s.query_offset = up_to(150) - 1;
  s.keys = s.query_offset + s.queries;
  s.key_heads = up_to(3);
  s.heads = s.key_heads * up_to(3);
  s.dim = up_to(40);
  s.value_dim = up_to(40);
  return s;
}

//! Float against double over random shapes; the tolerance is some tens of float roundings.
template <class Mask, class Score>
void check_forward(Mask const& mask, Score const& score, unsigned seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < 6; ++round) {
    problem<float> tested(random_forward_sizes(random));
    tested.fill(random);
    problem<double> reference(tested);
    auto const n = tested.size.queries;
    auto const k = tested.size.keys;
    at::forward(tested.chunk(0, n, k), tested.forward_views(0, n, k), mask, score);
    at::reference_forward(reference.chunk(0, n, k), reference.forward_views(0, n, k), mask, score);
    CHECK(distance(tested.output.elements(), reference.output.elements()) < 4e-6);
    CHECK(distance(tested.lse, reference.lse) < 4e-6);
  }
}

} // namespace

TEST_CASE("forward agrees with the double reference") {
  auto const slopes = at::alibi_slopes(9);
  std::vector<std::int32_t> first(240);
  for (std::int32_t i = 0; i < 240; ++i) {
    first[static_cast<std::size_t>(i)] = i < 31 ? 0 : i < 130 ? 31 : 130;
  }
  at::document const documents{first.data(), 0};
  check_forward(at::causal{}, at::plain{}, 31);
  check_forward(at::full{}, at::soft_cap{3}, 32);
  check_forward(at::sliding_window{40, 2}, at::alibi{slopes.data()}, 33);
  check_forward(at::both<at::causal, at::document>{{}, documents}, at::plain{}, 34);
  check_forward(speckled{}, bent{}, 35);
}

TEST_CASE("forward in double agrees with the reference to double rounding") {
  std::mt19937 random(36);
  problem<double> tested({.batch = 2,
                          .queries = 70,
                          .query_offset = 13,
                          .keys = 83,
                          .heads = 6,
                          .key_heads = 3,
                          .dim = 17});
  tested.fill(random);
  problem<double> reference(tested);
  at::forward(tested.chunk(0, 70, 83), tested.forward_views(0, 70, 83));
  at::reference_forward(reference.chunk(0, 70, 83), reference.forward_views(0, 70, 83));
  CHECK(distance(tested.output.elements(), reference.output.elements()) < 1e-14);
  CHECK(distance(tested.lse, reference.lse) < 1e-14);
}

TEST_CASE("n chunks give the bits of one chunk") {
  std::mt19937 random(37);
  auto const check = [&](auto const& mask, auto const& score) {
    for (int round = 0; round < 5; ++round) {
      auto size = random_forward_sizes(random);
      size.query_offset = 0;
      size.queries = size.keys = 190;
      problem<float> whole(size);
      whole.fill(random);
      problem<float> parts(whole);
      at::forward(whole.chunk(0, 190, 190), whole.forward_views(0, 190, 190), mask, score);
      std::int64_t begin = 0;
      at::workspace<float> space;
      for (auto const length : random_chunks(190, 100, random)) {
        auto const keys = begin + length; // keys of later chunks do not exist yet
        at::forward(parts.chunk(begin, length, keys),
                    parts.forward_views(begin, length, keys),
                    mask,
                    score,
                    space);
        begin += length;
      }
      CHECK(different_bits(parts.output.elements(), whole.output.elements()) == 0);
      CHECK(different_bits(parts.lse, whole.lse) == 0);
    }
  };
  check(at::causal{}, at::plain{});
  check(at::sliding_window{37, 0}, at::soft_cap{4});
  check(at::both<at::causal, speckled>{}, bent{});
}

TEST_CASE("weights are exponentials to about seven digits, and exactly 0 for no logit") {
  auto const none = -std::numeric_limits<float>::infinity();
  for (float x = -86; x <= 1; x += 0.0173f) {
    CHECK(at::detail::weight_of(x + 3, 3.0f) ==
          doctest::Approx(std::exp(static_cast<double>(x + 3 - 3.0f))).epsilon(3e-7));
  }
  CHECK(at::detail::weight_of(-1e30f, 0.0f) < 2e-38f);
  CHECK(at::detail::weight_of(none, 3.0f) == 0);
  CHECK(at::detail::weight_of(none, -3e38f) == 0);
  CHECK(at::detail::weight_of(-std::numeric_limits<double>::infinity(), 3.0) == 0);
  CHECK(std::isnan(at::detail::weight_of(std::numeric_limits<float>::quiet_NaN(), 0.0f)));
}

TEST_CASE("queries that see nothing give zero and minus infinity") {
  std::mt19937 random(38);
  problem<float> p({.queries = 80, .query_offset = 0, .keys = 90, .heads = 2, .dim = 5});
  p.fill(random);
  auto parameters = p.chunk(0, 80, 90);
  parameters.key_offset = 70;
  at::forward(parameters, p.forward_views(0, 80, 90));
  for (std::int64_t i = 0; i < 80; ++i) {
    CHECK((p.output.view().row(0, i, 1)[3] == 0) == (i < 70));
    CHECK((p.statistics(0, 80).at(0, 1, i) == -std::numeric_limits<float>::infinity()) == (i < 70));
  }
  problem<float> no_keys({.queries = 3, .query_offset = 0, .keys = 0, .heads = 2, .dim = 5});
  at::forward(no_keys.chunk(0, 3, 0), no_keys.forward_views(0, 3, 0), at::full{});
  CHECK(no_keys.lse[2] == -std::numeric_limits<float>::infinity());
}
