// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A trained tensor with its gradient, the random numbers that it starts with, and its
//! optimizer.

#include <pipe/attention/host/vectors.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "model.hpp"

namespace gpt {

//! The version of the loops that this process uses.
[[nodiscard]] inline pipelining::attention::vector_version vectors() {
  return pipelining::attention::vector_version::of_process();
}

//! to [columns, rows] = transposed(from [rows, columns]), by blocks of a few cache lines.
template <class Number>
[[gnu::noinline]] void
transpose(Number const* from, Number* to, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t some_rows = 16;
  constexpr std::int64_t some_columns = 8;
  for (std::int64_t n = 0; n < columns; n += some_columns) {
    for (std::int64_t r = 0; r < rows; r += some_rows) {
      auto const last_row = std::min(rows, r + some_rows);
      for (auto column = n; column < std::min(columns, n + some_columns); ++column)
        for (auto row = r; row < last_row; ++row)
          to[column * rows + row] = from[row * columns + column];
    }
  }
}

//! A trained tensor, its gradient of this step, and the optimizer's two averages. Of a matrix it
//! has the transpose, too, which backward passes read.
template <class Number>
struct parameter {
  std::vector<Number> value;
  std::vector<Number> gradient;
  std::vector<Number> mean;   //!< AdamW's average gradient
  std::vector<Number> square; //!< AdamW's average squared gradient
  std::vector<Number> across; //!< the transpose, of what decays
  bool decays = false;        //!< matrices decay, gains and embeddings do not
  std::int64_t numbers;       //!< of the value, wherever it lies
  std::int64_t rows = 1;
  // Where these lie, if not here.
  Number* value_elsewhere = nullptr;
  Number* gradient_elsewhere = nullptr;
  Number* across_elsewhere = nullptr;

  parameter(std::int64_t count, Number start, bool with_decay)
      : value(static_cast<std::size_t>(count), start), gradient(value.size(), Number{0}),
        mean(value.size(), Number{0}), square(value.size(), Number{0}), decays(with_decay),
        numbers(count) {}

  [[nodiscard]] Number const* values() const {
    return value_elsewhere == nullptr ? value.data() : value_elsewhere;
  }
  [[nodiscard]] Number* gradients() {
    return gradient_elsewhere == nullptr ? gradient.data() : gradient_elsewhere;
  }
  [[nodiscard]] Number const* transposed() const {
    return across_elsewhere == nullptr ? across.data() : across_elsewhere;
  }
  //! To be called when the values of a matrix have changed.
  void refresh() {
    if (!decays)
      return;
    if (across_elsewhere == nullptr)
      across.resize(static_cast<std::size_t>(numbers));
    transpose(values(),
              across_elsewhere == nullptr ? across.data() : across_elsewhere,
              rows,
              numbers / rows);
  }
  //! What is left has a size alone.
  void leave_numbers() {
    for (auto* const each : {&value, &gradient, &mean, &square, &across})
      *each = {};
  }
};

//! A hash of some bytes, or of the bits of some numbers, FNV-1a.
//! @param hash that of what comes before them
template <class Numbers>
[[nodiscard]] std::uint64_t hash_of(Numbers const& numbers,
                                    std::uint64_t hash = 14695981039346656037u) {
  for (auto const x : numbers) {
    using bits = std::conditional_t<sizeof x == 1, std::uint8_t, std::uint32_t>;
    hash = (hash ^ std::bit_cast<bits>(x)) * 1099511628211u;
  }
  return hash;
}

//! A tensor of the model, or a box of it, as it starts: the same numbers wherever they live.
template <class Number>
[[nodiscard]] parameter<Number> start_of(tensor_part const& part, std::uint64_t seed) {
  auto const& [layer, index, deviation, decays] = part.start;
  parameter<Number> started(part.count(), Number{1}, decays);
  started.rows = part.shape.front();
  if (deviation == 0)
    return started;
  std::seed_seq mixed{seed & 0xffffffffu,
                      seed >> 32,
                      static_cast<std::uint64_t>(layer + 1),
                      static_cast<std::uint64_t>(index)};
  std::mt19937_64 random(mixed);
  std::normal_distribution<double> normal(0.0, deviation);
  auto to = started.value.begin();
  auto const count = whole_part({}, part.whole).count();
  bool const is_whole = part.count() == count; // then no number is looked for in a box
  // All of the tensor is drawn: its numbers depend on their place.
  for (std::int64_t i = 0; i < count; ++i) {
    auto const x = static_cast<Number>(normal(random));
    bool inside = true;
    auto rest = i;
    for (auto axis = is_whole ? 0 : part.whole.size(); axis-- > 0; rest /= part.whole[axis]) {
      auto const at = rest % part.whole[axis] - part.first[axis];
      inside = inside && at >= 0 && at < part.shape[axis];
    }
    if (inside)
      *to++ = x;
  }
  started.refresh();
  return started;
}

// What all parameters of a stage or of a model have, one after the other: gradients, or values.

//! Appends it.
template <class Stage, class Number>
void append(std::vector<Number>& all, Stage& stage, std::vector<Number> parameter<Number>::*list) {
  stage.for_each_parameter(
    [&](auto& p) { all.insert(all.end(), (p.*list).begin(), (p.*list).end()); });
}
//! Copies it away. Returns where it ends.
template <class Stage, class Number>
Number* copy_out(Stage& stage, std::vector<Number> parameter<Number>::*list, Number* to) {
  stage.for_each_parameter(
    [&](auto& p) { to = std::copy((p.*list).begin(), (p.*list).end(), to); });
  return to;
}
//! Puts other numbers there. Returns where they end.
template <class Stage, class Number>
Number const*
copy_in(Stage& stage, std::vector<Number> parameter<Number>::*list, Number const* from) {
  stage.for_each_parameter([&](auto& p) {
    std::copy_n(from, (p.*list).size(), (p.*list).begin());
    from += (p.*list).size();
  });
  return from;
}

//! AdamW's factors in a step.
template <class Number>
struct step_factors {
  Number rate, b1, b2, mean_share, square_share, keep; //!< keep: of what decays
};

//! AdamW with a linear warm-up and a cosine that ends at a tenth of the peak rate.
//! @source Loshchilov and Hutter 2019, algorithm 2
struct adamw {
  double peak_rate = 4e-3;
  double mean_decay = 0.9;
  double square_decay = 0.98;
  double weight_decay = 0.05;
  std::int64_t warm_up = 10; //!< steps
  std::int64_t steps = 100;  //!< steps in all, for the cosine

  [[nodiscard]] double rate(std::int64_t step) const {
    double const rise =
      std::min(1.0, double(step + 1) / double(std::max<std::int64_t>(warm_up, 1)));
    double const done = double(step) / double(std::max<std::int64_t>(steps, 1));
    double const fall = 0.55 + 0.45 * std::cos(3.141592653589793 * std::min(1.0, done));
    return peak_rate * rise * fall;
  }

  template <class Number>
  [[nodiscard]] step_factors<Number> factors(std::int64_t step) const {
    double const steps_done = double(step + 1);
    return {static_cast<Number>(rate(step)),
            static_cast<Number>(mean_decay),
            static_cast<Number>(square_decay),
            static_cast<Number>(1 / (1 - std::pow(mean_decay, steps_done))),
            static_cast<Number>(1 / (1 - std::pow(square_decay, steps_done))),
            static_cast<Number>(1 - rate(step) * weight_decay)};
  }

  //! One step: the value moves, the gradient becomes zero.
  template <class Number>
  [[gnu::noinline]] void update(parameter<Number>& p, std::int64_t step) const {
    auto const by = factors<Number>(step);
    auto const keep = p.decays ? by.keep : Number{1};
    auto const update_all = [=,
                             count = static_cast<std::int64_t>(p.value.size()),
                             value = p.value.data(),
                             gradient = p.gradient.data(),
                             mean = p.mean.data(),
                             square = p.square.data()](auto) {
      for (std::int64_t i = 0; i < count; ++i) {
        Number const g = gradient[i];
        Number const m = by.b1 * mean[i] + (1 - by.b1) * g;
        Number const s = by.b2 * square[i] + (1 - by.b2) * g * g;
        Number const move = m * by.mean_share / (std::sqrt(s * by.square_share) + Number(1e-8));
        mean[i] = m;
        square[i] = s;
        value[i] = keep * value[i] - by.rate * move;
        gradient[i] = 0;
      }
    };
    vectors().run(update_all);
  }
};

} // namespace gpt
