// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The GPT whose devices take over attention of each other: the bits of one device that splits and
// merges alike, under every policy; and nearly the numbers of the model that is not cut.
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <examples/gpt/papers/attention_exchange.hpp>
#include <examples/gpt/single_device.hpp>
#include <random>
#include <tests/support/exchange_on_one_device.hpp>
#include <vector>

using namespace gpt;

namespace {

batch some_batch(model_size const& size, std::int64_t microbatches) {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 400; ++i) {
    text.push_back(static_cast<std::uint8_t>(i * i * 37 % 256));
  }
  std::mt19937_64 random(5);
  return random_batch(text, microbatches, size.sequence, random);
}

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <class Policy>
void check_bits(exchange_schedule const& schedule, pp::pipeline_size at, model_size const& size) {
  auto const lower = lower_by<Policy>;
  exchanged_pipeline model(size, schedule, pp::make_timetable(schedule, at), 9, lower);
  exchanged_pipeline alone(
    size,
    schedule,
    pp::make_timetable(support::exchange_on_one_device<exchange_schedule>{schedule}, at),
    9,
    lower);
  exchanged_pipeline on_one(
    size, schedule, on_one_device(pp::make_timetable(schedule, at)), 9, lower);
  auto const pieces = some_batch(size, at.microbatches);
  adamw const optimizer{};
  for (std::int64_t step = 0; step < 3; ++step) {
    double const loss = alone.step(pieces);
    CHECK(model.step(pieces) == loss);
    CHECK(on_one.step(pieces) == loss);
    CHECK(same_bits(gradients_of(on_one), gradients_of(alone)));
    CHECK(same_bits(gradients_of(model), gradients_of(alone)));
    model.update(optimizer, step);
    alone.update(optimizer, step);
    on_one.update(optimizer, step);
  }
}

} // namespace

TEST_CASE("a GPT whose devices exchange attention has the bits of one that splits it alike") {
  check_bits<pp::communicators::one>(
    {{8, 1}, {}}, {4, 3}, {.layers = 4, .width = 8, .heads = 4, .key_heads = 2, .sequence = 19});
  check_bits<pp::communicators::per_pair>(
    {{6, 2}, {}}, {3, 3}, {.layers = 6, .width = 8, .heads = 4, .key_heads = 2, .sequence = 13});
  check_bits<pp::communicators::per_edge>(
    {{4, 1}, {}}, {2, 3}, {.layers = 2, .width = 8, .heads = 2, .key_heads = 2, .sequence = 16});
}

TEST_CASE("the exchange leaves loss and gradients as they are, but for rounding") {
  model_size const size{.layers = 4, .width = 8, .heads = 4, .key_heads = 2, .sequence = 19};
  exchange_schedule const schedule{{8, 1}, {}};
  exchanged_pipeline model(size, schedule, pp::make_timetable(schedule, {4, 3}), 9);
  single_device whole(size, 1, {3, cut_sequence(size.sequence, 1)}, 9);
  auto const pieces = some_batch(size, 3);
  CHECK(model.step(pieces) == doctest::Approx(whole.step(pieces)).epsilon(1e-6));
  auto const got = gradients_of(model);
  auto const expected = gradients_of(whole);
  REQUIRE(got.size() == expected.size());
  CHECK_FALSE(same_bits(got, expected)); // sums are split
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference = std::max(difference, std::abs(static_cast<double>(got[i] - expected[i])));
  }
  CHECK(largest > 1e-3);
  CHECK(difference < 1e-5 * largest);
}
