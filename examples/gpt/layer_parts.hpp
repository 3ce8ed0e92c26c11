// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The three parts of a layer of the GPT: what comes before attention, attention, what
//! follows.
//!
//! A part keeps nothing of a unit: what its backward needs lies where the caller says, in
//! `kept_numbers` numbers from forward on.

#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "layers.hpp"
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

namespace detail {
[[nodiscard]] inline double deviation(model_size const& size) {
  return 0.5 / std::sqrt(double(size.width));
}
//! The same of a matrix whose product is added to the residual.
[[nodiscard]] inline double residual_deviation(model_size const& size) {
  return deviation(size) / std::sqrt(2.0 * double(size.layers));
}
} // namespace detail

//! Norm, query, keys and values.
template <class Number>
class before_attention {
public:
  before_attention(model_size const& size, std::uint64_t seed, std::int64_t layer)
      : size_(size), norm_(size.width),
        query_({seed, layer, 0}, size.width, size.width, detail::deviation(size)),
        key_value_({seed, layer, 1}, size.width, 2 * size.key_width(), detail::deviation(size)) {}

  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return tokens * (size.width + 1);
  }

  //! Of x [tokens, width] writes query [tokens, width] and key_value [tokens, 2, key heads, head
  //! dim].
  void forward(Number const* x,
               Number* query,
               Number* key_value,
               std::int64_t tokens,
               Number* kept,
               scratch<Number>& space) const {
    norm_.normalise(x, kept, kept + tokens * size_.width, tokens);
    Number* const normal = space.zeros(tokens * size_.width);
    norm_.apply_gain(kept, normal, tokens);
    std::fill_n(query, tokens * size_.width, Number{0});
    std::fill_n(key_value, tokens * 2 * size_.key_width(), Number{0});
    query_.add_forward(normal, query, size_.width, tokens);
    key_value_.add_forward(normal, key_value, 2 * size_.key_width(), tokens);
  }

  //! Adds what both gradients give to dx [tokens, width], and to the gradient of the gain, which is
  //! too small to keep for.
  void add_backward_input(Number const* query_gradient,
                          Number const* key_value_gradient,
                          Number* dx,
                          std::int64_t tokens,
                          Number const* kept,
                          scratch<Number>& space) {
    Number* const normal_gradient = space.zeros(tokens * size_.width);
    query_.add_backward_input(query_gradient, normal_gradient, tokens);
    key_value_.add_backward_input(key_value_gradient, normal_gradient, tokens);
    norm_.add_backward(normal_gradient, kept, kept + tokens * size_.width, dx, tokens);
  }

  //! Adds to the gradients of the matrices.
  void add_backward_weight(Number const* query_gradient,
                           Number const* key_value_gradient,
                           std::int64_t tokens,
                           Number const* kept,
                           scratch<Number>& space) {
    Number* const normal = space.zeros(tokens * size_.width);
    norm_.apply_gain(kept, normal, tokens);
    query_.add_backward_weight(normal, query_gradient, tokens);
    key_value_.add_backward_weight(normal, key_value_gradient, tokens);
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    visit(norm_.gain);
    visit(query_.weight);
    visit(key_value_.weight);
  }
  template <class Visit>
  void for_each_matrix(Visit visit) {
    visit(query_);
    visit(key_value_);
  }

private:
  model_size size_;
  layer_norm<Number> norm_;
  linear<Number> query_;
  linear<Number> key_value_;
};

//! Attention, which has no weights. What it keeps begins with its query, so that whoever makes that
//! can write it there, and goes on with its output.
template <class Number>
class attention_part {
public:
  explicit attention_part(model_size const& size) : size_(size) {}

  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return tokens * (2 * size.width + size.heads);
  }
  [[nodiscard]] Number* output(Number* kept, std::int64_t tokens) const {
    return kept + tokens * size_.width;
  }

  //! @param key_value of the sequence up to the end of the chunk
  void
  forward(chunk_range chunk, Number const* key_value, Number* kept, scratch<Number>& space) const {
    forward(chunk, {0, chunk.end}, attention::causal{}, key_value, kept, space);
  }
  //! The same over some of the keys. @param key_value of these
  template <class Mask>
  void forward(chunk_range chunk,
               chunk_range seen,
               Mask const& mask,
               Number const* key_value,
               Number* kept,
               scratch<Number>& space) const {
    auto const tokens = chunk.count();
    attention::forward(parameters_of(chunk, seen),
                       attention::forward_tensors<Number>{
                         queries<Number const>(kept, tokens),
                         keys<Number const>(key_value, seen.count()),
                         values<Number const>(key_value, seen.count()),
                         queries<Number>(output(kept, tokens), tokens),
                         attention::dense_rows(log_sum_exp(kept, tokens), 1, size_.heads, tokens)},
                       mask,
                       attention::plain{},
                       space.attention_space);
  }

  //! @param output_gradient [tokens, width]. @param query_gradient [tokens, width], zeros before.
  //! @param key_value_gradient as key_value: gets its share of the chunk's own tokens and of all
  //! before it added
  void backward(chunk_range chunk,
                Number const* key_value,
                Number const* output_gradient,
                Number* query_gradient,
                Number* key_value_gradient,
                Number* kept,
                scratch<Number>& space) const {
    backward(chunk,
             {0, chunk.end},
             attention::causal{},
             key_value,
             output_gradient,
             query_gradient,
             key_value_gradient,
             kept,
             space);
  }
  //! The same over some of the keys; what is kept must be output and log-sum-exp of all of them.
  template <class Mask>
  void backward(chunk_range chunk,
                chunk_range seen,
                Mask const& mask,
                Number const* key_value,
                Number const* output_gradient,
                Number* query_gradient,
                Number* key_value_gradient,
                Number* kept,
                scratch<Number>& space) const {
    auto const tokens = chunk.count();
    attention::backward(
      parameters_of(chunk, seen),
      attention::backward_tensors<Number>{
        queries<Number const>(kept, tokens),
        keys<Number const>(key_value, seen.count()),
        values<Number const>(key_value, seen.count()),
        queries<Number const>(output(kept, tokens), tokens),
        attention::dense_rows<Number const>(log_sum_exp(kept, tokens), 1, size_.heads, tokens),
        queries<Number const>(output_gradient, tokens),
        queries<Number>(query_gradient, tokens),
        keys<Number>(key_value_gradient, seen.count()),
        values<Number>(key_value_gradient, seen.count())},
      mask,
      attention::plain{},
      space.attention_space);
  }

private:
  [[nodiscard]] Number* log_sum_exp(Number* kept, std::int64_t tokens) const {
    return kept + 2 * tokens * size_.width; // [heads, tokens]
  }
  [[nodiscard]] attention::parameters parameters_of(chunk_range chunk, chunk_range seen) const {
    attention::parameters p;
    p.query_length = chunk.count();
    p.query_offset = chunk.begin;
    p.key_length = seen.count();
    p.key_offset = seen.begin;
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
    view.length_stride = 2 * size_.key_width();
    return view;
  }
  template <class Element>
  [[nodiscard]] attention::tensor_view<Element> values(Element* data, std::int64_t tokens) const {
    return keys(data + size_.key_width(), tokens);
  }

  model_size size_;
};

//! The projection of attention's output onto the residual, and the MLP behind it.
template <class Number>
class after_attention {
public:
  after_attention(model_size const& size, std::uint64_t seed, std::int64_t layer)
      : size_(size), norm_(size.width),
        projection_({seed, layer, 2}, size.width, size.width, detail::residual_deviation(size)),
        up_({seed, layer, 3}, size.width, size.hidden(), detail::deviation(size)),
        down_({seed, layer, 4}, size.hidden(), size.width, detail::residual_deviation(size)) {}

  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return tokens * (size.width + 2 * size.hidden() + 1);
  }
  //! Numbers that its backward for the input makes for that of the weights.
  [[nodiscard]] static std::int64_t added_numbers(model_size const& size, std::int64_t tokens) {
    return tokens * 2 * size.width;
  }

  //! x [tokens, width], the residual, becomes the layer's output.
  //! @param output of attention, [tokens, width]
  void forward(Number const* output,
               Number* x,
               std::int64_t tokens,
               Number* kept,
               scratch<Number>& space) const {
    auto const u = lay_out(kept, tokens);
    projection_.add_forward(output, x, size_.width, tokens);
    norm_.normalise(x, u.normal, u.inverse, tokens);
    Number* const normal = space.zeros(tokens * size_.width);
    norm_.apply_gain(u.normal, normal, tokens);
    std::fill_n(u.inner, tokens * size_.hidden(), Number{0});
    up_.add_forward(normal, u.inner, size_.hidden(), tokens);
    gelu(u.inner, u.outer, tokens * size_.hidden());
    down_.add_forward(u.outer, x, size_.width, tokens);
  }

  //! dx [tokens, width], the gradient of the layer's output, becomes that of the residual.
  void backward_input(
    Number* dx, std::int64_t tokens, Number* kept, Number* added, scratch<Number>& space) {
    auto const u = lay_out(kept, tokens);
    std::copy_n(dx, tokens * size_.width, added);
    Number* const wide = space.zeros(tokens * (size_.hidden() + size_.width));
    Number* const narrow = wide + tokens * size_.hidden();
    down_.add_backward_input(added, wide, tokens);
    gelu_backward(u.inner, wide, tokens * size_.hidden());
    up_.add_backward_input(u.inner, narrow, tokens);
    norm_.add_backward(narrow, u.normal, u.inverse, dx, tokens);
    std::copy_n(dx, tokens * size_.width, added + tokens * size_.width);
  }
  //! Behind it: adds to the gradient of attention's output.
  void add_output_gradient(Number* gradient, std::int64_t tokens, Number const* added) const {
    projection_.add_backward_input(added + tokens * size_.width, gradient, tokens);
  }

  //! Adds to the gradients of the matrices.
  void add_backward_weight(Number const* output,
                           std::int64_t tokens,
                           Number* kept,
                           Number const* added,
                           scratch<Number>& space) {
    auto const u = lay_out(kept, tokens);
    projection_.add_backward_weight(output, added + tokens * size_.width, tokens);
    Number* const normal = space.zeros(tokens * size_.width);
    norm_.apply_gain(u.normal, normal, tokens);
    up_.add_backward_weight(normal, u.inner, tokens);
    down_.add_backward_weight(u.outer, added, tokens);
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    visit(projection_.weight);
    visit(norm_.gain);
    visit(up_.weight);
    visit(down_.weight);
  }
  template <class Visit>
  void for_each_matrix(Visit visit) {
    visit(projection_);
    visit(up_);
    visit(down_);
  }

private:
  //! What is kept, as tensors. backward_input replaces `inner` by its gradient.
  struct kept_state {
    Number* normal;  //!< [tokens, width], normalised input of the MLP
    Number* inner;   //!< [tokens, hidden], before GELU
    Number* outer;   //!< [tokens, hidden], after GELU
    Number* inverse; //!< [tokens], of the norm
  };
  [[nodiscard]] kept_state lay_out(Number* kept, std::int64_t tokens) const {
    Number* const inner = kept + tokens * size_.width;
    Number* const outer = inner + tokens * size_.hidden();
    return {kept, inner, outer, outer + tokens * size_.hidden()};
  }

  model_size size_;
  layer_norm<Number> norm_;
  linear<Number> projection_;
  linear<Number> up_;
  linear<Number> down_;
};

} // namespace gpt
