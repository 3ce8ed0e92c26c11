// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A shard of a stage that is cut tensor-parallel. Its passes go in steps, half a layer
//! each, with a sum over all shards after each step: whoever runs them can do something else
//! meanwhile.
//!
//! Every pass of a half ends with a part of [tokens, width] numbers: the sum over all shards is
//! what the whole half gives. A norm is whole on all shards, and gets the same gradient there.

#include <pipe/flow/pass.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../embedding.hpp"
#include "../layer.hpp"
#include "../layers.hpp"
#include "../memory.hpp"
#include "../model.hpp"
#include "../parameter.hpp"
#include "../text.hpp"

namespace gpt {

//! Norm, and some heads: query, keys and values, attention, their part of the projection. The other
//! half of a layer is `mlp`, with functions of the same names.
class attention_shard {
public:
  attention_shard(model_size const& size,
                  std::uint64_t seed,
                  std::int64_t layer,
                  shard_of_stage which)
      : size_(size), own_(size_of_shard(size, which)), before_(size, seed, layer, which),
        attention_(own_),
        projection_(detail::cut_matrix(
          linear<float>({seed, layer, 2}, size.width, size.width, detail::residual_deviation(size)),
          size.width,
          1,
          which.share(size.width),
          {0, size.width})) {}

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
    chunk_range const all{0, tokens};
    before_.forward(x, u.attention, u.key_value, tokens, kept, space);
    attention_.forward(all, all, u.key_value, u.attention, space);
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
    chunk_range const all{0, tokens};
    float* const key_gradient = added + tokens * size_.width;
    std::copy_n(dx, tokens * size_.width, added);
    std::fill_n(key_gradient, tokens * 2 * own_.key_width(), 0.0F);
    float* const output_gradient = space.zeros(2 * tokens * own_.width);
    float* const query_gradient = output_gradient + tokens * own_.width;
    projection_.add_backward_input(added, output_gradient, tokens);
    attention_.backward(
      all, all, u.key_value, output_gradient, query_gradient, key_gradient, u.attention, space);
    std::copy_n(query_gradient, tokens * own_.width, u.attention);
    before_.backward_products(u.attention, key_gradient, part, tokens);
  }
  //! After the sum over all shards.
  void join(float const* sum, float* dx, std::int64_t tokens, float* kept) {
    before_.join(sum, dx, tokens, kept);
  }
  void
  backward_weight(std::int64_t tokens, float* kept, float const* added, scratch<float>& space) {
    auto const u = lay_out(kept, tokens);
    projection_.add_backward_weight(attention_.output(u.attention, tokens), added, tokens);
    before_.add_backward_weight(u.attention, added + tokens * size_.width, tokens, kept, space);
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    before_.for_each_parameter(visit);
    visit(projection_.weight);
  }
  template <class Visit>
  void for_each_matrix(Visit visit) {
    before_.for_each_matrix(visit);
    visit(projection_);
  }

private:
  //! What is kept after that of the norm. backward_input replaces the query by its gradient.
  struct kept_state {
    float* key_value; //!< [tokens, 2, own key width]
    float* attention; //!< query, output, log-sum-exp
  };
  [[nodiscard]] kept_state lay_out(float* kept, std::int64_t tokens) const {
    float* const key_value = kept + before_attention<float>::kept_numbers(size_, tokens);
    return {key_value, key_value + tokens * 2 * own_.key_width()};
  }

  model_size size_;
  model_size own_;
  before_attention<float> before_;
  attention_part<float> attention_;
  linear<float> projection_;
};

//! A pass of a shard that is under way.
struct shard_pass {
  pipelining::pass_kind kind{};
  std::int64_t microbatch = 0;
  float* kept = nullptr;        //!< from forward to the end of its backward
  float* added = nullptr;       //!< from the gradients of inputs to those of weights
  std::vector<float> numbers{}; //!< [tokens, width]: activation, or gradient
  std::vector<float> part{};    //!< [tokens, width]: this shard's part of the next sum
};

//! A shard of consecutive layers. Embedding and head are whole on all shards of a stage that has
//! them.
class stage_shard {
public:
  stage_shard(model_size const& size,
              layer_range const& layers,
              std::int64_t microbatches,
              std::uint64_t seed,
              shard_of_stage which,
              device_memory<float>& memory)
      : size_(size), layers_(layers), which_(which), microbatches_(microbatches), memory_(&memory),
        ends_(size, layers, seed, microbatches, microbatches) {
    for (auto layer = layers.first; layer < layers.last; ++layer) {
      attention_.emplace_back(size, seed, layer, which);
      mlp_.emplace_back(size, seed, layer, which);
    }
  }

  [[nodiscard]] static std::int64_t
  kept_numbers(model_size const& size, layer_range const& layers, shard_of_stage which) {
    auto const tokens = size.sequence;
    return (layers.last - layers.first) * (attention_shard::kept_numbers(size, which, tokens) +
                                           mlp<float>::kept_numbers(size, which, tokens)) +
           (layers.ends ? head<float>::kept_numbers(size, tokens) : 0);
  }
  [[nodiscard]] static std::int64_t
  added_numbers(model_size const& size, layer_range const& layers, shard_of_stage which) {
    auto const tokens = size.sequence;
    return (layers.last - layers.first) * (attention_shard::added_numbers(size, which, tokens) +
                                           mlp<float>::added_numbers(size, which, tokens));
  }

  void set_batch(batch const& pieces) { batch_ = &pieces; }

  [[nodiscard]] std::int64_t steps() const { return 2 * (layers_.last - layers_.first); }

  //! @param in activation or gradient [tokens, width]; not read where there is none
  void begin(shard_pass& now, float const* in) {
    using enum pipelining::pass_kind;
    auto const count = static_cast<std::size_t>(size_.sequence * size_.width);
    if (now.kind == backward_weight)
      return;
    now.numbers.resize(count);
    now.part.resize(count);
    auto const* const bytes = batch_->microbatch(now.microbatch);
    if (now.kind == forward && ends_.first != nullptr)
      ends_.first->forward(bytes, {0, size_.sequence}, now.numbers.data());
    else if (now.kind != forward && ends_.last != nullptr)
      ends_.last->backward_input(static_cast<std::size_t>(now.microbatch),
                                 bytes + 1,
                                 size_.sequence,
                                 1.0F / static_cast<float>(microbatches_ * size_.sequence),
                                 now.numbers.data(),
                                 head_part(now.kept),
                                 *memory_);
    else
      std::copy_n(in, count, now.numbers.begin());
  }

  //! A step up to its sum: `part` is what this shard gives to it. Of gradients of weights all of
  //! it.
  void compute(shard_pass& now, std::int64_t step) {
    using enum pipelining::pass_kind;
    if (now.kind == backward_weight)
      return add_weights(now, step);
    std::fill(now.part.begin(), now.part.end(), 0.0F);
    float const* const x = now.numbers.data();
    float* const part = now.part.data();
    at(now, step, [&](auto& half, float* kept, float* added) {
      if (now.kind == forward)
        half.forward(x, part, size_.sequence, kept, memory_->space);
      else
        half.backward_input(x, part, size_.sequence, kept, added, memory_->space);
    });
  }
  void join(shard_pass& now, std::int64_t step, std::vector<float> const& sum) {
    if (now.kind == pipelining::pass_kind::forward) {
      for (std::size_t i = 0; i < sum.size(); ++i)
        now.numbers[i] += sum[i];
      return;
    }
    at(now, step, [&](auto& half, float* kept, float*) {
      half.join(sum.data(), now.numbers.data(), size_.sequence, kept);
    });
  }
  //! What a fused backward pass does beside a step.
  void add_weights(shard_pass const& now, std::int64_t step) {
    at(now, step, [&](auto& half, float* kept, float* added) {
      half.backward_weight(size_.sequence, kept, added, memory_->space);
    });
  }

  //! @param out not written where there is none
  void end(shard_pass& now, float* out) {
    using enum pipelining::pass_kind;
    auto const m = static_cast<std::size_t>(now.microbatch);
    if (ends_.last != nullptr && (now.kind == backward || now.kind == backward_weight))
      ends_.last->backward_weight(m, size_.sequence, *memory_);
    if (now.kind == backward_weight)
      return;
    auto const* const bytes = batch_->microbatch(now.microbatch);
    if (now.kind == forward && ends_.last != nullptr)
      ends_.last->forward(m,
                          bytes + 1,
                          size_.sequence,
                          now.numbers.data(),
                          ends_.losses.data() + now.microbatch * size_.sequence,
                          head_part(now.kept),
                          *memory_);
    else if (now.kind != forward && ends_.first != nullptr)
      ends_.first->backward(bytes, {0, size_.sequence}, now.numbers.data());
    else
      std::copy(now.numbers.begin(), now.numbers.end(), out);
  }

  [[nodiscard]] double loss() const {
    return ends_.sum_of_losses() / static_cast<double>(ends_.losses.size());
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    ends_.for_each_parameter(visit, [&] {
      for (std::size_t i = 0; i < attention_.size(); ++i) {
        attention_[i].for_each_parameter(visit);
        mlp_[i].for_each_parameter(visit);
      }
    });
  }
  [[nodiscard]] std::vector<tensor_part> parts() const { return parts_of(size_, layers_, which_); }
  void update(adamw const& optimizer, std::int64_t step) {
    for_each_parameter([&](parameter<float>& p) { optimizer.update(p, step); });
    refresh();
  }
  void refresh() {
    auto const each = [](linear<float>& matrix) { matrix.refresh(); };
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      attention_[i].for_each_matrix(each);
      mlp_[i].for_each_matrix(each);
    }
    if (ends_.last != nullptr)
      each(ends_.last->out);
  }

private:
  //! Calls visit(half, kept, added) for the half layer of a step: backwards from the last one.
  template <class Visit>
  void at(shard_pass const& now, std::int64_t step, Visit visit) {
    auto const number = now.kind == pipelining::pass_kind::forward ? step : steps() - 1 - step;
    auto const layer = number / 2;
    bool const second = number % 2 == 1;
    auto const tokens = size_.sequence;
    auto const place = [&](float* begin, std::int64_t first, std::int64_t whole) {
      return begin == nullptr ? nullptr : begin + layer * whole + (second ? first : 0);
    };
    auto const kept = attention_shard::kept_numbers(size_, which_, tokens);
    auto const added = attention_shard::added_numbers(size_, which_, tokens);
    float* const here =
      place(now.kept, kept, kept + mlp<float>::kept_numbers(size_, which_, tokens));
    float* const beside =
      place(now.added, added, added + mlp<float>::added_numbers(size_, which_, tokens));
    if (second)
      visit(mlp_[static_cast<std::size_t>(layer)], here, beside);
    else
      visit(attention_[static_cast<std::size_t>(layer)], here, beside);
  }
  //! Of the head, after the layers.
  [[nodiscard]] float* head_part(float* kept) const {
    layer_range layers = layers_;
    layers.ends = false;
    return kept + kept_numbers(size_, layers, which_);
  }

  model_size size_;
  layer_range layers_;
  shard_of_stage which_;
  std::int64_t microbatches_;
  device_memory<float>* memory_;
  batch const* batch_ = nullptr;
  model_ends<float> ends_;
  std::vector<attention_shard> attention_;
  std::vector<mlp<float>> mlp_;
};

} // namespace gpt
