// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <examples/gpt/single_device.hpp>
#include <examples/gpt/weight_travel.hpp>
#include <random>
#include <vector>

using namespace gpt;

TEST_CASE("weights that travel leave the bits of one device, and send what was planned") {
  model_size const size{.layers = 5, .width = 8, .heads = 4, .key_heads = 2, .sequence = 13};
  for (int devices = 1; devices <= 6; ++devices) { // with six, a group without layers
    for (int rounds = 1; rounds <= 3; ++rounds) {
      CAPTURE(devices);
      CAPTURE(rounds);
      int const microbatches = devices * rounds;
      std::vector<std::uint8_t> text;
      for (int i = 0; i < 400; ++i) {
        text.push_back(static_cast<std::uint8_t>('a' + i * i % 11));
      }
      std::mt19937_64 random(5);
      auto const pieces = random_batch(text, microbatches, size.sequence, random);
      travelling_model model(size, devices, microbatches, 9);
      single_device<float> plain(
        size, 1, step_cut(microbatches, cut_sequence(size.sequence, 1)), 9);
      adamw const optimizer{};
      for (std::int64_t step = 0; step < 2; ++step) {
        CHECK(model.step(pieces) == plain.step(pieces));
        auto const got = gradients_of(model.stages());
        auto const expected = gradients_of(plain.stages());
        REQUIRE(got.size() == expected.size());
        CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
        model.update(optimizer, step);
        plain.update(optimizer, step);
      }
      CHECK(pp::verify(model.trace()));
      auto const numbers = static_cast<std::int64_t>(gradients_of(plain.stages()).size());
      for (int device = 0; device < devices; ++device) {
        travelled_bytes const one = model.bytes()[static_cast<std::size_t>(device)];
        CHECK(one.measured_sent == one.planned_sent);
        // Three times the model for each microbatch but the last, which has nobody to send to.
        int const senders = devices == 1 ? 0 : rounds - (device == devices - 1 ? 1 : 0);
        CHECK(one.planned_sent == 3 * senders * numbers * 4);
        CHECK(one.measured_activations > 0);
        CHECK(one.measured_activations <= one.planned_activations);
      }
    }
  }
}
