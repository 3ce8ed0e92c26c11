// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The two halves of a layer cut tensor-parallel: a shard has some heads of the attention,
//! and some of the hidden numbers of the MLP.
//!
//! Every pass of a half ends with a part of [tokens, width] numbers: the sum over all shards is
//! what the whole half gives. A norm is whole on all shards, and gets the same gradient there.

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "layer_parts.hpp"
#include "layers.hpp"
#include "model.hpp"

namespace gpt {

//! The heads of a shard as a model of their own.
[[nodiscard]] inline model_size size_of_shard(model_size size, shard_of_stage which) {
  size.width /= which.of;
  size.heads /= which.of;
  size.key_heads /= which.of;
  return size;
}

//! Rows and columns of a matrix of the whole model, which starts with the same numbers wherever it
//! is cut.
//! @param columns ranges behind each other
[[nodiscard]] inline linear<float> cut_matrix(parameter_name const& name,
                                              std::int64_t outputs,
                                              double deviation,
                                              std::int64_t inputs,
                                              chunk_range rows,
                                              std::initializer_list<chunk_range> columns) {
  linear<float> const whole(name, inputs, outputs, deviation);
  std::int64_t width = 0;
  for (chunk_range const& each : columns) {
    width += each.count();
  }
  linear<float> part({}, rows.count(), width, 1.0);
  auto to = part.weight.value.begin();
  for (auto row = rows.begin; row < rows.end; ++row) {
    for (chunk_range const& each : columns) {
      to = std::copy_n(whole.weight.value.begin() + row * outputs + each.begin, each.count(), to);
    }
  }
  part.refresh();
  return part;
}

//! Norm, and some heads: query, keys and values, attention, their part of the projection.
class attention_shard {
public:
  attention_shard(model_size const& size,
                  std::uint64_t seed,
                  std::int64_t layer,
                  shard_of_stage which)
      : size_(size), own_(size_of_shard(size, which)), norm_(size.width), attention_(own_),
        query_(cut_matrix({seed, layer, 0},
                          size.width,
                          detail::deviation(size),
                          size.width,
                          {0, size.width},
                          {which.share(size.width)})),
        key_value_(cut_matrix({seed, layer, 1},
                              2 * size.key_width(),
                              detail::deviation(size),
                              size.width,
                              {0, size.width},
                              {which.share(size.key_width()), values(size, which)})),
        projection_(cut_matrix({seed, layer, 2},
                               size.width,
                               detail::residual_deviation(size),
                               size.width,
                               which.share(size.width),
                               {{0, size.width}})) {}

  //! Numbers that forward keeps of a unit, and that backward_input keeps beside.
  [[nodiscard]] static std::int64_t
  kept_numbers(model_size const& size, shard_of_stage which, std::int64_t tokens) {
    auto const own = size_of_shard(size, which);
    return tokens * (size.width + 1 + 2 * own.key_width()) +
           attention_part<float>::kept_numbers(own, tokens);
  }
  [[nodiscard]] static std::int64_t
  added_numbers(model_size const& size, shard_of_stage which, std::int64_t tokens) {
    return tokens * (size.width + 2 * size_of_shard(size, which).key_width());
  }

  //! @param x [tokens, width]. @param part [tokens, width], zeros before
  void
  forward(float const* x, float* part, std::int64_t tokens, float* kept, scratch<float>& space) {
    auto const u = lay_out(kept, tokens);
    norm_.normalise(x, u.normal, u.inverse, tokens);
    float* const normal = space.zeros(tokens * size_.width);
    norm_.apply_gain(u.normal, normal, tokens);
    std::fill_n(u.key_value, tokens * 2 * own_.key_width(), 0.0F);
    std::fill_n(u.attention, tokens * own_.width, 0.0F);
    query_.add_forward(normal, u.attention, own_.width, tokens);
    key_value_.add_forward(normal, u.key_value, 2 * own_.key_width(), tokens);
    attention_.forward({0, tokens}, u.key_value, u.attention, space);
    projection_.add_forward(attention_.output(u.attention, tokens), part, size_.width, tokens);
  }
  //! @param dx the gradient of what the layer hands on. @param part of that of the norm's output
  void backward_input(float const* dx,
                      float* part,
                      std::int64_t tokens,
                      float* kept,
                      float* added,
                      scratch<float>& space) {
    auto const u = lay_out(kept, tokens);
    float* const key_gradient = added + tokens * size_.width;
    std::copy_n(dx, tokens * size_.width, added);
    std::fill_n(key_gradient, tokens * 2 * own_.key_width(), 0.0F);
    float* const output_gradient = space.zeros(2 * tokens * own_.width);
    float* const query_gradient = output_gradient + tokens * own_.width;
    projection_.add_backward_input(added, output_gradient, tokens);
    attention_.backward(
      {0, tokens}, u.key_value, output_gradient, query_gradient, key_gradient, u.attention, space);
    std::copy_n(query_gradient, tokens * own_.width, u.attention);
    query_.add_backward_input(u.attention, part, tokens);
    key_value_.add_backward_input(key_gradient, part, tokens);
  }
  //! Behind the sum over all shards.
  void join(float const* sum, float* dx, std::int64_t tokens, float* kept) {
    auto const u = lay_out(kept, tokens);
    norm_.add_backward(sum, u.normal, u.inverse, dx, tokens);
  }
  void
  backward_weight(std::int64_t tokens, float* kept, float const* added, scratch<float>& space) {
    auto const u = lay_out(kept, tokens);
    projection_.add_backward_weight(attention_.output(u.attention, tokens), added, tokens);
    float* const normal = space.zeros(tokens * size_.width);
    norm_.apply_gain(u.normal, normal, tokens);
    query_.add_backward_weight(normal, u.attention, tokens);
    key_value_.add_backward_weight(normal, added + tokens * size_.width, tokens);
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    visit(norm_.gain);
    visit(query_.weight);
    visit(key_value_.weight);
    visit(projection_.weight);
  }
  void refresh() {
    query_.refresh();
    key_value_.refresh();
    projection_.refresh();
  }

private:
  //! What is kept, as tensors. backward_input replaces the query in `attention` by its gradient.
  struct kept_state {
    float* normal;    //!< [tokens, width]
    float* inverse;   //!< [tokens]
    float* key_value; //!< [tokens, 2, own key width]
    float* attention; //!< query, output, log-sum-exp
  };
  [[nodiscard]] kept_state lay_out(float* kept, std::int64_t tokens) const {
    float* const inverse = kept + tokens * size_.width;
    float* const key_value = inverse + tokens;
    return {kept, inverse, key_value, key_value + tokens * 2 * own_.key_width()};
  }
  //! Columns of the values, which stand behind those of all keys.
  [[nodiscard]] static chunk_range values(model_size const& size, shard_of_stage which) {
    auto const share = which.share(size.key_width());
    return {size.key_width() + share.begin, size.key_width() + share.end};
  }

  model_size size_;
  model_size own_;
  layer_norm<float> norm_;
  attention_part<float> attention_;
  linear<float> query_;
  linear<float> key_value_;
  linear<float> projection_;
};

//! Norm, and some of the hidden numbers.
class mlp_shard {
public:
  mlp_shard(model_size const& size, std::uint64_t seed, std::int64_t layer, shard_of_stage which)
      : size_(size), hidden_(size.hidden() / which.of), norm_(size.width),
        up_(cut_matrix({seed, layer, 3},
                       size.hidden(),
                       detail::deviation(size),
                       size.width,
                       {0, size.width},
                       {which.share(size.hidden())})),
        down_(cut_matrix({seed, layer, 4},
                         size.width,
                         detail::residual_deviation(size),
                         size.hidden(),
                         which.share(size.hidden()),
                         {{0, size.width}})) {}

  [[nodiscard]] static std::int64_t
  kept_numbers(model_size const& size, shard_of_stage which, std::int64_t tokens) {
    return tokens * (size.width + 1 + 2 * size.hidden() / which.of);
  }
  [[nodiscard]] static std::int64_t
  added_numbers(model_size const& size, shard_of_stage, std::int64_t tokens) {
    return tokens * size.width;
  }

  void
  forward(float const* x, float* part, std::int64_t tokens, float* kept, scratch<float>& space) {
    auto const u = lay_out(kept, tokens);
    norm_.normalise(x, u.normal, u.inverse, tokens);
    float* const normal = space.zeros(tokens * size_.width);
    norm_.apply_gain(u.normal, normal, tokens);
    std::fill_n(u.inner, tokens * hidden_, 0.0F);
    up_.add_forward(normal, u.inner, hidden_, tokens);
    gelu(u.inner, u.outer, tokens * hidden_);
    down_.add_forward(u.outer, part, size_.width, tokens);
  }
  void backward_input(float const* dx,
                      float* part,
                      std::int64_t tokens,
                      float* kept,
                      float* added,
                      scratch<float>& space) {
    auto const u = lay_out(kept, tokens);
    std::copy_n(dx, tokens * size_.width, added);
    float* const wide = space.zeros(tokens * hidden_);
    down_.add_backward_input(added, wide, tokens);
    gelu_backward(u.inner, wide, tokens * hidden_);
    up_.add_backward_input(u.inner, part, tokens);
  }
  void join(float const* sum, float* dx, std::int64_t tokens, float* kept) {
    auto const u = lay_out(kept, tokens);
    norm_.add_backward(sum, u.normal, u.inverse, dx, tokens);
  }
  void
  backward_weight(std::int64_t tokens, float* kept, float const* added, scratch<float>& space) {
    auto const u = lay_out(kept, tokens);
    float* const normal = space.zeros(tokens * size_.width);
    norm_.apply_gain(u.normal, normal, tokens);
    up_.add_backward_weight(normal, u.inner, tokens);
    down_.add_backward_weight(u.outer, added, tokens);
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    visit(norm_.gain);
    visit(up_.weight);
    visit(down_.weight);
  }
  void refresh() {
    up_.refresh();
    down_.refresh();
  }

private:
  //! What is kept, as tensors. backward_input replaces `inner` by its gradient.
  struct kept_state {
    float* normal;  //!< [tokens, width]
    float* inverse; //!< [tokens]
    float* inner;   //!< [tokens, own hidden], before GELU
    float* outer;   //!< [tokens, own hidden], after GELU
  };
  [[nodiscard]] kept_state lay_out(float* kept, std::int64_t tokens) const {
    float* const inverse = kept + tokens * size_.width;
    float* const inner = inverse + tokens;
    return {kept, inverse, inner, inner + tokens * hidden_};
  }

  model_size size_;
  std::int64_t hidden_;
  layer_norm<float> norm_;
  linear<float> up_;
  linear<float> down_;
};

} // namespace gpt
