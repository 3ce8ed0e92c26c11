// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A user's own mask and score, for host and kernels.

#include <pipe/attention/mask.hpp>
#include <pipe/attention/score.hpp>

#include <cstdint>

namespace kernel_tests {

namespace at = pipelining::attention;

//! A fixed pseudo-random half of all pairs, without an answer for tiles.
struct speckled {
  [[nodiscard]] PIPELINING_HOST_DEVICE bool keep(at::pair_position p) const {
    auto const mixed = static_cast<std::uint32_t>(p.query) * 7919u +
                       static_cast<std::uint32_t>(p.key) * 104729u +
                       static_cast<std::uint32_t>(p.head) * 31u;
    return (mixed * 2654435761u >> 16 & 1u) != 0;
  }
};

#include "window_of_head.inc"

//! A bent line whose slope depends on the product and on the pair.
struct bent {
  template <class Real>
  [[nodiscard]] PIPELINING_HOST_DEVICE Real value(Real s, at::pair_position p) const {
    return s + Real(0.1) * s * s / (Real{1} + s * s) * static_cast<Real>(1 + p.key % 3);
  }
  template <class Real>
  [[nodiscard]] PIPELINING_HOST_DEVICE Real derivative(Real s, Real, at::pair_position p) const {
    auto const below = Real{1} + s * s;
    return Real{1} + Real(0.2) * s / (below * below) * static_cast<Real>(1 + p.key % 3);
  }
};

} // namespace kernel_tests
