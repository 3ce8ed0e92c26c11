// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage: consecutive layers of the GPT, with the embedding on the first and the loss on
//! the last.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "adamw.hpp"
#include "embedding.hpp"
#include "memory.hpp"
#include "model.hpp"
#include "split_layers.hpp"
#include "tensor_parts.hpp"
#include "text.hpp"
#include "transformer_block.hpp"
#include "weight_shards.hpp"

namespace gpt {

//! What flows through the pipeline: one chunk of one microbatch.
struct unit {
  std::int64_t microbatch = 0;
  std::int64_t chunk = 0;
};

//! What the stages of one device share. Belongs to the device's thread.
template <class Number>
struct device_memory {
  activation_pool<Number> pool;
  scratch<Number> space;
};

//! How the work of a step is cut: the chunks of every microbatch, whose sequences may be of unequal
//! length.
class step_cut {
public:
  //! All microbatches alike.
  step_cut(std::int64_t microbatches, std::vector<chunk_range> const& chunks)
      : step_cut(std::vector(static_cast<std::size_t>(microbatches), chunks)) {}
  explicit step_cut(std::vector<std::vector<chunk_range>> chunks) : chunks_(std::move(chunks)) {
    for (auto const& each : chunks_) {
      first_units_.push_back(first_units_.back() + static_cast<std::int64_t>(each.size()));
      tokens_ += each.back().end;
    }
    not_kept_.assign(static_cast<std::size_t>(units()), false);
    last_seen_ = units();
  }

  [[nodiscard]] std::int64_t microbatches() const {
    return static_cast<std::int64_t>(chunks_.size());
  }
  //! Chunks of a microbatch, and of all.
  [[nodiscard]] std::int64_t chunks(std::int64_t microbatch) const {
    return static_cast<std::int64_t>(chunks_[static_cast<std::size_t>(microbatch)].size());
  }
  [[nodiscard]] std::int64_t units() const { return first_units_.back(); }
  //! Of all these microbatches one of several copies of a stage sees those from `first` to `last`,
  //! which is not among them.
  [[nodiscard]] step_cut seen(std::int64_t first, std::int64_t last) const {
    step_cut part = *this;
    part.first_seen_ = first_units_[static_cast<std::size_t>(first)];
    part.last_seen_ = first_units_[static_cast<std::size_t>(last)];
    return part;
  }
  [[nodiscard]] std::int64_t first_seen() const { return first_seen_; } //!< its first unit
  [[nodiscard]] std::int64_t last_seen() const { return last_seen_; }   //!< behind its last
  //! Of microbatches that are not cut, one of several copies sees every `stride`-th from `first`
  //! on.
  [[nodiscard]] step_cut seen_in_turn(std::int64_t first, std::int64_t stride) const {
    step_cut part = seen(first, microbatches());
    part.stride_ = stride;
    return part;
  }
  [[nodiscard]] std::int64_t stride() const { return stride_; }
  //! Gradients add up from the last microbatch to the first, or as they come.
  [[nodiscard]] step_cut back_from_last(bool so = true) const {
    step_cut turned = *this;
    turned.from_last_ = so;
    return turned;
  }
  [[nodiscard]] bool from_last() const { return from_last_; }

  //! Tokens of a microbatch, and of all.
  [[nodiscard]] std::int64_t tokens(std::int64_t microbatch) const {
    return chunks_[static_cast<std::size_t>(microbatch)].back().end;
  }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  //! Tokens of every microbatch.
  [[nodiscard]] std::vector<std::int64_t> lengths() const {
    std::vector<std::int64_t> all;
    for (std::int64_t m = 0; m < microbatches(); ++m) {
      all.push_back(tokens(m));
    }
    return all;
  }

  [[nodiscard]] chunk_range range(unit u) const {
    return chunks_[static_cast<std::size_t>(u.microbatch)][static_cast<std::size_t>(u.chunk)];
  }
  //! Microbatch by microbatch, first chunk first.
  [[nodiscard]] std::size_t index(unit u) const {
    return static_cast<std::size_t>(first_units_[static_cast<std::size_t>(u.microbatch)] + u.chunk);
  }
  //! Whether forward keeps what backward needs; else it is asked for again.
  [[nodiscard]] bool keeps(unit u) const { return !not_kept_[index(u)]; }
  void recompute(unit u) { not_kept_[index(u)] = true; }

private:
  std::vector<std::vector<chunk_range>> chunks_;
  std::vector<std::int64_t> first_units_{0};
  std::vector<bool> not_kept_;
  std::int64_t tokens_ = 0;
  std::int64_t first_seen_ = 0;
  std::int64_t last_seen_ = 0;
  std::int64_t stride_ = 1;
  bool from_last_ = false;
};

//! The law that makes gradients independent of the schedule: a stage adds up the gradients of its
//! parameters microbatch by microbatch, the first or the last one first, and within one last chunk
//! first. Inside a chunk the last token comes first, so the order of the sum is that of the tokens,
//! and chunks leave no trace.
class gradient_order {
public:
  //! @throws std::logic_error where a unit comes out of order: the sum would round differently
  void check(unit u, step_cut const& cut, char const* what) {
    auto const last = cut.chunks(u.microbatch) - 1;
    auto const came =
      cut.from_last()
        ? cut.last_seen() - 1 - static_cast<std::int64_t>(cut.index(u))
        : static_cast<std::int64_t>(cut.index({u.microbatch, last - u.chunk})) - cut.first_seen();
    if (came != done_ * cut.stride()) {
      throw std::logic_error(
        std::string(what) + " of microbatch " + std::to_string(u.microbatch) + ", chunk " +
        std::to_string(u.chunk) +
        " came out of order; gradients add up by microbatch, last chunk first");
    }
    done_ = came + cut.stride() >= cut.last_seen() - cut.first_seen() ? 0 : done_ + 1;
  }

private:
  std::int64_t done_ = 0;
};

//! Numbers that the layers of a stage keep of so many tokens between forward and backward, but, of
//! whole ones, for keys and values.
[[nodiscard]] inline std::int64_t
kept_by_layers(model_size const& size, layer_range const& layers, std::int64_t tokens) {
  switch (layers.part) {
  case layer_part::attention: return lone_attention<float>::kept_numbers(size, tokens);
  case layer_part::around_attention:
    return around_attention<float>::kept_numbers(size, layers, tokens);
  case layer_part::whole: break;
  }
  return (layers.last - layers.first) * transformer_block<float>::kept_numbers(size, tokens);
}
//! The same with the head.
[[nodiscard]] inline std::int64_t
kept_numbers(model_size const& size, layer_range const& layers, std::int64_t tokens) {
  return kept_by_layers(size, layers, tokens) +
         (layers.ends ? head<float>::kept_numbers(size, tokens) : 0);
}

//! A stage of the model. Passes are called by whoever runs the schedule; a stage only demands that
//! chunks go forward in order, and backward in the order of gradient_order.
//!
//! What forward keeps of a unit lies in `kept`, [kept_numbers], where the caller gives such memory:
//! then the caller may move it between passes. Else it lies in a buffer of the device's pool.
template <class Number>
class stage {
public:
  using number = Number;

  stage(model_size const& size,
        layer_range layers,
        step_cut cut,
        std::uint64_t seed,
        device_memory<Number>& memory)
      : size_(size), layers_(layers), cut_(std::move(cut)), memory_(&memory) {
    gpt::check(size);
    auto const lengths = cut_.lengths();
    for (auto layer = layers.first; layer < layers.last; ++layer) {
      blocks_.emplace_back(size, seed, layer, lengths, cut_.units());
    }
    if (layers.part == layer_part::attention) {
      attention_ = std::make_unique<lone_attention<Number>>(size, cut_.units());
    } else if (layers.part == layer_part::around_attention) {
      around_ = std::make_unique<around_attention<Number>>(size, layers, seed, cut_.units());
    }
    if (layers.embeds) {
      embedding_ = std::make_unique<embedding<Number>>(size, seed);
    }
    if (layers.ends) {
      head_ = std::make_unique<head<Number>>(size, seed, cut_.units());
      losses_.resize(static_cast<std::size_t>(cut_.microbatches() * size.sequence));
    }
  }

  //! Between steps: how the work of the next one is cut.
  void set_cut(step_cut cut) {
    cut_ = std::move(cut);
    auto const lengths = cut_.lengths();
    for (auto& layer : blocks_) {
      layer.set_work(lengths, cut_.units());
    }
    if (attention_ != nullptr) {
      attention_->set_units(cut_.units());
    }
    if (around_ != nullptr) {
      around_->set_units(cut_.units());
    }
    if (head_ != nullptr) {
      head_->set_units(cut_.units());
      losses_.assign(static_cast<std::size_t>(cut_.microbatches() * size_.sequence), Number{0});
    }
  }

  //! Sets the bytes to learn from; they must stay until the step ends.
  void set_batch(batch const& pieces) { batch_ = &pieces; }

  //! Forward of one unit. x is not read by the first stage, y not written by the last. Both have
  //! `handed_on` numbers for each token.
  void forward(unit u, Number const* x, Number* y, Number* kept = nullptr) {
    all_layers(u, x, y, kept);
    if (!cut_.keeps(u)) {
      for (auto& layer : blocks_) {
        layer.forget(cut_.index(u));
      }
      if (attention_ != nullptr) {
        attention_->forget(cut_.index(u));
      }
      if (around_ != nullptr) {
        around_->forget(cut_.index(u));
      }
      if (head_ != nullptr) {
        head_->forget(cut_.index(u));
      }
    }
    memory_->pool.end_of_pass();
  }

  //! Brings back what forward of the unit has not kept, from the same x; what is written to y has
  //! been written before.
  void recompute(unit u, Number const* x, Number* y, Number* kept = nullptr) {
    all_layers(u, x, y, kept);
    memory_->pool.end_of_pass();
  }

  //! Backward of one unit up to the gradient of its input. dy is not read by the last stage, dx not
  //! written by the first.
  void backward_input(unit u, Number const* dy, Number* dx, Number* kept = nullptr) {
    input_half(u, dy, dx, kept);
    memory_->pool.end_of_pass();
  }

  //! The other half: adds to the gradients of the matrices. What forward has kept still lies where
  //! it was in the first half.
  void backward_weight(unit u) {
    weight_half(u);
    memory_->pool.end_of_pass();
  }

  //! Both halves at once.
  void backward(unit u, Number const* dy, Number* dx, Number* kept = nullptr) {
    input_half(u, dy, dx, kept);
    weight_half(u);
    memory_->pool.end_of_pass();
  }

  //! Mean loss of the tokens of the step, in nats; for the last stage.
  [[nodiscard]] double loss() const {
    double sum = 0;
    for (auto const x : losses_) {
      sum += static_cast<double>(x);
    }
    return sum / static_cast<double>(cut_.tokens());
  }

  //! Of each token, [microbatches, sequence].
  [[nodiscard]] std::vector<Number> const& losses() const { return losses_; }

  //! Calls visit(parameter) for each parameter, in the order of the layers; where they are in
  //! shards, for each piece.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    if (shards_.empty()) {
      for_each_whole_parameter(visit);
    } else {
      shards_.for_each_piece(visit);
    }
  }

  //! What these are in the whole model. A piece of a shard is one of the numbers behind each other,
  //! under a name of its own.
  [[nodiscard]] std::vector<tensor_part> parts() const {
    auto const whole = parts_of(size_, layers_);
    return shards_.empty() ? whole : shards_.pieces_of(whole);
  }

  //! Takes the parameters apart. From now on passes need weights that have been gathered, and
  //! memory for gradients. No shards: the parameters are elsewhere.
  void shard(std::int64_t shards) {
    for_each_matrix([this](linear<Number>& matrix) { transposes_ += matrix.numbers(); });
    for_each_whole_parameter([&](parameter<Number>& p) {
      sizes_.push_back(static_cast<std::int64_t>(p.value.size()));
      shards_.take(p, shards);
    });
  }
  //! Numbers of whole weights, transposed matrices among them, and of whole gradients.
  [[nodiscard]] std::int64_t weight_numbers() const { return shards_.numbers() + transposes_; }
  [[nodiscard]] std::int64_t gradient_numbers() const { return shards_.numbers(); }

  //! Writes whole weights, [weight_numbers].
  void gather(Number* to) {
    shards_.gather(to);
    use(to);
    refresh_matrices();
  }
  //! Passes read weights from here, and transposed matrices behind them.
  void use(Number* weights) { use(weights, weights + shards_.numbers()); }
  //! The same with the transposed matrices elsewhere.
  void use(Number* weights, Number* transposes) {
    std::size_t next = 0;
    for_each_whole_parameter([&](parameter<Number>& p) {
      p.value_elsewhere = weights;
      weights += sizes_[next++];
    });
    for_each_matrix([&](linear<Number>& matrix) {
      matrix.put_transpose(transposes);
      transposes += matrix.numbers();
    });
  }
  //! To be called before backward passes, when others than these weights have been used.
  void refresh_matrices() {
    for_each_matrix([](linear<Number>& matrix) { matrix.refresh(); });
  }
  //! Passes add their gradients here, [gradient_numbers].
  void collect(Number* to) {
    std::fill_n(to, gradient_numbers(), Number{0});
    add_gradients_to(to);
  }
  //! The same to what is there.
  void add_gradients_to(Number* to) {
    std::size_t next = 0;
    for_each_whole_parameter([&](parameter<Number>& p) {
      p.gradient_elsewhere = to;
      to += sizes_[next++];
    });
  }
  //! Adds whole gradients to those of the shards.
  void scatter(Number const* from) { shards_.scatter(from); }

  //! One step of the optimizer.
  void update(adamw const& optimizer, std::int64_t step) {
    for_each_parameter([&](parameter<Number>& p) { optimizer.update(p, step); });
    refresh();
  }

  //! To be called when parameters have changed.
  void refresh() {
    if (shards_.empty()) {
      refresh_matrices(); // else when they have been gathered
    }
  }

private:
  template <class Visit>
  void for_each_whole_parameter(Visit visit) {
    if (embedding_ != nullptr) {
      visit(embedding_->bytes);
      visit(embedding_->positions);
    }
    for (auto& layer : blocks_) {
      layer.for_each_parameter(visit);
    }
    if (around_ != nullptr) {
      around_->for_each_parameter(visit);
    }
    if (head_ != nullptr) {
      visit(head_->norm.gain);
      visit(head_->out.weight);
    }
  }

  template <class Visit>
  void for_each_matrix(Visit visit) {
    for (auto& layer : blocks_) {
      layer.for_each_matrix(visit);
    }
    if (around_ != nullptr) {
      around_->for_each_matrix(visit);
    }
    if (head_ != nullptr) {
      visit(head_->out);
    }
  }

  [[nodiscard]] std::uint8_t const* next_bytes(unit u) const {
    return batch_->microbatch(u.microbatch) + cut_.range(u).begin + 1;
  }

  //! The part of a whole layer in the memory that the caller has given.
  [[nodiscard]] Number* part(Number* kept, std::size_t layer, std::int64_t tokens) const {
    auto const before = static_cast<std::int64_t>(layer);
    return kept == nullptr ? nullptr
                           : kept + before * transformer_block<Number>::kept_numbers(size_, tokens);
  }
  //! That of the head, behind the layers.
  [[nodiscard]] Number* head_part(Number* kept, std::int64_t tokens) const {
    return kept == nullptr ? nullptr : kept + kept_by_layers(size_, layers_, tokens);
  }

  void all_layers(unit u, Number const* x, Number* y, Number* kept) {
    auto const tokens = cut_.range(u).count();
    if (head_ != nullptr) {
      last_.resize(static_cast<std::size_t>(tokens * size_.width));
      y = last_.data();
    }
    if (embedding_ != nullptr) {
      embedding_->forward(batch_->microbatch(u.microbatch), cut_.range(u), y);
    } else {
      std::copy_n(x, tokens * size_.width, y);
    }
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i].forward(static_cast<std::size_t>(u.microbatch),
                         cut_.index(u),
                         cut_.range(u),
                         y,
                         part(kept, i, tokens),
                         memory_->pool,
                         memory_->space);
    }
    if (attention_ != nullptr) {
      attention_->forward(cut_.index(u), tokens, x, y, kept, memory_->pool, memory_->space);
    }
    if (around_ != nullptr) {
      around_->forward(cut_.index(u), tokens, x, y, kept, memory_->pool, memory_->space);
    }
    if (head_ != nullptr) {
      head_->forward(cut_.index(u),
                     next_bytes(u),
                     tokens,
                     y,
                     losses_.data() + u.microbatch * size_.sequence + cut_.range(u).begin,
                     head_part(kept, tokens),
                     memory_->pool,
                     memory_->space.numbers);
    }
  }

  void input_half(unit u, Number const* dy, Number* dx, Number* kept) {
    if (attention_ == nullptr) { // which has no weights
      input_order_.check(u, cut_, "backward_input");
    }
    auto const tokens = cut_.range(u).count();
    if (embedding_ != nullptr) {
      first_.resize(static_cast<std::size_t>(tokens * size_.width));
      dx = first_.data();
    }
    if (head_ != nullptr) {
      head_->backward_input(cut_.index(u),
                            next_bytes(u),
                            tokens,
                            Number{1} / static_cast<Number>(cut_.tokens()),
                            dx,
                            head_part(kept, tokens),
                            memory_->pool,
                            memory_->space.numbers);
    } else {
      std::copy_n(dy, tokens * size_.width, dx);
    }
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      blocks_[i].backward_input(static_cast<std::size_t>(u.microbatch),
                                cut_.index(u),
                                cut_.range(u),
                                dx,
                                part(kept, i, tokens),
                                memory_->pool,
                                memory_->space);
    }
    if (attention_ != nullptr) {
      attention_->backward_input(cut_.index(u), tokens, dy, dx, kept, memory_->space);
    }
    if (around_ != nullptr) {
      around_->backward_input(cut_.index(u), tokens, dy, dx, kept, memory_->pool, memory_->space);
    }
    if (embedding_ != nullptr) {
      embedding_->backward(batch_->microbatch(u.microbatch), cut_.range(u), dx);
    }
  }

  void weight_half(unit u) {
    if (attention_ != nullptr) {
      attention_->backward_weight(cut_.index(u));
      return;
    }
    weight_order_.check(u, cut_, "backward_weight");
    if (head_ != nullptr) {
      head_->backward_weight(cut_.index(u), cut_.range(u).count(), memory_->space.numbers);
    }
    for (auto layer = blocks_.rbegin(); layer != blocks_.rend(); ++layer) {
      layer->backward_weight(cut_.index(u), cut_.range(u), memory_->space);
    }
    if (around_ != nullptr) {
      around_->backward_weight(cut_.index(u), cut_.range(u).count(), memory_->space);
    }
  }

  model_size size_;
  layer_range layers_;
  step_cut cut_;
  device_memory<Number>* memory_;
  batch const* batch_ = nullptr;
  std::unique_ptr<embedding<Number>> embedding_;
  std::vector<transformer_block<Number>> blocks_;
  std::unique_ptr<lone_attention<Number>> attention_; // layers cut at their attention have this
  std::unique_ptr<around_attention<Number>> around_;  // or this instead
  std::unique_ptr<head<Number>> head_;
  std::vector<Number> losses_; // [microbatches, sequence]
  std::vector<Number> first_;  // the embedding's dx
  std::vector<Number> last_;   // the head's x
  gradient_order input_order_;
  gradient_order weight_order_;
  weight_shards<Number> shards_;    // empty: parameters are whole
  std::vector<std::int64_t> sizes_; // of the parameters, where they are in shards
  std::int64_t transposes_ = 0;     // numbers of all matrices
};

//! Adds up the gradients of two copies of some stages: both have the sum then. No copies, no sum.
template <class Stage>
void add_copies(std::vector<Stage>& stages, std::vector<Stage>& copies) {
  using number = typename Stage::number;
  for (std::size_t s = 0; s < copies.size(); ++s) {
    std::vector<parameter<number>*> mine;
    stages[s].for_each_parameter([&](parameter<number>& p) { mine.push_back(&p); });
    std::size_t next = 0;
    copies[s].for_each_parameter([&](parameter<number>& theirs) {
      auto& sum = mine[next++]->gradient;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += theirs.gradient[i];
      }
      theirs.gradient = sum;
    });
  }
}

} // namespace gpt
