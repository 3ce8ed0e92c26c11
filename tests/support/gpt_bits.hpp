// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT of the example in a pipeline, held against one device bit by bit.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <examples/gpt/single_device.hpp>
#include <random>
#include <vector>

namespace support {

//! Microbatches to learn, the same in every test.
inline gpt::batch some_batch(std::int64_t microbatches, std::int64_t sequence) {
  std::vector<std::uint8_t> text;
  for (int i = 0; i < 400; ++i)
    text.push_back(static_cast<std::uint8_t>('a' + i * i % 11));
  std::mt19937_64 random(5);
  return gpt::random_batch(text, microbatches, sequence, random);
}

//! Trains two steps with both, and compares losses and gradients on the way.
template <class Model, class Plain>
void check_same_bits(Model& model, Plain& plain, gpt::batch const& pieces) {
  gpt::adamw const optimizer{};
  for (std::int64_t step = 0; step < 2; ++step) {
    CHECK(model.step(pieces) == plain.step(pieces));
    auto const got = gpt::gradients_of(model);
    auto const expected = gpt::gradients_of(plain);
    REQUIRE(got.size() == expected.size());
    CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
    model.update(optimizer, step);
    plain.update(optimizer, step);
  }
}

} // namespace support
