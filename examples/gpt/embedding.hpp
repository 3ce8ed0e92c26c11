// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The two ends of the model: bytes become vectors; vectors become a loss.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "layers.hpp"
#include "memory.hpp"
#include "model.hpp"

namespace gpt {

//! x = embedding of the byte + embedding of its position.
template <class Number>
class embedding {
public:
  embedding(model_size const& size, std::uint64_t seed)
      : bytes(random_parameter<Number>({seed, -1, 0}, vocabulary * size.width, 0.3, false)),
        positions(random_parameter<Number>({seed, -1, 1}, size.sequence * size.width, 0.1, false)),
        width_(size.width) {}

  //! x [tokens, width] for tokens [chunk.begin, chunk.end) of a sequence.
  void forward(std::uint8_t const* sequence, chunk_range chunk, Number* x) const {
    for (auto position = chunk.begin; position < chunk.end; ++position) {
      Number const* const byte = bytes.values() + sequence[position] * width_;
      Number const* const place = positions.values() + position * width_;
      for (std::int64_t d = 0; d < width_; ++d)
        *x++ = byte[d] + place[d];
    }
  }

  //! Adds to both gradients, last token first.
  void backward(std::uint8_t const* sequence, chunk_range chunk, Number const* dx) {
    for (auto position = chunk.end - 1; position >= chunk.begin; --position) {
      Number* const byte = bytes.gradients() + sequence[position] * width_;
      Number* const place = positions.gradients() + position * width_;
      Number const* const from = dx + (position - chunk.begin) * width_;
      for (std::int64_t d = 0; d < width_; ++d) {
        byte[d] += from[d];
        place[d] += from[d];
      }
    }
  }

  parameter<Number> bytes;     //!< [vocabulary, width]
  parameter<Number> positions; //!< [sequence, width]

private:
  std::int64_t width_;
};

//! Norm, linear and cross-entropy against the next byte.
template <class Number>
class head {
public:
  using place = place_of_unit<Number>;

  head(model_size const& size, std::uint64_t seed, std::int64_t units)
      : norm(size.width),
        out({seed, size.layers, 0}, size.width, vocabulary, 0.5 / std::sqrt(double(size.width))),
        width_(size.width), units_(static_cast<std::size_t>(units)) {}

  void forget(std::size_t unit) { units_[unit].kept.reset(); }
  void set_units(std::int64_t units) { units_.resize(static_cast<std::size_t>(units)); }

  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return layer_norm<Number>::kept_numbers(size.width, tokens);
  }

  //! Writes the loss of each token, in nats. Logits are not kept: they are many, and soon made.
  //! `kept` is for the rest, [kept_numbers].
  void forward(place const& at, std::uint8_t const* next_bytes, Number const* x, Number* losses) {
    auto const tokens = at.tokens();
    auto& space = at.memory->space.numbers;
    auto& u = units_[at.unit];
    auto const numbers = layer_norm<Number>::kept_numbers(width_, tokens);
    u.normal = at.memory->pool.place(numbers, at.kept, u.kept);
    norm.normalise(x, u.normal, tokens);
    space.resize(static_cast<std::size_t>(tokens * (width_ + vocabulary)));
    Number* const logits = space.data() + tokens * width_;
    make_logits(u, tokens, space.data(), logits);
    for (std::int64_t t = 0; t < tokens; ++t)
      losses[t] = cross_entropy(logits + t * vocabulary, next_bytes[t]);
  }

  //! dx [tokens, width] = gradient of the input, for `share` times the sum of the losses. Keeps the
  //! gradient of the logits for backward_weight.
  void backward_input(place const& at, std::uint8_t const* next_bytes, Number share, Number* dx) {
    auto const tokens = at.tokens();
    auto& space = at.memory->space.numbers;
    auto& u = units_[at.unit];
    if (at.kept != nullptr)
      u.normal = at.kept;
    u.logits_gradient = at.memory->pool.take(tokens * vocabulary);
    Number* const gradient = u.logits_gradient.get();
    space.resize(static_cast<std::size_t>(tokens * width_));
    make_logits(u, tokens, space.data(), gradient);
    for (std::int64_t t = 0; t < tokens; ++t) {
      cross_entropy(gradient + t * vocabulary, next_bytes[t]);
      for (std::int64_t v = 0; v < vocabulary; ++v)
        gradient[t * vocabulary + v] *= share;
      gradient[t * vocabulary + next_bytes[t]] -= share;
    }
    std::fill_n(space.data(), tokens * width_, Number{0});
    out.add_backward_input(gradient, space.data(), tokens);
    std::fill_n(dx, tokens * width_, Number{0});
    norm.add_backward(space.data(), u.normal, dx, tokens);
  }

  //! Adds to the gradient of the matrix, and lets go of the unit.
  void backward_weight(place const& at) {
    auto const tokens = at.tokens();
    auto& space = at.memory->space.numbers;
    auto& u = units_[at.unit];
    space.resize(static_cast<std::size_t>(tokens * width_));
    norm.apply_gain(u.normal, space.data(), tokens);
    out.add_backward_weight(space.data(), u.logits_gradient.get(), tokens);
    u.kept.reset();
    u.logits_gradient.reset();
  }

  layer_norm<Number> norm;
  linear<Number> out;

private:
  struct unit_state {
    block<Number> kept;            //!< from forward to backward_weight
    block<Number> logits_gradient; //!< from backward_input to backward_weight
    Number* normal;                //!< what the norm keeps: there, or where the caller has said
  };

  void make_logits(unit_state const& u, std::int64_t tokens, Number* space, Number* logits) const {
    norm.apply_gain(u.normal, space, tokens);
    std::fill_n(logits, tokens * vocabulary, Number{0});
    out.add_forward(space, logits, vocabulary, tokens);
  }

  //! Loss of one token; its logits become probabilities.
  static Number cross_entropy(Number* logits, std::uint8_t next) {
    Number most = logits[0];
    for (std::int64_t v = 1; v < vocabulary; ++v)
      most = std::max(most, logits[v]);
    Number const chosen = logits[next] - most;
    Number sum = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      logits[v] = std::exp(logits[v] - most);
      sum += logits[v];
    }
    for (std::int64_t v = 0; v < vocabulary; ++v)
      logits[v] /= sum;
    return std::log(sum) - chosen;
  }

  std::int64_t width_;
  std::vector<unit_state> units_; // by microbatch, then chunk
};

//! What a stage has of both ends of the model, and the losses of tokens, [microbatches, sequence].
template <class Number>
struct model_ends {
  std::unique_ptr<embedding<Number>> first; //!< null: another stage has it
  std::unique_ptr<head<Number>> last;       //!< likewise
  std::vector<Number> losses;

  //! @param units chunks of all microbatches
  model_ends(model_size const& size,
             layer_range const& layers,
             std::uint64_t seed,
             std::int64_t microbatches,
             std::int64_t units) {
    if (layers.embeds)
      first = std::make_unique<embedding<Number>>(size, seed);
    if (layers.ends) {
      last = std::make_unique<head<Number>>(size, seed, units);
      losses.resize(static_cast<std::size_t>(microbatches * size.sequence));
    }
  }

  [[nodiscard]] double sum_of_losses() const {
    double sum = 0;
    for (auto const x : losses)
      sum += static_cast<double>(x);
    return sum;
  }
  //! Calls visit(parameter) of the embedding, between(), and visit(parameter) of the head.
  template <class Visit, class Between>
  void for_each_parameter(Visit& visit, Between between) {
    if (first != nullptr) {
      visit(first->bytes);
      visit(first->positions);
    }
    between();
    if (last != nullptr) {
      visit(last->norm.gain);
      visit(last->out.weight);
    }
  }
};

} // namespace gpt
