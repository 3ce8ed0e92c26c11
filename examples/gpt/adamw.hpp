// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The optimizer.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "matrix.hpp"
#include "parameter.hpp"

namespace gpt {

//! AdamW with a linear warm-up and a cosine that ends at a tenth of the peak rate.
//! @source Loshchilov and Hutter 2019, algorithm 2
struct adamw {
  double peak_rate = 4e-3;
  double mean_decay = 0.9;
  double square_decay = 0.98;
  double weight_decay = 0.05;
  std::int64_t warm_up = 10; //!< steps
  std::int64_t steps = 100;  //!< steps in all, for the cosine

  //! The learning rate of step 0, 1, ...
  [[nodiscard]] double rate(std::int64_t step) const {
    double const rise =
      std::min(1.0, double(step + 1) / double(std::max<std::int64_t>(warm_up, 1)));
    double const done = double(step) / double(std::max<std::int64_t>(steps, 1));
    double const fall = 0.55 + 0.45 * std::cos(3.141592653589793 * std::min(1.0, done));
    return peak_rate * rise * fall;
  }

  //! One step: the value moves, the gradient becomes zero.
  template <class Number>
  void update(parameter<Number>& p, std::int64_t step) const {
    auto const r = static_cast<Number>(rate(step));
    auto const b1 = static_cast<Number>(mean_decay);
    auto const b2 = static_cast<Number>(square_decay);
    auto const mean_share = static_cast<Number>(1 / (1 - std::pow(mean_decay, double(step + 1))));
    auto const square_share =
      static_cast<Number>(1 / (1 - std::pow(square_decay, double(step + 1))));
    auto const keep = static_cast<Number>(1 - rate(step) * (p.decays ? weight_decay : 0.0));
    auto const update_all = [=,
                             count = static_cast<std::int64_t>(p.value.size()),
                             value = p.value.data(),
                             gradient = p.gradient.data(),
                             mean = p.mean.data(),
                             square = p.square.data()](auto) {
      for (std::int64_t i = 0; i < count; ++i) {
        Number const g = gradient[i];
        Number const m = b1 * mean[i] + (1 - b1) * g;
        Number const s = b2 * square[i] + (1 - b2) * g * g;
        Number const move = m * mean_share / (std::sqrt(s * square_share) + Number(1e-8));
        mean[i] = m;
        square[i] = s;
        value[i] = keep * value[i] - r * move;
        gradient[i] = 0;
      }
    };
    vectors().run(update_all);
  }
};

} // namespace gpt
