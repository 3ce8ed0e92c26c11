// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A layer of the GPT: what comes before attention, attention, what follows; and all three
//! as one, for one chunk at a time. Of a stage in shards, a part has some heads of the attention,
//! or some of the hidden numbers of the MLP.
//!
//! A part keeps nothing of a unit: what its backward needs lies where the caller says, in
//! `kept_numbers` numbers from forward on.

#include <pipe/attention/backward.hpp>
#include <pipe/attention/forward.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "layers.hpp"
#include "memory.hpp"
#include "model.hpp"

namespace gpt {

namespace attention = pipelining::attention;

namespace detail {
[[nodiscard]] inline double deviation(model_size const& size) {
  return 0.5 / std::sqrt(double(size.width));
}
//! The same of a matrix whose product is added to the residual.
[[nodiscard]] inline double residual_deviation(model_size const& size) {
  return deviation(size) / std::sqrt(2.0 * double(size.layers));
}

//! Part of a matrix with so many columns, in `blocks` alike, of each of which it has some. It
//! starts with the numbers of the whole one wherever that is cut.
template <class Number>
[[nodiscard]] linear<Number> cut_matrix(linear<Number> const& whole,
                                        std::int64_t columns,
                                        std::int64_t blocks,
                                        chunk_range rows,
                                        chunk_range of_block) {
  linear<Number> part({}, rows.count(), blocks * of_block.count(), 1.0);
  auto to = part.weight.value.begin();
  for (auto row = rows.begin; row < rows.end; ++row)
    for (std::int64_t block = 0; block < blocks; ++block) {
      auto const from = row * columns + block * (columns / blocks) + of_block.begin;
      to = std::copy_n(whole.weight.value.begin() + from, of_block.count(), to);
    }
  part.refresh();
  return part;
}

//! What a norm gives, from what it has kept. It lies in scratch.
template <class Number>
[[nodiscard]] Number* normal_again(layer_norm<Number> const& norm, part_place<Number> const& at) {
  Number* const normal = at.space->zeros(at.tokens * norm.width());
  norm.apply_gain(at.kept, normal, at.tokens);
  return normal;
}
} // namespace detail

template <class Number>
class before_attention {
public:
  using place = part_place<Number>;

  before_attention(model_size const& size,
                   std::uint64_t seed,
                   std::int64_t layer,
                   shard_of_stage which = {})
      : width_(size.width), own_(size_of_shard(size, which)), norm_(width_),
        query_({seed, layer, 0}, width_, width_, detail::deviation(size)),
        key_value_({seed, layer, 1}, width_, 2 * size.key_width(), detail::deviation(size)) {
    if (which.of > 1) {
      chunk_range const all{0, width_};
      auto const keys = size.key_width();
      query_ = detail::cut_matrix(query_, width_, 1, all, which.share(width_));
      key_value_ = detail::cut_matrix(key_value_, 2 * keys, 2, all, which.share(keys));
    }
  }

  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return layer_norm<Number>::kept_numbers(size.width, tokens);
  }

  //! Of x [tokens, width] writes query [tokens, own width] and key_value [tokens, 2, own key heads,
  //! head dim].
  void forward(Number const* x, Number* query, Number* key_value, place const& at) const {
    norm_.normalise(x, at.kept, at.tokens);
    Number* const normal = detail::normal_again(norm_, at);
    std::fill_n(query, at.tokens * own_.width, Number{0});
    std::fill_n(key_value, at.tokens * keys(), Number{0});
    query_.add_forward(normal, query, own_.width, at.tokens);
    key_value_.add_forward(normal, key_value, keys(), at.tokens);
  }

  //! Adds to the gradient of what the norm gives; of shards, the sum of all of that is wanted.
  void backward_products(Number const* query_gradient,
                         Number const* key_value_gradient,
                         Number* normal_gradient,
                         std::int64_t tokens) {
    query_.add_backward_input(query_gradient, normal_gradient, tokens);
    key_value_.add_backward_input(key_value_gradient, normal_gradient, tokens);
  }
  //! Adds what that gives to dx [tokens, width], and to the gradient of the gain, which is too
  //! small to keep for.
  void join(Number const* normal_gradient, Number* dx, place const& at) {
    norm_.add_backward(normal_gradient, at.kept, dx, at.tokens);
  }
  //! Both, without shards.
  void add_backward_input(Number const* query_gradient,
                          Number const* key_value_gradient,
                          Number* dx,
                          place const& at) {
    Number* const normal_gradient = at.space->zeros(at.tokens * width_);
    backward_products(query_gradient, key_value_gradient, normal_gradient, at.tokens);
    join(normal_gradient, dx, at);
  }

  void add_backward_weight(Number const* query_gradient,
                           Number const* key_value_gradient,
                           place const& at) {
    Number const* const normal = detail::normal_again(norm_, at);
    query_.add_backward_weight(normal, query_gradient, at.tokens);
    key_value_.add_backward_weight(normal, key_value_gradient, at.tokens);
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
  [[nodiscard]] std::int64_t keys() const { return 2 * own_.key_width(); }

  std::int64_t width_;
  model_size own_;
  layer_norm<Number> norm_;
  linear<Number> query_;
  linear<Number> key_value_;
};

//! What attention reads and gives. It reads keys and values of what is seen.
template <class Element, class Sum>
struct attention_tensors {
  Element const* query;
  Element const* key_value;
  Element* output;
  Sum* log_sum_exp; //!< [heads, tokens]
};
//! The gradients of these. Those of keys and values grow, for all that is seen.
template <class Element, class Sum>
struct attention_gradients {
  Element const* output;
  Element* query;
  Sum* key_value;
};

//! A chunk that attends to some tokens, and how its tensors lie: queries [tokens, heads, head dim],
//! keys and values [seen, 2, key heads, head dim].
struct attending {
  model_size size;
  chunk_range chunk;
  chunk_range seen;

  [[nodiscard]] attention::parameters parameters() const {
    attention::parameters p;
    p.query_length = chunk.count();
    p.query_offset = chunk.begin;
    p.key_length = seen.count();
    p.key_offset = seen.begin;
    p.heads = size.heads;
    p.key_heads = size.key_heads;
    p.head_dim = size.head_dim();
    return p;
  }
  template <class Element, class Sum>
  [[nodiscard]] attention::forward_tensors<Element>
  forward_tensors(attention_tensors<Element, Sum> const& of) const {
    return {queries(of.query),
            keys(of.key_value),
            keys(of.key_value + size.key_width()),
            queries(of.output),
            rows(of.log_sum_exp)};
  }
  template <class Element, class Sum>
  [[nodiscard]] attention::backward_tensors<Element>
  backward_tensors(attention_tensors<Element, Sum> const& of,
                   attention_gradients<Element, Sum> const& to) const {
    return {queries(of.query),
            keys(of.key_value),
            keys(of.key_value + size.key_width()),
            queries<Element const>(of.output),
            rows<Sum const>(of.log_sum_exp),
            queries(to.output),
            queries(to.query),
            keys(to.key_value),
            keys(to.key_value + size.key_width())};
  }

private:
  template <class Element>
  [[nodiscard]] attention::tensor_view<Element> queries(Element* data) const {
    return attention::dense_tensor(data, 1, chunk.count(), size.heads, size.head_dim());
  }
  template <class Element>
  [[nodiscard]] attention::tensor_view<Element> keys(Element* data) const {
    auto view = attention::dense_tensor(data, 1, seen.count(), size.key_heads, size.head_dim());
    view.length_stride = 2 * size.key_width();
    return view;
  }
  template <class Element>
  [[nodiscard]] attention::row_view<Element> rows(Element* data) const {
    return attention::dense_rows(data, 1, size.heads, chunk.count());
  }
};

//! Attention at work on a chunk.
template <class Number>
struct attention_place {
  chunk_range chunk;
  chunk_range seen;
  Number const* key_value; //!< of what is seen
  Number* kept;            //!< by attention_part, [kept_numbers]
  scratch<Number>* space;
};

//! Attention, which has no weights. What it keeps begins with its query, so that whoever makes that
//! can write it there, and goes on with its output and log-sum-exp.
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

  [[gnu::noinline]] void forward(attention_place<Number> const& at) const {
    attending const call{size_, at.chunk, at.seen};
    attention::forward(call.parameters(),
                       call.forward_tensors(tensors(at)),
                       attention::causal{},
                       attention::plain{},
                       at.space->attention_space);
  }
  //! @param to the gradient of the query is of zeros before
  //! @pre output and log-sum-exp in what is kept are of all keys
  [[gnu::noinline]] void backward(attention_place<Number> const& at,
                                  attention_gradients<Number, Number> const& to) const {
    attending const call{size_, at.chunk, at.seen};
    attention::backward(call.parameters(),
                        call.backward_tensors(tensors(at), to),
                        attention::causal{},
                        attention::plain{},
                        at.space->attention_space);
  }

private:
  [[nodiscard]] attention_tensors<Number, Number> tensors(attention_place<Number> const& at) const {
    Number* const out = output(at.kept, at.chunk.count());
    return {at.kept, at.key_value, out, out + at.chunk.count() * size_.width};
  }

  model_size size_;
};

template <class Number>
class mlp {
public:
  using place = part_place<Number>;

  mlp(model_size const& size, std::uint64_t seed, std::int64_t layer, shard_of_stage which = {})
      : width_(size.width), hidden_(size.hidden() / which.of), norm_(width_),
        up_({seed, layer, 3}, width_, size.hidden(), detail::deviation(size)),
        down_({seed, layer, 4}, size.hidden(), width_, detail::residual_deviation(size)) {
    if (which.of > 1) {
      auto const mine = which.share(size.hidden());
      up_ = detail::cut_matrix(up_, size.hidden(), 1, {0, width_}, mine);
      down_ = detail::cut_matrix(down_, width_, 1, mine, {0, width_});
    }
  }

  [[nodiscard]] static part_numbers
  numbers(model_size const& size, shard_of_stage which, std::int64_t tokens) {
    return {layer_norm<Number>::kept_numbers(size.width, tokens) +
              tokens * 2 * size.hidden() / which.of,
            tokens * size.width};
  }

  //! Adds to y [tokens, width], which may be x.
  void forward(Number const* x, Number* y, place const& at) const {
    auto const u = lay_out(at);
    norm_.normalise(x, at.kept, at.tokens);
    std::fill_n(u.inner, at.tokens * hidden_, Number{0});
    up_.add_forward(detail::normal_again(norm_, at), u.inner, hidden_, at.tokens);
    gelu(u.inner, u.outer, at.tokens * hidden_);
    down_.add_forward(u.outer, y, width_, at.tokens);
  }
  //! Adds to the gradient of what the norm gives.
  //! @param dy the gradient of what the layer hands on
  void backward_input(Number const* dy, Number* normal_gradient, place const& at) {
    auto const u = lay_out(at);
    std::copy_n(dy, at.tokens * width_, at.added);
    Number* const wide = at.space->zeros(at.tokens * hidden_);
    down_.add_backward_input(at.added, wide, at.tokens);
    gelu_backward(u.inner, wide, at.tokens * hidden_);
    up_.add_backward_input(u.inner, normal_gradient, at.tokens);
  }
  //! Adds what that gives, of shards the sum over all, to dx.
  void join(Number const* normal_gradient, Number* dx, place const& at) {
    norm_.add_backward(normal_gradient, at.kept, dx, at.tokens);
  }
  void backward_weight(place const& at) {
    auto const u = lay_out(at);
    up_.add_backward_weight(detail::normal_again(norm_, at), u.inner, at.tokens);
    down_.add_backward_weight(u.outer, at.added, at.tokens);
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    visit(norm_.gain);
    visit(up_.weight);
    visit(down_.weight);
  }
  template <class Visit>
  void for_each_matrix(Visit visit) {
    visit(up_);
    visit(down_);
  }

private:
  //! What is kept behind that of the norm. backward_input replaces `inner` by its gradient.
  struct kept_state {
    Number* inner; //!< [tokens, own hidden], before GELU
    Number* outer; //!< [tokens, own hidden], after GELU
  };
  [[nodiscard]] kept_state lay_out(place const& at) const {
    Number* const inner = at.kept + layer_norm<Number>::kept_numbers(width_, at.tokens);
    return {inner, inner + at.tokens * hidden_};
  }

  std::int64_t width_;
  std::int64_t hidden_;
  layer_norm<Number> norm_;
  linear<Number> up_;
  linear<Number> down_;
};

//! The projection of attention's output onto the residual, and the MLP after it.
template <class Number>
class after_attention {
public:
  using place = part_place<Number>;

  after_attention(model_size const& size, std::uint64_t seed, std::int64_t layer)
      : width_(size.width),
        projection_({seed, layer, 2}, width_, width_, detail::residual_deviation(size)),
        mlp_(size, seed, layer) {}

  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size, std::int64_t tokens) {
    return mlp<Number>::numbers(size, {}, tokens).kept;
  }
  //! Numbers that its backward for the input makes for that of the weights.
  [[nodiscard]] static std::int64_t added_numbers(model_size const& size, std::int64_t tokens) {
    return tokens * 2 * size.width;
  }

  //! x [tokens, width], the residual, becomes the layer's output.
  //! @param output of attention, [tokens, width]
  void forward(Number const* output, Number* x, place const& at) const {
    projection_.add_forward(output, x, width_, at.tokens);
    mlp_.forward(x, x, at);
  }

  //! dx [tokens, width], the gradient of the layer's output, becomes that of the residual.
  void backward_input(Number* dx, place const& at) {
    Number* const normal_gradient = at.space->more_zeros(at.tokens * width_);
    mlp_.backward_input(dx, normal_gradient, at);
    mlp_.join(normal_gradient, dx, at);
    std::copy_n(dx, at.tokens * width_, residual_gradient(at));
  }
  //! After it: adds to the gradient of attention's output.
  void add_output_gradient(Number* gradient, place const& at) const {
    projection_.add_backward_input(residual_gradient(at), gradient, at.tokens);
  }
  void add_backward_weight(Number const* output, place const& at) {
    projection_.add_backward_weight(output, residual_gradient(at), at.tokens);
    mlp_.backward_weight(at);
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    visit(projection_.weight);
    mlp_.for_each_parameter(visit);
  }
  template <class Visit>
  void for_each_matrix(Visit visit) {
    visit(projection_);
    mlp_.for_each_matrix(visit);
  }

private:
  [[nodiscard]] Number* residual_gradient(place const& at) const {
    return at.added + at.tokens * width_;
  }

  std::int64_t width_;
  linear<Number> projection_;
  mlp<Number> mlp_;
};

} // namespace gpt
