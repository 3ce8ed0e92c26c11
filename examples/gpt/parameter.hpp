// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A trained tensor with its gradient, and the random numbers that it starts with.

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace gpt {

//! A trained tensor, its gradient of this step, and the optimizer's two averages.
template <class Number>
struct parameter {
  std::vector<Number> value;
  std::vector<Number> gradient;
  std::vector<Number> mean;   //!< AdamW's average gradient
  std::vector<Number> square; //!< AdamW's average squared gradient
  bool decays = false;        //!< matrices decay, gains and embeddings do not
  Number* value_elsewhere = nullptr;    //!< where the value lies, if it is not here
  Number* gradient_elsewhere = nullptr; //!< likewise

  parameter(std::int64_t count, Number start, bool with_decay)
      : value(static_cast<std::size_t>(count), start), gradient(value.size(), Number{0}),
        mean(value.size(), Number{0}), square(value.size(), Number{0}), decays(with_decay) {}

  [[nodiscard]] Number const* values() const {
    return value_elsewhere == nullptr ? value.data() : value_elsewhere;
  }
  [[nodiscard]] Number* gradients() {
    return gradient_elsewhere == nullptr ? gradient.data() : gradient_elsewhere;
  }
};

//! Which parameter this is in the whole model, so that its start does not depend on the stages.
struct parameter_name {
  std::uint64_t seed;
  std::int64_t layer; //!< -1: embedding; layers: head
  std::int64_t index; //!< among the parameters of the layer
};

//! Normal random numbers, the same for a name wherever the parameter lives.
template <class Number>
[[nodiscard]] parameter<Number>
random_parameter(parameter_name const& name, std::int64_t count, double deviation, bool decays) {
  std::seed_seq mixed{name.seed & 0xffffffffu,
                      name.seed >> 32,
                      static_cast<std::uint64_t>(name.layer + 1),
                      static_cast<std::uint64_t>(name.index)};
  std::mt19937_64 random(mixed);
  std::normal_distribution<double> normal(0.0, deviation);
  parameter<Number> p(count, Number{0}, decays);
  for (auto& x : p.value) {
    x = static_cast<Number>(normal(random));
  }
  return p;
}

} // namespace gpt
