// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The arithmetic of the host: products of matrices, layer norm, GELU, embedding,
//! cross-entropy. Each works on a few tokens and keeps nothing.
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

#include "../memory.hpp"
#include "../parameter.hpp"

namespace gpt {

namespace detail {
//! value(0), value(1) and so on joined in sixteen chains, for results that wait for no other one.
//! @param first joins as nothing
template <class Number, class Value, class Join>
[[gnu::always_inline]] inline Number
join_in_lanes(std::int64_t count, Number first, Value const& value, Join const& join) {
  constexpr std::int64_t lanes = 16;
  Number part[lanes];
  for (Number& each : part)
    each = first;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      part[lane] = join(part[lane], value(i + lane));
  for (; i < count; ++i)
    part[i % lanes] = join(part[i % lanes], value(i));
  for (std::int64_t half = lanes / 2; half > 0; half /= 2)
    for (std::int64_t lane = 0; lane < half; ++lane)
      part[lane] = join(part[lane], part[lane + half]);
  return part[0];
}
//! value(0) + value(1) + ...
template <class Value>
[[gnu::always_inline]] inline auto sum(std::int64_t count, Value const& value) {
  return join_in_lanes(count, decltype(value(0))(0), value, [](auto a, auto b) { return a + b; });
}
} // namespace detail

//! 1 / (1 + exp(-x))
template <class Number>
[[nodiscard, gnu::always_inline]] inline Number sigmoid(Number x) {
  if constexpr (std::is_same_v<Number, float>) {
    auto const negative = std::bit_cast<std::uint32_t>(x) | 0x80000000u; // -|x|
    float const e = pipelining::attention::exponential(std::bit_cast<float>(negative));
    return (std::bit_cast<std::int32_t>(x) < 0 ? e : 1.0f) / (1 + e);
  } else {
    return 1 / (1 + std::exp(-x));
  }
}

inline constexpr double gelu_inner = 1.5957691216057308; // 2 sqrt(2 / pi)
inline constexpr double gelu_cubic = 0.044715;

namespace host {

//! Passes run on the thread that calls.
struct stream {};
using token_rows = gpt::token_rows<stream>;

template <class T>
void copy(T* to, T const* from, std::int64_t count, stream) {
  std::copy_n(from, count, to);
}
template <class T>
void convert(T* to, T const* from, std::int64_t count, stream) {
  std::copy_n(from, count, to);
}
template <class T>
void clear(T* numbers, std::int64_t count, stream) {
  std::fill_n(numbers, count, T{0});
}
template <class T>
void fill(T* numbers, std::int64_t count, T with, stream) {
  std::fill_n(numbers, count, with);
}
//! to = a + b
template <class T>
void add_up(T* to, T const* a, T const* b, std::int64_t count, stream) {
  for (std::int64_t i = 0; i < count; ++i)
    to[i] = a[i] + b[i];
}
template <class T>
void add(T* to, T const* from, std::int64_t count, stream) {
  for (std::int64_t i = 0; i < count; ++i)
    to[i] += from[i];
}

//! A matrix [inputs, outputs] at work on some tokens.
template <class Number>
struct matrix_pass {
  parameter<Number>& matrix;
  std::int64_t tokens, inputs, outputs;

  //! y [tokens, outputs] = x [tokens, inputs] times the matrix
  [[gnu::noinline]] void
  forward(Number* y, Number const* x, product_goes to = product_goes::instead) const {
    if (to == product_goes::instead)
      std::fill_n(y, tokens * outputs, Number{0});
    pipelining::attention::add_product<Number>(
      vectors(), {y, outputs}, {x, inputs, 1}, {matrix.values(), outputs}, tokens, inputs, outputs);
  }
  //! dx [tokens, inputs] = dy [tokens, outputs] times the transposed matrix
  [[gnu::noinline]] void
  backward_input(Number* dx, Number const* dy, product_goes to = product_goes::instead) const {
    if (to == product_goes::instead)
      std::fill_n(dx, tokens * inputs, Number{0});
    pipelining::attention::add_product<Number>(vectors(),
                                               {dx, inputs},
                                               {dy, outputs, 1},
                                               {matrix.transposed(), inputs},
                                               tokens,
                                               outputs,
                                               inputs);
  }
  //! The gradient of the matrix += transposed(x) dy, last token first.
  [[gnu::noinline]] void backward_weight(Number const* x, Number const* dy) const {
    auto const last = tokens - 1;
    pipelining::attention::add_product<Number>(vectors(),
                                               {matrix.gradients(), outputs},
                                               {x + last * inputs, 1, -inputs},
                                               {dy + last * outputs, -outputs},
                                               inputs,
                                               tokens,
                                               outputs);
  }
};

//! y = gain * normal: again what forward has made.
template <class Number>
[[gnu::noinline]] void
apply_gain(Number* y, Number const* normal, Number const* gain, token_rows rows) {
  vectors().run([=](auto) {
    for (std::int64_t t = 0; t < rows.tokens; ++t)
      for (std::int64_t d = 0; d < rows.width; ++d)
        y[t * rows.width + d] = gain[d] * normal[t * rows.width + d];
  });
}

//! y = gain * (x - mean(x)) / sqrt(variance(x) + epsilon), token by token.
template <class Number>
[[gnu::noinline]] void layer_norm_forward(
  Number* y, normalised<Number> kept, Number const* x, Number const* gain, token_rows rows) {
  vectors().run([=, width = rows.width](auto) {
    for (std::int64_t t = 0; t < rows.tokens; ++t) {
      Number const* const from = x + t * width;
      auto const mean =
        gpt::detail::sum(width, [=](std::int64_t d) { return from[d]; }) / Number(width);
      auto const square = [=](std::int64_t d) { return (from[d] - mean) * (from[d] - mean); };
      auto const inverse =
        1 / std::sqrt(gpt::detail::sum(width, square) / Number(width) + Number(1e-5));
      for (std::int64_t d = 0; d < width; ++d)
        kept.normal[t * width + d] = (from[d] - mean) * inverse;
      kept.inverse[t] = inverse;
    }
  });
  apply_gain(y, kept.normal, gain, rows);
}

//! dx += what dy gives; the gain's gradient grows too, last token first.
template <class Number>
[[gnu::noinline]] void layer_norm_backward(Number* dx,
                                           Number* of_gain,
                                           Number const* dy,
                                           normalised<Number> kept,
                                           Number const* gain,
                                           token_rows rows) {
  vectors().run([=, width = rows.width](auto) {
    for (std::int64_t t = rows.tokens - 1; t >= 0; --t) {
      Number const* const dy_t = dy + t * width;
      Number const* const n = kept.normal + t * width;
      for (std::int64_t d = 0; d < width; ++d)
        of_gain[d] += dy_t[d] * n[d];
      auto const of_normal = [=](std::int64_t d) { return gain[d] * dy_t[d]; };
      auto const on_normal = [=](std::int64_t d) { return gain[d] * dy_t[d] * n[d]; };
      auto const mean = gpt::detail::sum(width, of_normal) / Number(width);
      auto const along = gpt::detail::sum(width, on_normal) / Number(width);
      for (std::int64_t d = 0; d < width; ++d)
        dx[t * width + d] += kept.inverse[t] * (gain[d] * dy_t[d] - mean - n[d] * along);
    }
  });
}

//! y = GELU(x), in the form with tanh, which is x * sigmoid(2 u).
//! @source Hendrycks and Gimpel 2016, section 2
template <class Number>
[[gnu::noinline]] void gelu_forward(Number* y, Number const* x, std::int64_t count, stream) {
  vectors().run([=](auto) {
    for (std::int64_t i = 0; i < count; ++i) {
      Number const u = Number(gelu_inner) * (x[i] + Number(gelu_cubic) * x[i] * x[i] * x[i]);
      y[i] = x[i] * sigmoid(u);
    }
  });
}

//! dx = GELU'(x) dy; dx may lie where x does.
template <class Number>
[[gnu::noinline]] void
gelu_backward(Number* dx, Number const* x, Number const* dy, std::int64_t count, stream) {
  vectors().run([=](auto) {
    for (std::int64_t i = 0; i < count; ++i) {
      Number const of = x[i];
      Number const square = of * of;
      Number const s = sigmoid(Number(gelu_inner) * (of + Number(gelu_cubic) * square * of));
      Number const slope = Number(gelu_inner) * (1 + 3 * Number(gelu_cubic) * square);
      dx[i] = dy[i] * (s + of * s * (1 - s) * slope);
    }
  });
}

//! x = embedding of the byte + embedding of its position, [tokens, width].
template <class Number>
void embedding_forward(Number* x,
                       Number const* bytes,
                       Number const* positions,
                       std::uint8_t const* text,
                       token_rows rows) {
  for (std::int64_t t = 0; t < rows.tokens; ++t)
    for (std::int64_t d = 0; d < rows.width; ++d)
      *x++ = bytes[text[t] * rows.width + d] + *positions++;
}

//! Adds to the gradients of rows of the table of bytes, last token first.
//! @param bytes that the rows are of
template <class Number>
void rows_backward(Number* row_gradients,
                   chunk_range bytes,
                   Number const* dx,
                   std::uint8_t const* text,
                   token_rows rows) {
  for (auto t = rows.tokens; t-- > 0;)
    if (bytes.holds(text[t]))
      add(row_gradients + (text[t] - bytes.begin) * rows.width,
          dx + t * rows.width,
          rows.width,
          rows.stream);
}

namespace detail {
//! Loss of one token; its logits become probabilities.
template <class Number>
[[gnu::always_inline]] inline Number cross_entropy(Number* logits, std::uint8_t next) {
  auto const logit = [=](std::int64_t v) { return logits[v]; };
  Number const most = gpt::detail::join_in_lanes(
    vocabulary, logits[0], logit, [](Number a, Number b) { return a < b ? b : a; });
  Number const chosen = logits[next] - most;
  for (std::int64_t v = 0; v < vocabulary; ++v)
    logits[v] = pipelining::attention::exponential(logits[v] - most);
  Number const sum = gpt::detail::sum(vocabulary, logit);
  for (std::int64_t v = 0; v < vocabulary; ++v)
    logits[v] /= sum;
  return std::log(sum) - chosen;
}
} // namespace detail

//! The loss of each token in nats, of logits [tokens, vocabulary], which become probabilities.
template <class Number>
[[gnu::noinline]] void cross_entropy_forward(
  Number* losses, Number* logits, std::uint8_t const* next_bytes, std::int64_t tokens, stream) {
  vectors().run([=](auto) {
    for (std::int64_t t = 0; t < tokens; ++t)
      losses[t] = host::detail::cross_entropy(logits + t * vocabulary, next_bytes[t]);
  });
}

//! The gradient of the logits, for `share` times the sum of the losses.
template <class Number>
[[gnu::noinline]] void cross_entropy_backward(Number* gradient,
                                              Number* logits,
                                              std::uint8_t const* next_bytes,
                                              Number share,
                                              std::int64_t tokens,
                                              stream) {
  vectors().run([=](auto) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      Number* const row = gradient + t * vocabulary;
      std::copy_n(logits + t * vocabulary, vocabulary, row);
      host::detail::cross_entropy(row, next_bytes[t]);
      for (std::int64_t v = 0; v < vocabulary; ++v)
        row[v] *= share;
      row[next_bytes[t]] -= share;
    }
  });
}

} // namespace host
} // namespace gpt
