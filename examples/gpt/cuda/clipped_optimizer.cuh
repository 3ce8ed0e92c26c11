// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief AdamW on clipped gradients, whose norm and number of steps only the GPU knows, so that a
//! graph can have it.

#include <pipe/cuda/handles.cuh>
#include <pipe/run/context.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../clipped_stage.hpp"
#include "trained.cuh"

namespace gpt::on_gpu {

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

//! What a stage knows of its steps.
struct optimizer_state {
  step_counts counts{};
  step_decision now{};
};
//! Looks at the rows of all stages, or of some, as `clipped_step` does on the host.
inline void decide(optimizer_state* state,
                   step_factors const* of_steps,
                   std::int64_t steps,
                   double largest_norm,
                   pp::totals const& all,
                   cudaStream_t stream) {
  for_each_number(1, stream, [=] __device__(std::int64_t) {
    gradient_row sum;
    for (int stage = 0; stage < all.rows; ++stage) {
      auto const& row = *reinterpret_cast<gradient_row const*>(all.data + stage * all.stride);
      sum.squared_norm += row.squared_norm;
      sum.not_finite += row.not_finite;
    }
    bool const finite = sum.not_finite == 0;
    double const wanted = largest_norm / (sqrt(sum.squared_norm) + 1e-6);
    auto const taken = state->counts.taken;
    state->now = {of_steps[taken < steps ? taken : steps - 1],
                  static_cast<float>(wanted < 1 ? wanted : 1),
                  finite ? 1 : 0};
    state->counts.taken += finite ? 1 : 0;
    state->counts.clipped += finite && wanted < 1 ? 1 : 0;
    state->counts.left_out += finite ? 0 : 1;
  });
}
} // namespace detail

//! What the optimizer of a stage has beside the weights.
class clipped_optimizer {
public:
  explicit clipped_optimizer(clipping const& how)
      : how_(how), steps_(std::max<std::int64_t>(how.optimizer.steps, 1)),
        factors_(steps_ * static_cast<std::int64_t>(sizeof(step_factors))),
        parts_(detail::row_parts * static_cast<std::int64_t>(sizeof(gradient_row))),
        states_(2 * static_cast<std::int64_t>(sizeof(detail::optimizer_state))) {
    std::vector<step_factors> all;
    for (std::int64_t step = 0; step < steps_; ++step) {
      all.push_back(factors_of(how_.optimizer, step));
    }
    cuda::check(
      cudaMemcpy(
        factors_.data(), all.data(), all.size() * sizeof(step_factors), cudaMemcpyHostToDevice),
      "cudaMemcpy");
  }

  //! Writes the row of a stage. @param weights [any number of] trained
  //! @param counts of the number of one whether the norm has it from here
  template <class Weights, class Counts>
  void contribute(Weights const& weights, Counts counts, std::byte* row, cudaStream_t stream) {
    auto* const parts = reinterpret_cast<gradient_row*>(parts_.data());
    cuda::check(cudaMemsetAsync(parts, 0, detail::row_parts * sizeof(gradient_row), stream),
                "cudaMemsetAsync");
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (counts(i)) {
        detail::add_squares(parts, weights[i].gradient(), weights[i].count(), stream);
      }
    }
    detail::fold(parts, detail::row_parts, 32, stream);
    detail::fold(parts, 32, 1, stream);
    copy_bytes(row, parts, sizeof(gradient_row), stream);
  }

  template <class Weights>
  void step(Weights& weights, pp::totals const& all, cudaStream_t stream) {
    if (how_.early) { // to compute backwards what the optimizer did would round
      for (auto& weight : weights) {
        weight.keep_copy(stream);
      }
      copy_bytes(state(1), state(0), sizeof(detail::optimizer_state), stream);
    }
    auto const* const factors = reinterpret_cast<step_factors const*>(factors_.data());
    detail::decide(state(0), factors, steps_, how_.largest_norm, all, stream);
    for (auto& weight : weights) {
      weight.update(&state(0)->now, stream);
    }
  }

  //! Brings back what was there before the last step.
  template <class Weights>
  void roll_back(Weights& weights, cudaStream_t stream) {
    for (auto& weight : weights) {
      weight.restore(stream);
    }
    copy_bytes(state(0), state(1), sizeof(detail::optimizer_state), stream);
  }

  //! @pre no step is under way
  [[nodiscard]] step_counts counts() const {
    detail::optimizer_state now;
    cuda::check(cudaMemcpy(&now, state(0), sizeof now, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return now.counts;
  }

  //! Hands them to a packer, or has them filled by an unpacker.
  template <class Archive>
  void exchange(Archive& with) {
    detail::optimizer_state now;
    now.counts = counts();
    with(now.counts);
    cuda::check(cudaMemcpy(state(0), &now, sizeof now, cudaMemcpyHostToDevice), "cudaMemcpy");
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
