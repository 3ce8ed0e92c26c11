// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Functions of scale * query . key before the softmax: the score concept and the usual
//! scores.

#include <pipe/attention/mask.hpp>
#include <pipe/config.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3::attention {

//! @brief A score turns the scaled product s of a pair into the logit, and knows d logit / d s.
//!
//! derivative(s, logit, at) is handed what value(s, at) returned, so that it need not redo it.
template <class Score>
concept score = requires(Score const& f, float s, pair_position at) {
  { f.value(s, at) } -> std::convertible_to<float>;
  { f.derivative(s, s, at) } -> std::convertible_to<float>;
};

//! @brief The scaled product as it is.
struct plain {
  template <class Real>
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr Real value(Real s, pair_position) const {
    return s;
  }
  template <class Real>
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr Real derivative(Real, Real, pair_position) const {
    return Real{1};
  }
};

//! @brief cap * tanh(s / cap): logits stay between -cap and cap.
//! @pre cap > 0
struct soft_cap {
  float cap = 30; //!< the bound of the logits

  template <class Real>
  [[nodiscard]] PIPELINING_HOST_DEVICE Real value(Real s, pair_position) const {
    using std::tanh;
    return static_cast<Real>(cap) * tanh(s / static_cast<Real>(cap));
  }
  template <class Real>
  [[nodiscard]] PIPELINING_HOST_DEVICE Real derivative(Real, Real logit, pair_position) const {
    auto const t = logit / static_cast<Real>(cap);
    return Real{1} - t * t;
  }
};

//! @brief s - slope(head) * |query - key|: far keys weigh less.
//! @source Press et al. 2022 (ALiBi), section 3
struct alibi {
  float const* slopes = nullptr; //!< [heads], the caller's memory on the side of the call

  template <class Real>
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr Real value(Real s, pair_position at) const {
    auto const ahead = at.query - at.key; // positions are never negative, so 32 bits do
    return s - static_cast<Real>(slopes[at.head]) * static_cast<Real>(ahead < 0 ? -ahead : ahead);
  }
  template <class Real>
  [[nodiscard]] PIPELINING_HOST_DEVICE constexpr Real derivative(Real, Real, pair_position) const {
    return Real{1};
  }
};

//! @brief The geometric slopes 2^(-8 (h + 1) / heads) of the ALiBi paper.
//! @source Press et al. 2022 (ALiBi), section 3 (for powers of two; here the same formula
//! throughout)
[[nodiscard]] inline std::vector<float> alibi_slopes(std::int64_t heads) {
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < heads; ++h) {
    auto const exponent = -8.0 * static_cast<double>(h + 1) / static_cast<double>(heads);
    slopes.push_back(static_cast<float>(std::exp2(exponent)));
  }
  return slopes;
}

} // namespace pipelining::inline v0_3::attention
