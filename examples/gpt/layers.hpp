// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Products of matrices and the plain layers: linear, layer norm, GELU. Each works on a few
//! tokens and keeps nothing.
//!
//! Every number is a sum that is added up one term after the other, in an order that only the place
//! of the number decides. So tokens may come in one chunk or in many: the bits are the same. What
//! is not inlined is compiled once, by layers.cpp.

#include <pipe/attention/host/vectors.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "parameter.hpp"

namespace gpt {

//! to [tokens, columns] += from [tokens, inner] * matrix [inner, columns]. Rows of `to` may be
//! wider.
template <class Number>
void add_product(Number* to,
                 std::int64_t to_stride,
                 Number const* from,
                 Number const* matrix,
                 std::int64_t tokens,
                 std::int64_t inner,
                 std::int64_t columns) {
  pipelining::attention::add_product(
    vectors(), to, to_stride, from, inner, 1, matrix, columns, tokens, inner, columns);
}

//! to [inner, columns] += transposed(from [tokens, inner]) * other [tokens, columns], last token
//! first.
template <class Number>
void add_outer_products(Number* to,
                        Number const* from,
                        Number const* other,
                        std::int64_t other_stride,
                        std::int64_t tokens,
                        std::int64_t inner,
                        std::int64_t columns) {
  auto const last = tokens - 1;
  pipelining::attention::add_product(vectors(),
                                     to,
                                     columns,
                                     from + last * inner,
                                     1,
                                     -inner,
                                     other + last * other_stride,
                                     -other_stride,
                                     inner,
                                     tokens,
                                     columns);
}

//! to [columns, rows] = transposed(from [rows, columns]), by blocks of a few cache lines.
template <class Number>
void transpose(Number const* from, Number* to, std::int64_t rows, std::int64_t columns) {
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

//! y = x W, with W [inputs, outputs].
template <class Number>
class linear {
public:
  linear(parameter_name const& name, std::int64_t inputs, std::int64_t outputs, double deviation)
      : weight(random_parameter<Number>(name, inputs * outputs, deviation, true)), inputs_(inputs),
        outputs_(outputs) {
    refresh();
  }

  //! y [tokens, outputs] += x [tokens, inputs] W
  [[gnu::noinline]] void
  add_forward(Number const* x, Number* y, std::int64_t y_stride, std::int64_t tokens) const {
    add_product(y, y_stride, x, weight.values(), tokens, inputs_, outputs_);
  }

  //! dx [tokens, inputs] += dy [tokens, outputs] transposed(W)
  [[gnu::noinline]] void
  add_backward_input(Number const* dy, Number* dx, std::int64_t tokens) const {
    add_product(dx,
                inputs_,
                dy,
                across_elsewhere_ == nullptr ? across_.data() : across_elsewhere_,
                tokens,
                outputs_,
                inputs_);
  }

  //! dW += transposed(x) dy, last token first
  [[gnu::noinline]] void
  add_backward_weight(Number const* x, Number const* dy, std::int64_t tokens) {
    add_outer_products(weight.gradients(), x, dy, outputs_, tokens, inputs_, outputs_);
  }

  //! To be called when the weight has changed: backward reads it transposed.
  [[gnu::noinline]] void refresh() {
    if (across_elsewhere_ == nullptr)
      across_.resize(static_cast<std::size_t>(numbers()));
    Number* const to = across_elsewhere_ == nullptr ? across_.data() : across_elsewhere_;
    transpose(weight.values(), to, inputs_, outputs_);
  }

  //! Of the weight, and of its transpose.
  [[nodiscard]] std::int64_t numbers() const { return inputs_ * outputs_; }
  //! The transpose lies where the caller says from now on; it has to be refreshed.
  void put_transpose(Number* elsewhere) {
    across_elsewhere_ = elsewhere;
    across_ = {};
  }

  parameter<Number> weight;

private:
  std::int64_t inputs_;
  std::int64_t outputs_;
  std::vector<Number> across_; // [outputs, inputs]
  Number* across_elsewhere_ = nullptr;
};

namespace detail {
//! value(0) + value(1) + ... in sixteen chains, for sums that wait for no other one.
template <class Value>
[[gnu::always_inline]] inline auto sum(std::int64_t count, Value const& value) {
  constexpr std::int64_t lanes = 16;
  decltype(value(0)) part[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      part[lane] += value(i + lane);
  for (; i < count; ++i)
    part[i % lanes] += value(i);
  for (std::int64_t half = lanes / 2; half > 0; half /= 2)
    for (std::int64_t lane = 0; lane < half; ++lane)
      part[lane] += part[lane + half];
  return part[0];
}
} // namespace detail

//! y = gain * (x - mean(x)) / sqrt(variance(x) + epsilon), token by token.
template <class Number>
class layer_norm {
public:
  explicit layer_norm(std::int64_t width) : gain(width, Number{1}, false), width_(width) {}

  //! Numbers of what it keeps for backward: the normalised x, and behind it one number per token.
  [[nodiscard]] static std::int64_t kept_numbers(std::int64_t width, std::int64_t tokens) {
    return tokens * (width + 1);
  }
  [[nodiscard]] std::int64_t width() const { return width_; }

  //! Writes what it keeps.
  [[gnu::noinline]] void normalise(Number const* x, Number* normal, std::int64_t tokens) const {
    vectors().run([=, width = width_, inverse = normal + tokens * width_](auto) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        Number const* const from = x + t * width;
        auto const mean =
          detail::sum(width, [=](std::int64_t d) { return from[d]; }) / Number(width);
        auto const square = [=](std::int64_t d) { return (from[d] - mean) * (from[d] - mean); };
        inverse[t] = 1 / std::sqrt(detail::sum(width, square) / Number(width) + Number(1e-5));
        for (std::int64_t d = 0; d < width; ++d)
          normal[t * width + d] = (from[d] - mean) * inverse[t];
      }
    });
  }

  //! y = gain * the normalised x
  [[gnu::noinline]] void apply_gain(Number const* normal, Number* y, std::int64_t tokens) const {
    vectors().run([=, width = width_, g = gain.values()](auto) {
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t d = 0; d < width; ++d)
          y[t * width + d] = g[d] * normal[t * width + d];
    });
  }

  //! dx += what dy gives; the gain's gradient grows too, last token first.
  [[gnu::noinline]] void
  add_backward(Number const* dy, Number const* normal, Number* dx, std::int64_t tokens) {
    auto const* const inverse = normal + tokens * width_;
    vectors().run([=, width = width_, g = gain.values(), of_gain = gain.gradients()](auto) {
      for (std::int64_t t = tokens - 1; t >= 0; --t) {
        Number const* const dy_t = dy + t * width;
        Number const* const n = normal + t * width;
        for (std::int64_t d = 0; d < width; ++d)
          of_gain[d] += dy_t[d] * n[d];
        auto const of_normal = [=](std::int64_t d) { return g[d] * dy_t[d]; };
        auto const on_normal = [=](std::int64_t d) { return g[d] * dy_t[d] * n[d]; };
        auto const mean = detail::sum(width, of_normal) / Number(width);
        auto const along = detail::sum(width, on_normal) / Number(width);
        for (std::int64_t d = 0; d < width; ++d)
          dx[t * width + d] += inverse[t] * (g[d] * dy_t[d] - mean - n[d] * along);
      }
    });
  }

  parameter<Number> gain;

private:
  std::int64_t width_;
};

//! 1 / (1 + exp(-x)). For float a short polynomial to about seven digits that compilers turn into
//! vector code: comparisons are made on bits, because those of floats are branches where they trap.
template <class Number>
[[nodiscard, gnu::always_inline]] inline Number sigmoid(Number x) {
  if constexpr (std::is_same_v<Number, float>) {
    constexpr auto least = std::bit_cast<std::uint32_t>(-87.0f);
    constexpr float rounder = 12582912; // 1.5 * 2^23 leaves the nearest integer in the low bits
    auto const negative = std::bit_cast<std::uint32_t>(x) | 0x80000000u;          // -|x|
    auto const power = std::bit_cast<float>(negative < least ? negative : least); // at least -87
    float const shifted = power * 1.44269504f + rounder;
    float const n = shifted - rounder;
    float const r = (power - n * 0.693145752f) - n * 1.42860677e-6f; // ln 2 in two parts
    float const high = 0.0416666667f + r * (0.00833333333f + r * 0.00138888889f);
    float const tail = 1 + r * (1 + r * (0.5f + r * (0.166666667f + r * high)));
    auto const two_to_n = (std::bit_cast<std::uint32_t>(shifted) << 23) + (127u << 23);
    float const e = tail * std::bit_cast<float>(two_to_n); // exp(-|x|)
    return (std::bit_cast<std::int32_t>(x) < 0 ? e : 1.0f) / (1 + e);
  } else {
    return 1 / (1 + std::exp(-x));
  }
}

inline constexpr double gelu_inner = 1.5957691216057308; // 2 sqrt(2 / pi)
inline constexpr double gelu_cubic = 0.044715;

//! y = GELU(x), in the form with tanh, which is x * sigmoid(2 u).
//! @source Hendrycks and Gimpel 2016, section 2
template <class Number>
[[gnu::noinline]] void gelu(Number const* x, Number* y, std::int64_t count) {
  vectors().run([=](auto) {
    for (std::int64_t i = 0; i < count; ++i) {
      Number const u = Number(gelu_inner) * (x[i] + Number(gelu_cubic) * x[i] * x[i] * x[i]);
      y[i] = x[i] * sigmoid(u);
    }
  });
}

//! x becomes dx = GELU'(x) dy.
template <class Number>
[[gnu::noinline]] void gelu_backward(Number* x, Number const* dy, std::int64_t count) {
  vectors().run([=](auto) {
    for (std::int64_t i = 0; i < count; ++i) {
      Number const square = x[i] * x[i];
      Number const s = sigmoid(Number(gelu_inner) * (x[i] + Number(gelu_cubic) * square * x[i]));
      Number const slope = Number(gelu_inner) * (1 + 3 * Number(gelu_cubic) * square);
      x[i] = dy[i] * (s + x[i] * s * (1 - s) * slope);
    }
  });
}

} // namespace gpt
