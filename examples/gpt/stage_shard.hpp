// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A shard of a stage. Its passes go in steps, half a layer each, with a sum over all shards
//! behind each step: whoever runs them can do something else meanwhile.

#include <pipe/flow/pass.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "adamw.hpp"
#include "embedding.hpp"
#include "model.hpp"
#include "shard_layers.hpp"
#include "stage.hpp"
#include "tensor_parts.hpp"
#include "text.hpp"

namespace gpt {

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
      : size_(size), layers_(layers), which_(which), microbatches_(microbatches), memory_(&memory) {
    for (auto layer = layers.first; layer < layers.last; ++layer) {
      attention_.emplace_back(size, seed, layer, which);
      mlp_.emplace_back(size, seed, layer, which);
    }
    if (layers.embeds) {
      embedding_ = std::make_unique<embedding<float>>(size, seed);
    }
    if (layers.ends) {
      head_ = std::make_unique<head<float>>(size, seed, microbatches);
      losses_.resize(static_cast<std::size_t>(microbatches * size.sequence));
    }
  }

  [[nodiscard]] static std::int64_t
  kept_numbers(model_size const& size, layer_range const& layers, shard_of_stage which) {
    auto const tokens = size.sequence;
    return (layers.last - layers.first) * (attention_shard::kept_numbers(size, which, tokens) +
                                           mlp_shard::kept_numbers(size, which, tokens)) +
           (layers.ends ? head<float>::kept_numbers(size, tokens) : 0);
  }
  [[nodiscard]] static std::int64_t
  added_numbers(model_size const& size, layer_range const& layers, shard_of_stage which) {
    auto const tokens = size.sequence;
    return (layers.last - layers.first) * (attention_shard::added_numbers(size, which, tokens) +
                                           mlp_shard::added_numbers(size, which, tokens));
  }

  //! Sets the bytes to learn from; they must stay until the step ends.
  void set_batch(batch const& pieces) { batch_ = &pieces; }

  //! Steps of a pass.
  [[nodiscard]] std::int64_t steps() const { return 2 * (layers_.last - layers_.first); }

  //! @param in activation or gradient [tokens, width]; not read where there is none
  void begin(shard_pass& now, float const* in) {
    using enum pipelining::pass_kind;
    auto const count = static_cast<std::size_t>(size_.sequence * size_.width);
    if (now.kind == backward_weight) {
      return;
    }
    now.numbers.resize(count);
    now.part.resize(count);
    if (now.kind == forward && embedding_ != nullptr) {
      embedding_->forward(
        batch_->microbatch(now.microbatch), {0, size_.sequence}, now.numbers.data());
    } else if (now.kind != forward && head_ != nullptr) {
      head_->backward_input(static_cast<std::size_t>(now.microbatch),
                            batch_->microbatch(now.microbatch) + 1,
                            size_.sequence,
                            1.0F / static_cast<float>(microbatches_ * size_.sequence),
                            now.numbers.data(),
                            head_part(now.kept),
                            memory_->pool,
                            memory_->space.numbers);
    } else {
      std::copy_n(in, count, now.numbers.begin());
    }
  }

  //! A step up to its sum: `part` is what this shard gives to it. Of gradients of weights all of
  //! it.
  void compute(shard_pass& now, std::int64_t step) {
    using enum pipelining::pass_kind;
    if (now.kind == backward_weight) {
      add_weights(now, step);
      return;
    }
    std::fill(now.part.begin(), now.part.end(), 0.0F);
    at(now, step, [&](auto& half, float* kept, float* added) {
      if (now.kind == forward) {
        half.forward(now.numbers.data(), now.part.data(), size_.sequence, kept, memory_->space);
      } else {
        half.backward_input(
          now.numbers.data(), now.part.data(), size_.sequence, kept, added, memory_->space);
      }
    });
  }
  //! The rest of a step.
  void join(shard_pass& now, std::int64_t step, std::vector<float> const& sum) {
    if (now.kind == pipelining::pass_kind::forward) {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        now.numbers[i] += sum[i];
      }
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
    auto& space = memory_->space.numbers;
    if (head_ != nullptr && (now.kind == backward || now.kind == backward_weight)) {
      head_->backward_weight(m, size_.sequence, space);
    }
    if (now.kind == backward_weight) {
      return;
    }
    if (now.kind == forward && head_ != nullptr) {
      head_->forward(m,
                     batch_->microbatch(now.microbatch) + 1,
                     size_.sequence,
                     now.numbers.data(),
                     losses_.data() + now.microbatch * size_.sequence,
                     head_part(now.kept),
                     memory_->pool,
                     space);
    } else if (now.kind != forward && embedding_ != nullptr) {
      embedding_->backward(
        batch_->microbatch(now.microbatch), {0, size_.sequence}, now.numbers.data());
    } else {
      std::copy(now.numbers.begin(), now.numbers.end(), out);
    }
  }

  //! Mean loss of the tokens of the step, in nats; for the last stage.
  [[nodiscard]] double loss() const {
    double sum = 0;
    for (float const x : losses_) {
      sum += static_cast<double>(x);
    }
    return sum / static_cast<double>(losses_.size());
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    if (embedding_ != nullptr) {
      visit(embedding_->bytes);
      visit(embedding_->positions);
    }
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      attention_[i].for_each_parameter(visit);
      mlp_[i].for_each_parameter(visit);
    }
    if (head_ != nullptr) {
      visit(head_->norm.gain);
      visit(head_->out.weight);
    }
  }
  //! What these are in the whole model.
  [[nodiscard]] std::vector<tensor_part> parts() const { return parts_of(size_, layers_, which_); }
  //! One step of the optimizer.
  void update(adamw const& optimizer, std::int64_t step) {
    for_each_parameter([&](parameter<float>& p) { optimizer.update(p, step); });
    refresh();
  }
  //! After its weights have changed.
  void refresh() {
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      attention_[i].refresh();
      mlp_[i].refresh();
    }
    if (head_ != nullptr) {
      head_->out.refresh();
    }
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
      place(now.kept, kept, kept + mlp_shard::kept_numbers(size_, which_, tokens));
    float* const beside =
      place(now.added, added, added + mlp_shard::added_numbers(size_, which_, tokens));
    if (second) {
      visit(mlp_[static_cast<std::size_t>(layer)], here, beside);
    } else {
      visit(attention_[static_cast<std::size_t>(layer)], here, beside);
    }
  }
  //! Of the head, behind the layers.
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
  std::unique_ptr<embedding<float>> embedding_;
  std::vector<attention_shard> attention_;
  std::vector<mlp_shard> mlp_;
  std::unique_ptr<head<float>> head_;
  std::vector<float> losses_; // [microbatches, sequence]
};

} // namespace gpt
