// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The GPT of the example in a pipeline, held against one device bit by bit.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
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

//! Losses and gradients of two steps.
struct two_steps {
  std::vector<double> losses{};
  std::vector<float> gradients[2]{};
};
template <class Model>
[[nodiscard]] two_steps train(Model& model, gpt::batch const& pieces) {
  gpt::adamw const optimizer{};
  two_steps done;
  for (std::int64_t step = 0; step < 2; ++step) {
    done.losses.push_back(model.step(pieces));
    done.gradients[step] = gpt::gradients_of(model);
    model.update(optimizer, step);
  }
  return done;
}

inline void check_same_bits(two_steps const& got, two_steps const& expected) {
  CHECK(got.losses == expected.losses);
  for (int step = 0; step < 2; ++step)
    CHECK(gpt::differences(got.gradients[step], expected.gradients[step]) == 0);
}

} // namespace support
