// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One layer of the GPT: x += attention(norm(x)), x += MLP(norm(x)), for one chunk at a
//! time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "layer_parts.hpp"
#include "memory.hpp"
#include "model.hpp"

namespace gpt {

//! What a layer keeps of a sequence while any of its chunks is under way.
template <class Number>
struct sequence_state {
  block<Number> key_value;          //!< [sequence, 2, key heads, head dim]: the cache
  block<Number> key_value_gradient; //!< the same shape: carried from later chunks to earlier ones
};

//! What a layer keeps of one unit (microbatch, chunk), part by part.
template <class Number>
struct unit_state {
  block<Number> kept;  //!< from forward to backward_weight
  block<Number> added; //!< from backward_input to backward_weight

  // In kept, or where the caller has said.
  Number* before;
  Number* attention; //!< backward_input replaces the query in it by its gradient
  Number* after;
  // In added.
  Number* after_added;
  Number* key_gradient; //!< [tokens, 2, key heads, head dim]
};

//! One layer. It knows no schedule: units come as the stage calls.
template <class Number>
class transformer_block {
public:
  //! @param lengths tokens of every microbatch. @param units chunks of all of them.
  transformer_block(model_size const& size,
                    std::uint64_t seed,
                    std::int64_t layer,
                    std::vector<std::int64_t> lengths,
                    std::int64_t units)
      : size_(size), lengths_(std::move(lengths)), before_(size, seed, layer), attention_(size),
        after_(size, seed, layer), sequences_(lengths_.size()),
        units_(static_cast<std::size_t>(units)) {}

  //! Between steps: what the next one consists of, as the constructor is told.
  void set_work(std::vector<std::int64_t> lengths, std::int64_t units) {
    lengths_ = std::move(lengths);
    sequences_.resize(lengths_.size());
    units_.resize(static_cast<std::size_t>(units));
  }

  //! Numbers that forward keeps of a unit for its backward, but for keys and values.
  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return before_attention<Number>::kept_numbers(size, tokens) +
           attention_part<Number>::kept_numbers(size, tokens) +
           after_attention<Number>::kept_numbers(size, tokens);
  }

  //! x [tokens, width] becomes the layer's output. Keys and values join those of earlier chunks.
  //! @param kept where to keep the rest, [kept_numbers]; null: in a buffer of the pool
  void forward(std::size_t microbatch,
               std::size_t unit,
               chunk_range chunk,
               Number* x,
               Number* kept,
               activation_pool<Number>& pool,
               scratch<Number>& space) {
    auto const tokens = chunk.count();
    auto& sequence = sequences_[microbatch];
    if (sequence.key_value.empty()) {
      sequence.key_value = pool.take(lengths_[microbatch] * key_value_width());
    }
    auto& u = units_[unit];
    if (kept == nullptr) {
      u.kept = pool.take(kept_numbers(size_, tokens));
      kept = u.kept.data();
    }
    lay_out(u, tokens, kept);
    Number* const key_value = sequence.key_value.data();
    before_.forward(
      x, u.attention, key_value + chunk.begin * key_value_width(), tokens, u.before, space);
    attention_.forward(chunk, key_value, u.attention, space);
    after_.forward(attention_.output(u.attention, tokens), x, tokens, u.after, space);
  }

  //! Lets go of what forward has kept of a unit, but for its keys and values; forward again, in any
  //! order, brings it back.
  void forget(std::size_t unit) { units_[unit].kept.release(); }

  //! dx [tokens, width] holds the gradient of the output and becomes that of the input. Keeps what
  //! backward_weight needs; adds to the gradients of the gains, which are too small to keep for.
  //! @param kept what forward has kept, where that is not in a buffer of the pool: it may lie
  //! elsewhere than then
  void backward_input(std::size_t microbatch,
                      std::size_t unit,
                      chunk_range chunk,
                      Number* dx,
                      Number* kept,
                      activation_pool<Number>& pool,
                      scratch<Number>& space) {
    auto const tokens = chunk.count();
    auto& u = units_[unit];
    if (kept != nullptr) {
      lay_out(u, tokens, kept);
    }
    auto const after_added = after_attention<Number>::added_numbers(size_, tokens);
    u.added = pool.take(after_added + tokens * key_value_width());
    u.after_added = u.added.data();
    u.key_gradient = u.after_added + after_added;
    after_.backward_input(dx, tokens, u.after, u.after_added, space);
    attention_backward(sequences_[microbatch], lengths_[microbatch], u, chunk, pool, space);
    before_.add_backward_input(u.attention, u.key_gradient, dx, tokens, u.before, space);
  }

  //! Adds what a unit gives to the gradients of the matrices, and lets go of the unit.
  void backward_weight(std::size_t unit, chunk_range chunk, scratch<Number>& space) {
    auto const tokens = chunk.count();
    auto& u = units_[unit];
    before_.add_backward_weight(u.attention, u.key_gradient, tokens, u.before, space);
    after_.add_backward_weight(
      attention_.output(u.attention, tokens), tokens, u.after, u.after_added, space);
    u.kept.release();
    u.added.release();
  }

  //! Calls visit(parameter) for each parameter, in one fixed order.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    before_.for_each_parameter(visit);
    after_.for_each_parameter(visit);
  }

  //! Calls visit(matrix) for each matrix, in one fixed order.
  template <class Visit>
  void for_each_matrix(Visit visit) {
    before_.for_each_matrix(visit);
    after_.for_each_matrix(visit);
  }
  //! To be called when parameters have changed.
  void refresh() {
    for_each_matrix([](linear<Number>& matrix) { matrix.refresh(); });
  }

private:
  [[nodiscard]] std::int64_t key_value_width() const { return 2 * size_.key_width(); }

  void lay_out(unit_state<Number>& u, std::int64_t tokens, Number* kept) const {
    u.before = kept;
    u.attention = u.before + before_attention<Number>::kept_numbers(size_, tokens);
    u.after = u.attention + attention_part<Number>::kept_numbers(size_, tokens);
  }

  //! From the gradient of the projection's output to those of the query, the keys and the values.
  void attention_backward(sequence_state<Number>& sequence,
                          std::int64_t length,
                          unit_state<Number>& u,
                          chunk_range chunk,
                          activation_pool<Number>& pool,
                          scratch<Number>& space) {
    auto const tokens = chunk.count();
    if (sequence.key_value_gradient.empty()) { // the last chunk comes first
      sequence.key_value_gradient = pool.take(length * key_value_width());
      std::fill_n(sequence.key_value_gradient.data(), length * key_value_width(), Number{0});
    }
    Number* const carried = sequence.key_value_gradient.data();
    Number* const output_gradient = space.zeros(2 * tokens * size_.width);
    Number* const query_gradient = output_gradient + tokens * size_.width;
    after_.add_output_gradient(output_gradient, tokens, u.after_added);
    attention_.backward(chunk,
                        sequence.key_value.data(),
                        output_gradient,
                        query_gradient,
                        carried,
                        u.attention,
                        space);
    std::copy_n(query_gradient, tokens * size_.width, u.attention);
    std::copy_n(carried + chunk.begin * key_value_width(),
                tokens * key_value_width(),
                u.key_gradient); // final: later chunks have added theirs before
    if (chunk.begin == 0) {
      sequence.key_value.release();
      sequence.key_value_gradient.release();
    }
  }

  model_size size_;
  std::vector<std::int64_t> lengths_; // by microbatch
  before_attention<Number> before_;
  attention_part<Number> attention_;
  after_attention<Number> after_;
  std::vector<sequence_state<Number>> sequences_; // by microbatch
  std::vector<unit_state<Number>> units_;         // by microbatch, then chunk
};

} // namespace gpt
