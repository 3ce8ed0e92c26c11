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
#include "text.hpp"
#include "transformer_block.hpp"

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

//! How the work of a step is cut.
struct step_cut {
  std::int64_t microbatches = 1;
  std::vector<chunk_range> chunks{};
};

//! The law that makes gradients independent of the schedule: a stage adds up the gradients of its
//! parameters microbatch by microbatch, and within one last chunk first. Inside a chunk the last
//! token comes first, so the order of the sum is that of the tokens, and chunks leave no trace.
class gradient_order {
public:
  //! @throws std::logic_error where a unit comes out of order: the sum would round differently
  void check(unit u, std::int64_t microbatches, std::int64_t chunks, char const* what) {
    auto const came = u.microbatch * chunks + (chunks - 1 - u.chunk);
    if (came != next_) {
      throw std::logic_error(
        std::string(what) + " of microbatch " + std::to_string(u.microbatch) + ", chunk " +
        std::to_string(u.chunk) +
        " came out of order; gradients add up by microbatch, last chunk first");
    }
    next_ = next_ + 1 == microbatches * chunks ? 0 : next_ + 1;
  }

private:
  std::int64_t next_ = 0;
};

//! A stage of the model. Passes are called by whoever runs the schedule; a stage only demands that
//! chunks go forward in order, and backward in the order of gradient_order.
template <class Number>
class stage {
public:
  using number = Number;

  stage(model_size const& size,
        layer_range layers,
        step_cut cut,
        std::uint64_t seed,
        device_memory<Number>& memory)
      : size_(size), cut_(std::move(cut)), memory_(&memory) {
    gpt::check(size);
    auto const chunks = static_cast<std::int64_t>(cut_.chunks.size());
    for (auto layer = layers.first; layer < layers.last; ++layer) {
      blocks_.emplace_back(size, seed, layer, cut_.microbatches, chunks);
    }
    if (layers.embeds) {
      embedding_ = std::make_unique<embedding<Number>>(size, seed);
    }
    if (layers.ends) {
      head_ = std::make_unique<head<Number>>(size, seed, cut_.microbatches * chunks);
      losses_.resize(static_cast<std::size_t>(cut_.microbatches * size.sequence));
    }
  }

  //! Sets the bytes to learn from; they must stay until the step ends.
  void set_batch(batch const& pieces) { batch_ = &pieces; }

  //! Numbers in the activation of a unit, and in its gradient: tokens times width.
  [[nodiscard]] std::int64_t activation_size(std::int64_t chunk) const {
    return range(chunk).count() * size_.width;
  }

  //! Forward of one unit. x is not read by the first stage, y not written by the last.
  void forward(unit u, Number const* x, Number* y) {
    auto const tokens = range(u.chunk).count();
    if (head_ != nullptr) {
      last_.resize(static_cast<std::size_t>(tokens * size_.width));
      y = last_.data();
    }
    if (embedding_ != nullptr) {
      embedding_->forward(batch_->microbatch(u.microbatch), range(u.chunk), y);
    } else {
      std::copy_n(x, tokens * size_.width, y);
    }
    for (auto& layer : blocks_) {
      layer.forward(static_cast<std::size_t>(u.microbatch),
                    index(u),
                    range(u.chunk),
                    y,
                    memory_->pool,
                    memory_->space);
    }
    if (head_ != nullptr) {
      head_->forward(index(u),
                     next_bytes(u),
                     tokens,
                     y,
                     losses_.data() + u.microbatch * size_.sequence + range(u.chunk).begin,
                     memory_->pool,
                     memory_->space.numbers);
    }
    memory_->pool.end_of_pass();
  }

  //! Backward of one unit up to the gradient of its input. dy is not read by the last stage, dx not
  //! written by the first.
  void backward_input(unit u, Number const* dy, Number* dx) {
    input_half(u, dy, dx);
    memory_->pool.end_of_pass();
  }

  //! The other half: adds to the gradients of the matrices.
  void backward_weight(unit u) {
    weight_half(u);
    memory_->pool.end_of_pass();
  }

  //! Both halves at once.
  void backward(unit u, Number const* dy, Number* dx) {
    input_half(u, dy, dx);
    weight_half(u);
    memory_->pool.end_of_pass();
  }

  //! Mean loss of the tokens of the step, in nats; for the last stage.
  [[nodiscard]] double loss() const {
    double sum = 0;
    for (auto const x : losses_) {
      sum += static_cast<double>(x);
    }
    return sum / static_cast<double>(losses_.size());
  }

  //! Calls visit(parameter) for each parameter, in the order of the layers.
  template <class Visit>
  void for_each_parameter(Visit visit) {
    if (embedding_ != nullptr) {
      visit(embedding_->bytes);
      visit(embedding_->positions);
    }
    for (auto& layer : blocks_) {
      layer.for_each_parameter(visit);
    }
    if (head_ != nullptr) {
      visit(head_->norm.gain);
      visit(head_->out.weight);
    }
  }

  //! One step of the optimizer.
  void update(adamw const& optimizer, std::int64_t step) {
    for_each_parameter([&](parameter<Number>& p) { optimizer.update(p, step); });
    refresh();
  }

  //! To be called when parameters have changed.
  void refresh() {
    for (auto& layer : blocks_) {
      layer.refresh();
    }
    if (head_ != nullptr) {
      head_->out.refresh();
    }
  }

private:
  [[nodiscard]] chunk_range range(std::int64_t chunk) const {
    return cut_.chunks[static_cast<std::size_t>(chunk)];
  }
  [[nodiscard]] std::size_t index(unit u) const {
    return static_cast<std::size_t>(u.microbatch) * cut_.chunks.size() +
           static_cast<std::size_t>(u.chunk);
  }
  [[nodiscard]] std::int64_t chunks() const {
    return static_cast<std::int64_t>(cut_.chunks.size());
  }

  [[nodiscard]] std::uint8_t const* next_bytes(unit u) const {
    return batch_->microbatch(u.microbatch) + range(u.chunk).begin + 1;
  }

  void input_half(unit u, Number const* dy, Number* dx) {
    input_order_.check(u, cut_.microbatches, chunks(), "backward_input");
    auto const tokens = range(u.chunk).count();
    if (embedding_ != nullptr) {
      first_.resize(static_cast<std::size_t>(tokens * size_.width));
      dx = first_.data();
    }
    if (head_ != nullptr) {
      head_->backward_input(index(u),
                            next_bytes(u),
                            tokens,
                            Number{1} / static_cast<Number>(cut_.microbatches * size_.sequence),
                            dx,
                            memory_->pool,
                            memory_->space.numbers);
    } else {
      std::copy_n(dy, tokens * size_.width, dx);
    }
    for (auto layer = blocks_.rbegin(); layer != blocks_.rend(); ++layer) {
      layer->backward_input(static_cast<std::size_t>(u.microbatch),
                            index(u),
                            range(u.chunk),
                            dx,
                            memory_->pool,
                            memory_->space);
    }
    if (embedding_ != nullptr) {
      embedding_->backward(batch_->microbatch(u.microbatch), range(u.chunk), dx);
    }
  }

  void weight_half(unit u) {
    weight_order_.check(u, cut_.microbatches, chunks(), "backward_weight");
    if (head_ != nullptr) {
      head_->backward_weight(index(u), range(u.chunk).count(), memory_->space.numbers);
    }
    for (auto layer = blocks_.rbegin(); layer != blocks_.rend(); ++layer) {
      layer->backward_weight(index(u), range(u.chunk), memory_->space);
    }
  }

  model_size size_;
  step_cut cut_;
  device_memory<Number>* memory_;
  batch const* batch_ = nullptr;
  std::unique_ptr<embedding<Number>> embedding_;
  std::vector<transformer_block<Number>> blocks_;
  std::unique_ptr<head<Number>> head_;
  std::vector<Number> losses_; // [microbatches, sequence]
  std::vector<Number> first_;  // the embedding's dx
  std::vector<Number> last_;   // the head's x
  gradient_order input_order_;
  gradient_order weight_order_;
};

} // namespace gpt
