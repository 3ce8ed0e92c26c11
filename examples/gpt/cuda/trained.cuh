// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A trained tensor on a GPU, and AdamW on it.

#include <pipe/cuda/handles.cuh>

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "../adamw.hpp"
#include "../parameter.hpp"
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

namespace detail {
//! AdamW's tensors.
struct moved_tensors {
  float *value, *gradient, *mean, *square;
};
} // namespace detail

//! AdamW's factors in a step.
struct step_factors {
  float rate, b1, b2, mean_share, square_share, keep; //!< keep: of what decays
};
[[nodiscard]] inline step_factors factors_of(adamw const& optimizer, std::int64_t step) {
  double const r = optimizer.rate(step);
  double const steps = static_cast<double>(step + 1);
  return {static_cast<float>(r),
          static_cast<float>(optimizer.mean_decay),
          static_cast<float>(optimizer.square_decay),
          static_cast<float>(1 / (1 - std::pow(optimizer.mean_decay, steps))),
          static_cast<float>(1 / (1 - std::pow(optimizer.square_decay, steps))),
          static_cast<float>(1 - r * optimizer.weight_decay)};
}
//! What a step is to do.
struct step_decision {
  step_factors factors;
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
    step_factors const by = now.factors;
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
    cuda::check(
      cudaMemcpy(
        value(), from.value.data(), from.value.size() * sizeof(float), cudaMemcpyHostToDevice),
      "cudaMemcpy");
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

  [[nodiscard]] float* value() const {
    return memory_.data() == nullptr ? value_elsewhere_ : floats(0);
  }
  [[nodiscard]] float* gradient() const {
    return memory_.data() == nullptr ? gradient_elsewhere_ : floats(1);
  }
  //! What products read.
  [[nodiscard]] Element const* operand() const {
    if (memory_.data() == nullptr) {
      return operand_elsewhere_;
    }
    if constexpr (rounds) {
      return reinterpret_cast<Element const*>(floats(4));
    } else {
      return value();
    }
  }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] bool decays() const { return decays_; } //!< as matrices do

  //! One step of the optimizer: the value moves, the gradient becomes zero.
  void update(adamw const& optimizer, std::int64_t step, cudaStream_t stream) {
    move({factors_of(optimizer, step)}, nullptr, stream);
  }
  //! The same as the GPU has decided.
  void update(step_decision const* decided, cudaStream_t stream) { move({}, decided, stream); }

  //! Hands what the next step depends on to a packer, or has it filled by an unpacker.
  template <class Archive>
  void exchange(Archive& with) {
    for (int const tensor : {0, 2, 3}) { // the value, and both averages of the optimizer
      auto numbers = fetch(floats(tensor), count_);
      with(numbers);
      cuda::check(
        cudaMemcpy(
          floats(tensor), numbers.data(), numbers.size() * sizeof(float), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    }
    round(nullptr);
    cuda::check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  //! Room for a copy of everything.
  void make_room_for_copy() { copy_.emplace(bytes(count_)); }
  void keep_copy(cudaStream_t stream) {
    copy_bytes(copy_->data(), memory_.data(), byte_count(), stream);
  }
  void restore(cudaStream_t stream) {
    copy_bytes(memory_.data(), copy_->data(), byte_count(), stream);
  }

private:
  static constexpr bool rounds = !std::is_same_v<Element, float>;

  static std::int64_t bytes(std::int64_t count) {
    return 4 * stride(count) + (rounds ? count * static_cast<std::int64_t>(sizeof(Element)) : 0);
  }
  //! Bytes from one tensor to the next, so that each begins at a multiple of 256.
  static std::int64_t stride(std::int64_t count) { return (4 * count + 255) / 256 * 256; }

  [[nodiscard]] std::size_t byte_count() const { return static_cast<std::size_t>(bytes(count_)); }

  void move(step_decision const& given, step_decision const* decided, cudaStream_t stream) {
    detail::adamw_step(
      {value(), gradient(), floats(2), floats(3)}, decays_, given, decided, count_, stream);
    round(stream);
  }
  void round(cudaStream_t stream) {
    if constexpr (rounds) {
      convert(reinterpret_cast<Element*>(floats(4)), value(), count_, stream);
    }
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

} // namespace gpt::on_gpu
