// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The GPT with its vocabulary in shards: the bits of one device that does the same splits, under
// every schedule; and nearly the numbers of the model that is not cut.
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <examples/gpt/papers/vocabulary.hpp>
#include <examples/gpt/single_device.hpp>
#include <random>
#include <tests/support/gpt_vocabulary.hpp>
#include <vector>

using namespace gpt;

namespace {

model_size const eight_layers{.layers = 8, .width = 8, .heads = 4, .key_heads = 2, .sequence = 12};

batch batch_of(std::int64_t microbatches) {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 400; ++i) {
    text.push_back(static_cast<std::uint8_t>(i * i * 37 % 256)); // bytes of all shards
  }
  std::mt19937_64 random(5);
  return random_batch(text, microbatches, eight_layers.sequence, random);
}

// Of a timetable, so that it compiles once for all schedules.
void check_vocabulary(int barriers, pp::dynamic_timetable const& table, int microbatches) {
  sharded_pipeline model(eight_layers, barriers, table, 9);
  sharded_pipeline on_one(eight_layers, barriers, on_one_device(table), 9);
  sharded_device alone(eight_layers, cut_around(eight_layers, table, barriers), 9);
  auto const pieces = batch_of(microbatches);
  adamw const optimizer{};
  for (std::int64_t step = 0; step < 2; ++step) {
    double const loss = alone.step(pieces);
    CHECK(model.step(pieces) == loss);
    CHECK(on_one.step(pieces) == loss);
    CHECK(differences(gradients_of(on_one), gradients_of(alone)) == 0);
    auto const got = gradients_of(model);
    auto const expected = gradients_of(alone);
    REQUIRE(got.size() == expected.size());
    CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
    model.update(optimizer, step);
    on_one.update(optimizer, step);
    alone.update(optimizer, step);
  }
}

template <int Barriers, class Schedule>
void check_schedule(Schedule const& schedule, int devices, int microbatches) {
  pp::with_vocabulary<Schedule, Barriers> const sharded{schedule};
  check_vocabulary(Barriers, pp::make_timetable(sharded, {devices, microbatches}), microbatches);
}

template <class Schedule>
void check_all(Schedule const& schedule, int devices, int microbatches) {
  check_schedule<pp::interlaced>(schedule, devices, microbatches);
  check_schedule<1>(schedule, devices, microbatches);
  check_schedule<2>(schedule, devices, microbatches);
}

} // namespace

TEST_CASE_TEMPLATE(
  "a GPT with its vocabulary in shards has the bits of one device that splits it alike",
  Schedule,
  pp::OneFOneB,
  pp::ZeroBubbleH1,
  pp::detail::SweptVHalf) {
  check_all(Schedule{}, 4, 8);
}

TEST_CASE("so has one on fewer devices, over chunks, and with several stages on a device" *
          doctest::test_suite("threads")) {
  check_all(pp::OneFOneB{}, 3, 5);
  check_all(pp::Seq1F1B<3>{}, 4, 4);
  check_all(pp::Interleaved<2>{}, 2, 4);
}

TEST_CASE("a vocabulary in shards leaves loss and gradients as they are, but for rounding") {
  for (int const barriers : {pp::interlaced, 1, 2}) {
    std::int64_t const microbatches = 4;
    step_cut const cut{microbatches, cut_sequence(eight_layers.sequence, 1)};
    sharded_device alone(eight_layers, {4, 2, barriers, cut}, 9);
    single_device whole(eight_layers, 2, cut, 9);
    auto const pieces = batch_of(microbatches);
    CHECK(alone.step(pieces) == doctest::Approx(whole.step(pieces)).epsilon(1e-6));
    // Layers come in the same order; the embedding's rows do, shard after shard.
    auto const got = gradients_of(alone);
    auto const expected = gradients_of(whole);
    REQUIRE(got.size() == expected.size());
    double largest = 0;
    double difference = 0;
    std::size_t const same =
      expected.size() - static_cast<std::size_t>(vocabulary * eight_layers.width);
    for (std::size_t i = 0; i < same; ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
      difference = std::max(difference, std::abs(static_cast<double>(got[i] - expected[i])));
    }
    CHECK(largest > 1e-3);
    CHECK(difference < 1e-5 * largest);
  }
}
