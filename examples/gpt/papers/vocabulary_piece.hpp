// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A piece of the GPT whose vocabulary is in shards: a shard at either end, or the layers of
//! a stage; how the model is cut, and what the shards tell each other.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "../slot_sizes.hpp"

namespace gpt {

//! How the model is cut: P shards of the embedding, then the stages of layers, then P shards of the
//! output layer, as with_vocabulary numbers them.
struct sharded_cut {
  std::int64_t shards = 1;
  std::int64_t stages = 1; //!< of layers
  int barriers = 2;        //!< those of with_vocabulary
  step_cut step;
};

//! How a timetable of a with_vocabulary schedule cuts the model.
[[nodiscard]] inline sharded_cut
cut_around(model_size const& size, pp::timetable_view table, int barriers) {
  int const shards = table.over.extents.devices;
  std::vector<std::int64_t> const lengths(static_cast<std::size_t>(table.over.extents.microbatches),
                                          size.sequence);
  return {shards, table.over.extents.stages() - 2 * shards, barriers, cut_for(table, lengths)};
}

[[nodiscard]] inline token_statistics join(std::span<float const* const> shards, std::int64_t t) {
  token_statistics all{shards[0][statistics_width * t], 0, 0};
  for (float const* const shard : shards)
    all.largest = std::max(all.largest, shard[statistics_width * t]);
  for (float const* const shard : shards) {
    float const* const one = shard + statistics_width * t;
    all.sum += one[1] * std::exp(one[0] - all.largest);
    all.next += one[2];
  }
  return all;
}

//! A piece of the model: a shard at either end, or layers between. What it reads of several others
//! comes as a list, in the order of the shards.
class sharded_piece {
public:
  using number = float;
  using inputs = std::span<float const* const>;

  sharded_piece(model_size const& size,
                std::int64_t which,
                sharded_cut cut,
                std::uint64_t seed,
                device_memory<float>& memory)
      : size_(size), cut_(std::move(cut)), memory_(&memory) {
    std::int64_t const stage = which - cut_.shards;
    if (stage < 0) {
      bytes_ = bytes_of_shard(which, cut_.shards);
      make_rows(seed);
    } else if (stage < cut_.stages) {
      auto layers = cut_layers(size.layers, cut_.stages)[static_cast<std::size_t>(stage)];
      held_ = layers;
      if (std::exchange(layers.embeds, false)) {
        positions_ = std::make_unique<parameter<float>>(
          random_parameter<float>({seed, -1, 1}, size.sequence * size.width, 0.1, false));
      }
      if (std::exchange(layers.ends, false))
        norm_ = std::make_unique<layer_norm<float>>(size.width);
      layers_ = std::make_unique<gpt::stage<float>>(size, layers, cut_.step, seed, memory);
    } else {
      bytes_ = bytes_of_shard(stage - cut_.stages, cut_.shards);
      make_columns(seed);
      losses_.resize(static_cast<std::size_t>(cut_.step.microbatches() * size.sequence));
    }
    kept_.resize(static_cast<std::size_t>(cut_.step.units()));
  }

  void set_batch(batch const& pieces) {
    batch_ = &pieces;
    if (layers_ != nullptr)
      layers_->set_batch(pieces);
  }

  //! Numbers that forward keeps of so many tokens up to the end of their backward; of layers, but
  //! for keys and values.
  [[nodiscard]] static std::int64_t kept_numbers(model_size const& size,
                                                 sharded_cut const& cut,
                                                 std::int64_t which,
                                                 std::int64_t tokens) {
    std::int64_t const stage = which - cut.shards;
    if (stage < 0)
      return 0;
    if (stage >= cut.stages)
      return tokens * (size.width + bytes_of_shard(stage - cut.stages, cut.shards).count());
    auto const layers = cut_layers(size.layers, cut.stages)[static_cast<std::size_t>(stage)];
    return kept_by_layers(size, layers, tokens) + (layers.ends ? tokens * (size.width + 1) : 0);
  }

  //! @param y what others read: an activation, or statistics [tokens, 3]
  //! @param early with one barrier, what is known of the gradient of the input, [tokens, 2 width]
  //! @param kept where to keep what backward needs, [kept_numbers]; null: in a buffer of the pool
  void forward(unit u, inputs from, float* y, float* early, float* kept = nullptr) {
    if (rows_ != nullptr) {
      look_up(u, y);
    } else if (columns_ != nullptr) {
      make_logits(u, from[0], y, early, kept);
    } else {
      add_up(u, from);
      layers_->forward(u, sum_.data(), norm_ != nullptr ? last_.data() : y, kept);
      if (norm_ != nullptr)
        normalise(u, y, kept);
    }
    memory_->pool.end_of_pass();
  }

  //! @param dx the gradient of the input; null for shards that have none to give
  void backward(unit u, inputs from, float* dx, float* kept = nullptr) {
    if (rows_ != nullptr) {
      add_to_rows(u, from[0]);
    } else if (columns_ != nullptr) {
      finish_logits(u, from, dx, kept);
    } else {
      backward_input(u, from, dx, kept);
      layers_->backward_weight(u);
    }
    memory_->pool.end_of_pass();
  }

  //! The half of a backward pass for the input; of layers.
  void backward_input(unit u, inputs from, float* dx, float* kept = nullptr) {
    auto const tokens = range(u).count();
    join_gradients(from, tokens);
    if (norm_ != nullptr) {
      float* const normal = norm_part(u, kept);
      std::swap(sum_, last_);
      std::fill_n(sum_.data(), tokens * size_.width, 0.0F);
      norm_->add_backward(last_.data(), normal, sum_.data(), tokens);
      kept_[index(u)].reset();
    }
    layers_->backward_input(u, sum_.data(), dx, kept);
    for (auto t = tokens; positions_ != nullptr && t-- > 0;) {
      float* const place = positions_->gradient.data() + (range(u).begin + t) * size_.width;
      for (std::int64_t d = 0; d < size_.width; ++d)
        place[d] += dx[t * size_.width + d];
    }
  }
  void backward_weight(unit u) { layers_->backward_weight(u); }

  //! Mean loss of the tokens of the step; of shards of the output layer, all the same.
  [[nodiscard]] double loss() const {
    double sum = 0;
    for (auto const x : losses_)
      sum += static_cast<double>(x);
    return sum / static_cast<double>(losses_.size());
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    if (rows_ != nullptr)
      visit(*rows_);
    if (positions_ != nullptr)
      visit(*positions_);
    if (layers_ != nullptr)
      layers_->for_each_parameter(visit);
    if (norm_ != nullptr)
      visit(norm_->gain);
    if (columns_ != nullptr)
      visit(columns_->weight);
  }

  [[nodiscard]] std::vector<tensor_part> parts() const {
    std::vector<tensor_part> parts;
    chunk_range const range{bytes_.first, bytes_.last};
    if (rows_ != nullptr)
      parts.push_back(cut_part("embedding.bytes", {vocabulary, size_.width}, 0, range));
    if (positions_ != nullptr)
      parts.push_back(whole_part("embedding.positions", {size_.sequence, size_.width}));
    if (layers_ != nullptr) {
      auto const of_layers = layers_->parts();
      parts.insert(parts.end(), of_layers.begin(), of_layers.end());
    }
    if (norm_ != nullptr)
      parts.push_back(whole_part("head.norm", {size_.width}));
    if (columns_ != nullptr)
      parts.push_back(cut_part("head.out", {size_.width, vocabulary}, 1, range));
    return parts;
  }

  void update(adamw const& optimizer, std::int64_t step) {
    for_each_parameter([&](parameter<float>& p) { optimizer.update(p, step); });
    refresh();
  }
  void refresh() {
    if (layers_ != nullptr)
      layers_->refresh();
    if (columns_ != nullptr)
      columns_->refresh();
  }

private:
  [[nodiscard]] chunk_range range(unit u) const { return cut_.step.range(u); }
  [[nodiscard]] std::size_t index(unit u) const { return cut_.step.index(u); }
  [[nodiscard]] std::uint8_t const* bytes_at(unit u) const {
    return batch_->microbatch(u.microbatch) + range(u).begin;
  }

  //! Rows of the embedding, with the numbers that they have in the whole one.
  void make_rows(std::uint64_t seed) {
    auto const whole = random_parameter<float>({seed, -1, 0}, vocabulary * size_.width, 0.3, false);
    rows_ = std::make_unique<parameter<float>>(bytes_.count() * size_.width, 0.0F, false);
    std::copy_n(whole.value.begin() + bytes_.first * size_.width,
                bytes_.count() * size_.width,
                rows_->value.begin());
  }
  void make_columns(std::uint64_t seed) {
    linear<float> const whole(
      {seed, size_.layers, 0}, size_.width, vocabulary, 0.5 / std::sqrt(double(size_.width)));
    columns_ = std::make_unique<linear<float>>(
      detail::cut_matrix(whole, vocabulary, 1, {0, size_.width}, {bytes_.first, bytes_.last}));
  }

  void look_up(unit u, float* y) const {
    std::fill_n(y, range(u).count() * size_.width, 0.0F);
    for (std::int64_t t = 0; t < range(u).count(); ++t) {
      if (std::uint8_t const byte = bytes_at(u)[t]; bytes_.holds(byte)) {
        std::copy_n(rows_->value.data() + (byte - bytes_.first) * size_.width,
                    size_.width,
                    y + t * size_.width);
      }
    }
  }
  void add_to_rows(unit u, float const* dy) {
    for (auto t = range(u).count(); t-- > 0;) {
      if (std::uint8_t const byte = bytes_at(u)[t]; bytes_.holds(byte)) {
        float* const row = rows_->gradient.data() + (byte - bytes_.first) * size_.width;
        for (std::int64_t d = 0; d < size_.width; ++d)
          row[d] += dy[t * size_.width + d];
      }
    }
  }

  //! The sum of what all shards of the embedding give, or what the stage before gives.
  void add_up(unit u, inputs from) {
    auto const count = range(u).count() * size_.width;
    sum_.assign(from[0], from[0] + count);
    for (float const* const other : from.subspan(1))
      for (std::int64_t i = 0; i < count; ++i)
        sum_[static_cast<std::size_t>(i)] += other[i];
    for (std::int64_t i = 0; positions_ != nullptr && i < count; ++i) {
      sum_[static_cast<std::size_t>(i)] +=
        positions_->value[static_cast<std::size_t>(range(u).begin * size_.width + i)];
    }
    last_.resize(sum_.size());
  }
  void normalise(unit u, float* y, float* kept) {
    auto const tokens = range(u).count();
    if (kept == nullptr)
      kept_[index(u)] = memory_->pool.take(tokens * (size_.width + 1));
    float* const normal = norm_part(u, kept);
    norm_->normalise(last_.data(), normal, tokens);
    norm_->apply_gain(normal, y, tokens);
  }
  //! Of the norm, behind what the layers keep.
  [[nodiscard]] float* norm_part(unit u, float* kept) const {
    return kept == nullptr ? kept_[index(u)].get()
                           : kept + kept_by_layers(size_, held_, range(u).count());
  }

  void make_logits(unit u, float const* x, float* statistics, float* early, float* kept) {
    auto const tokens = range(u).count();
    kept = memory_->pool.place(tokens * (size_.width + bytes_.count()), kept, kept_[index(u)]);
    std::copy_n(x, tokens * size_.width, kept);
    float* const logits = kept + tokens * size_.width;
    std::fill_n(logits, tokens * bytes_.count(), 0.0F);
    columns_->add_forward(x, logits, bytes_.count(), tokens);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::span<float const> const of(logits + t * bytes_.count(),
                                      static_cast<std::size_t>(bytes_.count()));
      std::uint8_t const next = bytes_at(u)[t + 1];
      token_statistics one{*std::max_element(of.begin(), of.end()), 0, 0};
      for (float const logit : of)
        one.sum += std::exp(logit - one.largest);
      one.next = bytes_.holds(next) ? of[static_cast<std::size_t>(next - bytes_.first)] : 0;
      std::copy_n(&one.largest, statistics_width, statistics + statistics_width * t);
      if (early != nullptr)
        make_early(of, next, one.largest, early + 2 * size_.width * t);
    }
    if (early != nullptr)
      std::copy_n(statistics, statistics_width * tokens, early + 2 * size_.width * tokens);
  }
  //! Of one token: sum of exp(logit - largest) times its column, and the column of the next byte.
  void make_early(std::span<float const> logits, std::uint8_t next, float largest, float* early) {
    for (std::int64_t d = 0; d < size_.width; ++d) {
      float const* const columns = columns_->weight.value.data() + d * bytes_.count();
      float sum = 0;
      for (std::size_t v = 0; v < logits.size(); ++v)
        sum += std::exp(logits[v] - largest) * columns[v];
      early[d] = sum;
      early[size_.width + d] = bytes_.holds(next) ? columns[next - bytes_.first] : 0;
    }
  }

  [[nodiscard]] float share() const { return 1.0F / static_cast<float>(cut_.step.tokens()); }

  void finish_logits(unit u, inputs statistics, float* dx, float* kept) {
    auto const tokens = range(u).count();
    kept = kept == nullptr ? kept_[index(u)].get() : kept;
    float* const gradient = kept + tokens * size_.width;
    for (std::int64_t t = 0; t < tokens; ++t) {
      auto const all = join(statistics, t);
      std::uint8_t const next = bytes_at(u)[t + 1];
      float* const row = gradient + t * bytes_.count();
      for (std::int64_t v = 0; v < bytes_.count(); ++v)
        row[v] = share() * std::exp(row[v] - all.largest) / all.sum;
      if (bytes_.holds(next))
        row[next - bytes_.first] -= share();
      losses_[static_cast<std::size_t>(u.microbatch * size_.sequence + range(u).begin + t)] =
        std::log(all.sum) + all.largest - all.next;
    }
    if (dx != nullptr) {
      std::fill_n(dx, tokens * size_.width, 0.0F);
      columns_->add_backward_input(gradient, dx, tokens);
    }
    columns_->add_backward_weight(kept, gradient, tokens);
    kept_[index(u)].reset();
  }

  //! The gradient of the output of these layers, from the next stage or from all shards.
  void join_gradients(inputs from, std::int64_t tokens) {
    auto const width = size_.width;
    sum_.assign(static_cast<std::size_t>(tokens * width), 0.0F);
    last_.resize(sum_.size());
    if (norm_ == nullptr || cut_.barriers != 1) {
      for (float const* const one : from)
        for (std::size_t i = 0; i < sum_.size(); ++i)
          sum_[i] += one[i];
      return;
    }
    std::vector<float const*> statistics;
    for (float const* const one : from)
      statistics.push_back(one + 2 * width * tokens);
    for (std::int64_t t = 0; t < tokens; ++t) {
      auto const all = join(statistics, t);
      for (std::size_t shard = 0; shard < from.size(); ++shard) {
        float const scale =
          std::exp(statistics[shard][statistics_width * t] - all.largest) / all.sum;
        float const* const early = from[shard] + 2 * width * t;
        for (std::int64_t d = 0; d < width; ++d) {
          sum_[static_cast<std::size_t>(t * width + d)] +=
            share() * (scale * early[d] - early[width + d]);
        }
      }
    }
  }

  model_size size_;
  sharded_cut cut_;
  device_memory<float>* memory_;
  batch const* batch_ = nullptr;
  byte_range bytes_;                            // of a shard
  layer_range held_;                            // of layers
  std::unique_ptr<parameter<float>> rows_;      // of a shard of the embedding
  std::unique_ptr<linear<float>> columns_;      // of a shard of the output layer
  std::unique_ptr<parameter<float>> positions_; // of the first layers
  std::unique_ptr<gpt::stage<float>> layers_;   // of layers
  std::unique_ptr<layer_norm<float>> norm_;     // of the last layers
  std::vector<block<float>> kept_;              // by unit
  std::vector<float> losses_;                   // [microbatches, sequence]
  std::vector<float> sum_;
  std::vector<float> last_;
};

} // namespace gpt
