// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A shard of a stage that is cut tensor-parallel. Its passes go in steps, half a layer
//! each, with a sum over all shards after each step: whoever runs them can do something else
//! meanwhile.
//!
//! Every pass of a half ends with a part of [tokens, width] numbers: the sum over all shards is
//! what the whole half gives. A norm is whole on all shards, and gets the same gradient there.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../embedding.hpp"
#include "../layer.hpp"
#include "../text.hpp"

namespace gpt {

//! Norm, and some heads: query, keys and values, attention, their part of the projection. The other
//! half of a layer is `mlp`, with functions of the same names.
class attention_shard {
public:
  using place = part_place<float>;

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

  [[nodiscard]] static part_numbers
  numbers(model_size const& size, shard_of_stage which, std::int64_t tokens) {
    auto const own = size_of_shard(size, which);
    auto const keys = tokens * 2 * own.key_width();
    return {before_attention<float>::kept_numbers(size, tokens) + keys +
              attention_part<float>::kept_numbers(own, tokens),
            tokens * size.width + keys};
  }

  //! @param x [tokens, width]. @param part [tokens, width], zeros before
  void forward(float const* x, float* part, place const& at) {
    auto const u = lay_out(at);
    chunk_range const all{0, at.tokens};
    before_.forward(x, u.attention, u.key_value, at);
    attention_.forward({all, all, u.key_value, u.attention, at.space});
    float const* const output = attention_.output(u.attention, at.tokens);
    projection_.add_forward(output, part, size_.width, at.tokens);
  }
  //! @param dx the gradient of what the layer hands on. @param part of that of the norm's output
  void backward_input(float const* dx, float* part, place const& at) {
    auto const u = lay_out(at);
    auto const tokens = at.tokens;
    chunk_range const all{0, tokens};
    float* const key_gradient = at.added + tokens * size_.width;
    std::copy_n(dx, tokens * size_.width, at.added);
    std::fill_n(key_gradient, tokens * 2 * own_.key_width(), 0.0F);
    float* const output_gradient = at.space->zeros(2 * tokens * own_.width);
    float* const query_gradient = output_gradient + tokens * own_.width;
    projection_.add_backward_input(at.added, output_gradient, tokens);
    attention_.backward({all, all, u.key_value, u.attention, at.space},
                        {output_gradient, query_gradient, key_gradient});
    std::copy_n(query_gradient, tokens * own_.width, u.attention);
    before_.backward_products(u.attention, key_gradient, part, tokens);
  }
  //! After the sum over all shards.
  void join(float const* sum, float* dx, place const& at) { before_.join(sum, dx, at); }
  void backward_weight(place const& at) {
    auto const u = lay_out(at);
    float const* const output = attention_.output(u.attention, at.tokens);
    projection_.add_backward_weight(output, at.added, at.tokens);
    before_.add_backward_weight(u.attention, at.added + at.tokens * size_.width, at);
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
  [[nodiscard]] kept_state lay_out(place const& at) const {
    float* const key_value = at.kept + before_attention<float>::kept_numbers(size_, at.tokens);
    return {key_value, key_value + at.tokens * 2 * own_.key_width()};
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

  [[nodiscard]] static part_numbers
  numbers(model_size const& size, layer_range const& layers, shard_of_stage which) {
    auto const one = attention_shard::numbers(size, which, size.sequence);
    auto const other = mlp<float>::numbers(size, which, size.sequence);
    auto const count = layers.last - layers.first;
    return {count * (one.kept + other.kept) +
              (layers.ends ? head<float>::kept_numbers(size, size.sequence) : 0),
            count * (one.added + other.added)};
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
    auto const share = 1.0F / static_cast<float>(microbatches_ * size_.sequence);
    if (now.kind == forward && ends_.first != nullptr)
      ends_.first->forward(bytes, {0, size_.sequence}, now.numbers.data());
    else if (now.kind != forward && ends_.last != nullptr)
      ends_.last->backward_input(at_head(now), bytes + 1, share, now.numbers.data());
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
    at(now, step, [&](auto& half, part_place<float> const& place) {
      if (now.kind == forward)
        half.forward(x, part, place);
      else
        half.backward_input(x, part, place);
    });
  }
  void join(shard_pass& now, std::int64_t step, std::vector<float> const& sum) {
    if (now.kind == pipelining::pass_kind::forward) {
      for (std::size_t i = 0; i < sum.size(); ++i)
        now.numbers[i] += sum[i];
      return;
    }
    at(now, step, [&](auto& half, part_place<float> const& place) {
      half.join(sum.data(), now.numbers.data(), place);
    });
  }
  //! What a fused backward pass does beside a step.
  void add_weights(shard_pass const& now, std::int64_t step) {
    at(now, step, [](auto& half, part_place<float> const& place) { half.backward_weight(place); });
  }

  //! @param out not written where there is none
  void end(shard_pass& now, float* out) {
    using enum pipelining::pass_kind;
    if (ends_.last != nullptr && (now.kind == backward || now.kind == backward_weight))
      ends_.last->backward_weight(at_head(now));
    if (now.kind == backward_weight)
      return;
    auto const* const bytes = batch_->microbatch(now.microbatch);
    if (now.kind == forward && ends_.last != nullptr)
      ends_.last->forward(at_head(now),
                          bytes + 1,
                          now.numbers.data(),
                          ends_.losses.data() + now.microbatch * size_.sequence);
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
  //! Calls visit(half, its place) for the half layer of a step: backwards from the last one.
  template <class Visit>
  void at(shard_pass const& now, std::int64_t step, Visit visit) {
    auto const number = now.kind == pipelining::pass_kind::forward ? step : steps() - 1 - step;
    auto const layer = number / 2;
    bool const second = number % 2 == 1;
    auto const one = attention_shard::numbers(size_, which_, size_.sequence);
    auto const other = mlp<float>::numbers(size_, which_, size_.sequence);
    auto const place = [&](float* begin, std::int64_t part_numbers::*of) {
      auto const before = layer * (one.*of + other.*of) + (second ? one.*of : 0);
      return begin == nullptr ? nullptr : begin + before;
    };
    part_place<float> const here{size_.sequence,
                                 place(now.kept, &part_numbers::kept),
                                 place(now.added, &part_numbers::added),
                                 &memory_->space};
    if (second)
      visit(mlp_[static_cast<std::size_t>(layer)], here);
    else
      visit(attention_[static_cast<std::size_t>(layer)], here);
  }
  //! The head keeps what it does after the layers.
  [[nodiscard]] place_of_unit<float> at_head(shard_pass const& now) const {
    layer_range layers = layers_;
    layers.ends = false;
    auto const m = static_cast<std::size_t>(now.microbatch);
    float* const kept =
      now.kept == nullptr ? nullptr : now.kept + numbers(size_, layers, which_).kept;
    return {m, m, {0, size_.sequence}, kept, memory_};
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
