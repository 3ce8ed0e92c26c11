// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A trained tensor on a GPU, AdamW on it, and on clipped gradients, whose norm and number
//! of steps only the GPU knows, so that a graph can have it.

#include <pipe/cuda/handles.cuh>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "../clipped_stage.hpp"
#include "numbers.cuh"

namespace gpt::on_gpu {

//! Numbers of a GPU on the host. @pre nobody writes them any more
[[nodiscard]] inline std::vector<float> fetch(float const* from, std::int64_t count) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  cuda::check(
    cudaMemcpy(numbers.data(), from, numbers.size() * sizeof(float), cudaMemcpyDeviceToHost),
    "cudaMemcpy");
  return numbers;
}

//! Bytes of the host onto a GPU.
inline void send(void* to, void const* from, std::size_t bytes) {
  cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

namespace detail {
struct moved_tensors {
  float *value, *gradient, *mean, *square;
};
} // namespace detail

//! What a step is to do.
struct step_decision {
  step_factors<float> factors;
  float coefficient = 1; //!< of the gradients
  int finite = 1;        //!< 0: they become zero, and nothing else happens
};

namespace detail {
//! @param decided on the GPU; null: `given` holds
inline void adamw_step(moved_tensors of,
                       bool decays,
                       step_decision given,
                       step_decision const* decided,
                       std::int64_t count,
                       cudaStream_t stream) {
  for_each_number(count, stream, [=] __device__(std::int64_t i) {
    step_decision const now = decided == nullptr ? given : *decided;
    step_factors<float> const by = now.factors;
    if (now.finite != 0) {
      float const g = of.gradient[i] * now.coefficient;
      float const mean = by.b1 * of.mean[i] + (1.0f - by.b1) * g;
      float const square = by.b2 * of.square[i] + (1.0f - by.b2) * g * g;
      float const move = mean * by.mean_share / (sqrtf(square * by.square_share) + 1e-8f);
      of.mean[i] = mean;
      of.square[i] = square;
      of.value[i] = (decays ? by.keep : 1.0f) * of.value[i] - by.rate * move;
    }
    of.gradient[i] = 0.0f;
  });
}
} // namespace detail

//! A trained tensor: its value and all that the optimizer adds up in float, and the same value as
//! products read it, of type Element.
template <class Element>
class trained {
public:
  explicit trained(parameter<float> const& from)
      : count_(static_cast<std::int64_t>(from.value.size())), decays_(from.decays),
        memory_(bytes(count_)) {
    send(values(), from.value.data(), from.value.size() * sizeof(float));
    round(nullptr);
    cuda::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  //! One that has no memory: passes read and write where they are told to.
  trained(std::int64_t count, bool decays) : count_(count), decays_(decays), memory_(0) {}
  //! Where what passes read lies from now on. @pre made without memory
  //! @param value null where products alone read the tensor. @param operand null where none does
  void read_at(float* value, Element const* operand) {
    value_elsewhere_ = value;
    operand_elsewhere_ = operand;
  }
  //! Where passes add their gradients. @pre made without memory
  void add_at(float* gradient) { gradient_elsewhere_ = gradient; }

  [[nodiscard]] float* values() const {
    return memory_.data() == nullptr ? value_elsewhere_ : floats(0);
  }
  [[nodiscard]] float* gradients() const {
    return memory_.data() == nullptr ? gradient_elsewhere_ : floats(1);
  }
  [[nodiscard]] Element const* operand() const {
    if (memory_.data() == nullptr)
      return operand_elsewhere_;
    if constexpr (rounds)
      return reinterpret_cast<Element const*>(floats(4));
    else
      return values();
  }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] bool decays() const { return decays_; } //!< as matrices do

  //! One step of the optimizer: the value moves, the gradient becomes zero.
  void update(adamw const& optimizer, std::int64_t step, cudaStream_t stream) {
    move({optimizer.factors<float>(step)}, nullptr, stream);
  }
  //! The same as the GPU has decided.
  void update(step_decision const* decided, cudaStream_t stream) { move({}, decided, stream); }

  //! Calls with(bytes), tensor by tensor, of what the next step depends on, and puts it back.
  template <class Visit>
  void exchange(Visit const& with) {
    for (int const tensor : {0, 2, 3}) { // the value, and both averages of the optimizer
      auto numbers = fetch(floats(tensor), count_);
      with(std::as_writable_bytes(std::span(numbers)));
      send(floats(tensor), numbers.data(), numbers.size() * sizeof(float));
    }
    round(nullptr);
    cuda::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  void make_room_for_copy() { copy_.emplace(bytes(count_)); }
  void keep_copy(cudaStream_t stream) {
    copy_bytes(copy_->data(), memory_.data(), bytes(count_), stream);
  }
  void restore(cudaStream_t stream) {
    copy_bytes(memory_.data(), copy_->data(), bytes(count_), stream);
  }

private:
  static constexpr bool rounds = !std::is_same_v<Element, float>;

  static std::int64_t bytes(std::int64_t count) {
    return 4 * stride(count) + (rounds ? count * static_cast<std::int64_t>(sizeof(Element)) : 0);
  }
  //! Bytes from one tensor to the next, so that each begins at a multiple of 256.
  static std::int64_t stride(std::int64_t count) { return (4 * count + 255) / 256 * 256; }

  void move(step_decision const& given, step_decision const* decided, cudaStream_t stream) {
    detail::adamw_step(
      {values(), gradients(), floats(2), floats(3)}, decays_, given, decided, count_, stream);
    round(stream);
  }
  void round(cudaStream_t stream) {
    if constexpr (rounds)
      convert(reinterpret_cast<Element*>(floats(4)), values(), count_, stream);
  }
  [[nodiscard]] float* floats(std::int64_t index) const {
    return reinterpret_cast<float*>(memory_.data() + index * stride(count_));
  }

  std::int64_t count_;
  bool decays_;
  cuda::device_memory memory_;
  float* value_elsewhere_ = nullptr; // of one without memory
  Element const* operand_elsewhere_ = nullptr;
  float* gradient_elsewhere_ = nullptr;
  std::optional<cuda::device_memory> copy_; // from before the last step, where it may be undone
};

namespace detail {
inline constexpr int row_parts = 1024; //!< of the sum of squares, a power of 32

//! Adds squares to as many sums as there are parts, every number to one that its place decides.
inline void
add_squares(gradient_row* parts, float const* numbers, std::int64_t count, cudaStream_t stream) {
  for_each_number(row_parts, stream, [=] __device__(std::int64_t part) {
    gradient_row sum = parts[part];
    for (std::int64_t i = part; i < count; i += row_parts) {
      double const x = numbers[i];
      bool const finite = x - x == 0;
      sum.squared_norm += finite ? x * x : 0;
      sum.not_finite = finite ? sum.not_finite : 1;
    }
    parts[part] = sum;
  });
}
//! The first `to` parts become sums of all `from`.
inline void fold(gradient_row* parts, int from, int to, cudaStream_t stream) {
  for_each_number(to, stream, [=] __device__(std::int64_t part) {
    gradient_row sum = parts[part];
    for (std::int64_t i = part + to; i < from; i += to) {
      sum.squared_norm += parts[i].squared_norm;
      sum.not_finite += parts[i].not_finite;
    }
    parts[part] = sum;
  });
}

struct optimizer_state {
  step_counts counts{};
  step_decision now{};
};
//! Looks at the rows of all stages, or of some.
inline void decide(optimizer_state* state,
                   step_factors<float> const* of_steps,
                   std::int64_t steps,
                   double largest_norm,
                   pp::totals const& all,
                   cudaStream_t stream) {
  for_each_number(1, stream, [=] __device__(std::int64_t) {
    clipped_step const found(largest_norm, all);
    auto const taken = state->counts.taken;
    state->now = {of_steps[taken < steps ? taken : steps - 1],
                  static_cast<float>(found.coefficient),
                  found.finite ? 1 : 0};
    found.count(state->counts);
  });
}
} // namespace detail

//! What the optimizer of a stage has next to the weights.
class clipped_optimizer {
public:
  explicit clipped_optimizer(clipping const& how)
      : how_(how), steps_(std::max<std::int64_t>(how.optimizer.steps, 1)),
        factors_(steps_ * static_cast<std::int64_t>(sizeof(step_factors<float>))),
        parts_(detail::row_parts * static_cast<std::int64_t>(sizeof(gradient_row))),
        states_(2 * static_cast<std::int64_t>(sizeof(detail::optimizer_state))) {
    std::vector<step_factors<float>> all;
    for (std::int64_t step = 0; step < steps_; ++step)
      all.push_back(how_.optimizer.factors<float>(step));
    send(factors_.data(), all.data(), all.size() * sizeof(step_factors<float>));
  }

  //! Writes the row of a stage. @param weights [any number of] trained
  //! @param counts of the number of one whether the norm has it from here
  template <class Weights, class Counts>
  void contribute(Weights const& weights, Counts counts, std::byte* row, cudaStream_t stream) {
    auto* const parts = reinterpret_cast<gradient_row*>(parts_.data());
    clear_bytes(parts, detail::row_parts * sizeof(gradient_row), stream);
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (counts(i))
        detail::add_squares(parts, weights[i].gradients(), weights[i].count(), stream);
    detail::fold(parts, detail::row_parts, 32, stream);
    detail::fold(parts, 32, 1, stream);
    copy_bytes(row, parts, sizeof(gradient_row), stream);
  }

  template <class Weights>
  void step(Weights& weights, pp::totals const& all, cudaStream_t stream) {
    if (how_.early) { // to compute backwards what the optimizer did would round
      for (auto& weight : weights)
        weight.keep_copy(stream);
      copy_bytes(state(1), state(0), sizeof(detail::optimizer_state), stream);
    }
    auto const* const factors = reinterpret_cast<step_factors<float> const*>(factors_.data());
    detail::decide(state(0), factors, steps_, how_.largest_norm, all, stream);
    for (auto& weight : weights)
      weight.update(&state(0)->now, stream);
  }

  template <class Weights>
  void roll_back(Weights& weights, cudaStream_t stream) {
    for (auto& weight : weights)
      weight.restore(stream);
    copy_bytes(state(0), state(1), sizeof(detail::optimizer_state), stream);
  }

  //! @pre no step is under way
  [[nodiscard]] step_counts counts() const {
    detail::optimizer_state now;
    cuda::check(cudaMemcpy(&now, state(0), sizeof now, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return now.counts;
  }

  void set_counts(step_counts const& counts) {
    detail::optimizer_state const now{counts};
    send(state(0), &now, sizeof now);
  }

private:
  [[nodiscard]] detail::optimizer_state* state(int which) const {
    return reinterpret_cast<detail::optimizer_state*>(states_.data()) + which;
  }

  clipping how_;
  std::int64_t steps_;
  cuda::device_memory factors_; // of every step that may be taken
  cuda::device_memory parts_;   // of the sum of squares
  cuda::device_memory states_;  // now, and before the last step
};

} // namespace gpt::on_gpu
