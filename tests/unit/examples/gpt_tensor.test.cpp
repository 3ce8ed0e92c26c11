// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The GPT with stages in shards, braided: the bits of one device that has all shards, and no sum
// waited for but those of passes that run alone.
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <examples/gpt/papers/tensor_parallel.hpp>
#include <examples/gpt/papers/tensor_stage.hpp>
#include <examples/gpt/single_device.hpp>
#include <random>
#include <tests/support/gpt_tensor.hpp>
#include <vector>

using namespace gpt;

namespace {

model_size const six_wide_layers{
  .layers = 6, .width = 16, .heads = 4, .key_heads = 2, .sequence = 8};

batch some_batch(std::int64_t microbatches, std::uint64_t seed) {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 400; ++i) {
    text.push_back(static_cast<std::uint8_t>(i * i * 37 % 256));
  }
  std::mt19937_64 random(seed);
  return random_batch(text, microbatches, six_wide_layers.sequence, random);
}

template <class Model>
std::vector<float> gradients(Model& model) {
  std::vector<float> all;
  model.for_each_parameter(
    [&](parameter<float>& p) { all.insert(all.end(), p.gradient.begin(), p.gradient.end()); });
  return all;
}

// Of a timetable, so that it compiles once for all schedules.
void check_bits(pp::dynamic_timetable const& table, int microbatches, std::int64_t shards) {
  tensor_pipeline model(six_wide_layers, table, shards, 9);
  tensor_pipeline on_one(six_wide_layers, on_one_device(table, false), shards, 9);
  tensor_device alone(six_wide_layers, table, shards, 9);
  adamw const optimizer{};
  for (std::int64_t step = 0; step < 2; ++step) {
    auto const pieces = some_batch(microbatches, static_cast<std::uint64_t>(step));
    double const loss = alone.step(pieces);
    CHECK(model.step(pieces) == loss);
    CHECK(on_one.step(pieces) == loss);
    CHECK(differences(gradients(on_one), gradients(alone)) == 0);
    auto const got = gradients(model);
    auto const expected = gradients(alone);
    REQUIRE(got.size() == expected.size());
    CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
    model.update(optimizer, step);
    alone.update(optimizer, step);
    on_one.update(optimizer, step);
  }
}

} // namespace

TEST_CASE("stages in shards have the bits of one device that splits them alike") {
  check_bits(pp::make_timetable(pp::STP<>{}, {3, 8}), 8, 2);
  check_bits(pp::make_timetable(pp::STP<>{}, {2, 7}), 7, 1);
  check_bits(pp::make_timetable(pp::STP<pp::pairs::in_turn>{}, {2, 5}), 5, 2);
  check_bits(pp::make_timetable(pp::OneFOneB{}, {3, 4}), 4, 2);
}

TEST_CASE("shards learn nearly what a model learns that is not cut") {
  auto const table = pp::make_timetable(pp::STP<>{}, {2, 5});
  single_device whole(six_wide_layers, 1, {5, cut_sequence(six_wide_layers.sequence, 1)}, 9);
  tensor_pipeline one(six_wide_layers, table, 1, 9);
  tensor_pipeline two(six_wide_layers, table, 2, 9);
  adamw const optimizer{};
  for (std::int64_t step = 0; step < 3; ++step) {
    auto const pieces = some_batch(5, 3);
    double const loss = whole.step(pieces);
    CHECK(one.step(pieces) == doctest::Approx(loss).epsilon(1e-5));
    CHECK(two.step(pieces) == doctest::Approx(loss).epsilon(1e-5));
    auto const got = gradients(one); // parameters come in the same order
    auto const expected = gradients_of(whole);
    REQUIRE(got.size() == expected.size());
    float most = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      most = std::max(most, std::abs(got[i] - expected[i]));
    }
    CHECK(most < 2e-5F);
    whole.update(optimizer, step);
    one.update(optimizer, step);
    two.update(optimizer, step);
  }
}

TEST_CASE("STP waits for the sums of 2P + (d + 1) mod 2 passes on device d, whatever M") {
  for (int const microbatches : {8, 11}) {
    auto const table = pp::make_timetable(pp::STP<>{}, {3, microbatches});
    tensor_pipeline model(six_wide_layers, table, 2, 9);
    auto const pieces = some_batch(microbatches, 1);
    (void)model.step(pieces);
    auto const counts = model.counts();
    for (int device = 0; device < 3; ++device) {
      auto const& found = counts[static_cast<std::size_t>(device)];
      CHECK(found.exposed_passes == 2 * 3 + (device + 1) % 2);
      CHECK(found.made == 2 * 2 * 2 * microbatches); // stages, halves of a layer, F and I or B
    }
  }
}
