// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One layer of the GPT: x += attention(norm(x)), x += MLP(norm(x)), for one chunk at a
//! time.

#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "layers.hpp"
#include "memory.hpp"
#include "model.hpp"

namespace gpt {

namespace attention = pipelining::attention;

//! Scratch that all layers of a device share; nothing in it survives a pass.
template <class Number>
struct scratch {
  std::vector<Number> numbers;
  attention::workspace<attention::accumulate_t<Number>> attention_space;

  //! Zeros that are valid until the next call.
  [[nodiscard]] Number* zeros(std::int64_t count) {
    numbers.assign(static_cast<std::size_t>(count), Number{0});
    return numbers.data();
  }
};

//! What a layer keeps of a sequence while any of its chunks is under way.
template <class Number>
struct sequence_state {
  block<Number> key_value;          //!< [sequence, 2, key heads, head dim]: the cache
  block<Number> key_value_gradient; //!< the same shape: carried from later chunks to earlier ones
};

//! What a layer keeps of one unit (microbatch, chunk), seen as the tensors in it.
template <class Number>
struct unit_state {
  block<Number> kept;  //!< from forward to backward_weight
  block<Number> added; //!< from backward_input to backward_weight

  // In kept, or where the caller has said. backward_input replaces query and inner by their
  // gradients.
  Number* normal_one;  //!< [tokens, width], normalised input of attention
  Number* query;       //!< [tokens, width]
  Number* output;      //!< [tokens, width], of attention
  Number* normal_two;  //!< [tokens, width], normalised input of the MLP
  Number* inner;       //!< [tokens, hidden], before GELU
  Number* outer;       //!< [tokens, hidden], after GELU
  Number* inverse_one; //!< [tokens], of the first norm
  Number* inverse_two; //!< [tokens], of the second norm
  Number* log_sum_exp; //!< [heads, tokens]
  // In added.
  Number* mlp_gradient;       //!< [tokens, width], of the MLP's output
  Number* attention_gradient; //!< [tokens, width], of the projection's output
  Number* key_gradient;       //!< [tokens, 2, key heads, head dim]
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
      : size_(size), lengths_(std::move(lengths)), norm_one_(size.width), norm_two_(size.width),
        query_({seed, layer, 0}, size.width, size.width, deviation()),
        key_value_({seed, layer, 1}, size.width, 2 * size.key_width(), deviation()),
        projection_({seed, layer, 2}, size.width, size.width, deviation() * onto_residual()),
        up_({seed, layer, 3}, size.width, size.hidden(), deviation()),
        down_({seed, layer, 4}, size.hidden(), size.width, deviation() * onto_residual()),
        sequences_(lengths_.size()), units_(static_cast<std::size_t>(units)) {}

  //! Numbers that forward keeps of a unit for its backward, but for keys and values.
  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return tokens * (4 * size.width + 2 * size.hidden() + 2 + size.heads);
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

    norm_one_.normalise(x, u.normal_one, u.inverse_one, tokens);
    Number* const normal = space.zeros(tokens * size_.width);
    norm_one_.apply_gain(u.normal_one, normal, tokens);
    Number* const key_value = sequence.key_value.data() + chunk.begin * key_value_width();
    std::fill_n(u.query, tokens * size_.width, Number{0});
    std::fill_n(key_value, tokens * key_value_width(), Number{0});
    query_.add_forward(normal, u.query, size_.width, tokens);
    key_value_.add_forward(normal, key_value, key_value_width(), tokens);
    attention::forward(parameters_of(chunk),
                       attention::forward_tensors<Number>{
                         queries<Number const>(u.query, tokens),
                         keys<Number const>(sequence.key_value.data(), chunk.end),
                         values<Number const>(sequence.key_value.data(), chunk.end),
                         queries<Number>(u.output, tokens),
                         attention::dense_rows(u.log_sum_exp, 1, size_.heads, tokens)},
                       attention::causal{},
                       attention::plain{},
                       space.attention_space);
    projection_.add_forward(u.output, x, size_.width, tokens);

    norm_two_.normalise(x, u.normal_two, u.inverse_two, tokens);
    norm_two_.apply_gain(u.normal_two, normal, tokens);
    std::fill_n(u.inner, tokens * size_.hidden(), Number{0});
    up_.add_forward(normal, u.inner, size_.hidden(), tokens);
    gelu(u.inner, u.outer, tokens * size_.hidden());
    down_.add_forward(u.outer, x, size_.width, tokens);
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
    keep_added(u, tokens, pool);

    std::copy_n(dx, tokens * size_.width, u.mlp_gradient);
    Number* const wide = space.zeros(tokens * (size_.hidden() + size_.width));
    Number* const narrow = wide + tokens * size_.hidden();
    down_.add_backward_input(u.mlp_gradient, wide, tokens);
    gelu_backward(u.inner, wide, tokens * size_.hidden());
    up_.add_backward_input(u.inner, narrow, tokens);
    norm_two_.add_backward(narrow, u.normal_two, u.inverse_two, dx, tokens);

    std::copy_n(dx, tokens * size_.width, u.attention_gradient);
    attention_backward(sequences_[microbatch], lengths_[microbatch], u, chunk, pool, space);
    Number* const normal_gradient = space.zeros(tokens * size_.width);
    query_.add_backward_input(u.query, normal_gradient, tokens);
    key_value_.add_backward_input(u.key_gradient, normal_gradient, tokens);
    norm_one_.add_backward(normal_gradient, u.normal_one, u.inverse_one, dx, tokens);
  }

  //! Adds what a unit gives to the gradients of the matrices, and lets go of the unit.
  void backward_weight(std::size_t unit, chunk_range chunk, scratch<Number>& space) {
    auto const tokens = chunk.count();
    auto& u = units_[unit];
    Number* const normal = space.zeros(tokens * size_.width);
    norm_one_.apply_gain(u.normal_one, normal, tokens);
    query_.add_backward_weight(normal, u.query, tokens);
    key_value_.add_backward_weight(normal, u.key_gradient, tokens);
    projection_.add_backward_weight(u.output, u.attention_gradient, tokens);
    norm_two_.apply_gain(u.normal_two, normal, tokens);
    up_.add_backward_weight(normal, u.inner, tokens);
    down_.add_backward_weight(u.outer, u.mlp_gradient, tokens);
    u.kept.release();
    u.added.release();
  }

  //! Calls visit(parameter) for each parameter, in one fixed order.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    visit(norm_one_.gain);
    visit(query_.weight);
    visit(key_value_.weight);
    visit(projection_.weight);
    visit(norm_two_.gain);
    visit(up_.weight);
    visit(down_.weight);
  }

  //! Calls visit(matrix) for each matrix, in one fixed order.
  template <class Visit>
  void for_each_matrix(Visit visit) {
    for (auto* matrix : {&query_, &key_value_, &projection_, &up_, &down_}) {
      visit(*matrix);
    }
  }
  //! To be called when parameters have changed.
  void refresh() {
    for_each_matrix([](linear<Number>& matrix) { matrix.refresh(); });
  }

private:
  [[nodiscard]] double deviation() const { return 0.5 / std::sqrt(double(size_.width)); }
  [[nodiscard]] double onto_residual() const { return 1 / std::sqrt(2.0 * double(size_.layers)); }
  [[nodiscard]] std::int64_t key_value_width() const { return 2 * size_.key_width(); }

  void lay_out(unit_state<Number>& u, std::int64_t tokens, Number* kept) const {
    auto const narrow = tokens * size_.width;
    auto const wide = tokens * size_.hidden();
    u.normal_one = kept;
    u.query = u.normal_one + narrow;
    u.output = u.query + narrow;
    u.normal_two = u.output + narrow;
    u.inner = u.normal_two + narrow;
    u.outer = u.inner + wide;
    u.inverse_one = u.outer + wide;
    u.inverse_two = u.inverse_one + tokens;
    u.log_sum_exp = u.inverse_two + tokens;
  }

  void keep_added(unit_state<Number>& u, std::int64_t tokens, activation_pool<Number>& pool) const {
    u.added = pool.take(tokens * (2 * size_.width + key_value_width()));
    u.mlp_gradient = u.added.data();
    u.attention_gradient = u.mlp_gradient + tokens * size_.width;
    u.key_gradient = u.attention_gradient + tokens * size_.width;
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
    projection_.add_backward_input(u.attention_gradient, output_gradient, tokens);
    attention::backward(
      parameters_of(chunk),
      attention::backward_tensors<Number>{
        queries<Number const>(u.query, tokens),
        keys<Number const>(sequence.key_value.data(), chunk.end),
        values<Number const>(sequence.key_value.data(), chunk.end),
        queries<Number const>(u.output, tokens),
        attention::dense_rows<Number const>(u.log_sum_exp, 1, size_.heads, tokens),
        queries<Number const>(output_gradient, tokens),
        queries<Number>(query_gradient, tokens),
        keys<Number>(carried, chunk.end),
        values<Number>(carried, chunk.end)},
      attention::causal{},
      attention::plain{},
      space.attention_space);
    std::copy_n(query_gradient, tokens * size_.width, u.query);
    std::copy_n(carried + chunk.begin * key_value_width(),
                tokens * key_value_width(),
                u.key_gradient); // final: later chunks have added theirs before
    if (chunk.begin == 0) {
      sequence.key_value.release();
      sequence.key_value_gradient.release();
    }
  }

  [[nodiscard]] attention::parameters parameters_of(chunk_range chunk) const {
    attention::parameters p;
    p.query_length = chunk.count();
    p.query_offset = chunk.begin;
    p.key_length = chunk.end;
    p.heads = size_.heads;
    p.key_heads = size_.key_heads;
    p.head_dim = size_.head_dim();
    return p;
  }

  template <class Element>
  [[nodiscard]] attention::tensor_view<Element> queries(Element* data, std::int64_t tokens) const {
    return attention::dense_tensor(data, 1, tokens, size_.heads, size_.head_dim());
  }
  template <class Element>
  [[nodiscard]] attention::tensor_view<Element> keys(Element* data, std::int64_t tokens) const {
    auto view = attention::dense_tensor(data, 1, tokens, size_.key_heads, size_.head_dim());
    view.length_stride = key_value_width();
    return view;
  }
  template <class Element>
  [[nodiscard]] attention::tensor_view<Element> values(Element* data, std::int64_t tokens) const {
    return keys(data + size_.key_width(), tokens);
  }

  model_size size_;
  std::vector<std::int64_t> lengths_; // by microbatch
  layer_norm<Number> norm_one_;
  layer_norm<Number> norm_two_;
  linear<Number> query_;
  linear<Number> key_value_;
  linear<Number> projection_;
  linear<Number> up_;
  linear<Number> down_;
  std::vector<sequence_state<Number>> sequences_; // by microbatch
  std::vector<unit_state<Number>> units_;         // by microbatch, then chunk
};

} // namespace gpt
