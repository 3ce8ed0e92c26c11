// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Exact fractions. Header for pipelining::ratio.

#include <compare>
#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief A fraction kept as it was given; comparisons look at its value, so ratio{2, 4} ==
//! ratio{1, 2}.
//!
//! @pre `denominator` > 0, and both members stay below 2^31 so that the products of a comparison
//! are exact.
struct ratio {
  std::int64_t numerator = 0;   //!< as it was given
  std::int64_t denominator = 1; //!< as it was given, above 0

  friend constexpr bool operator==(ratio a, ratio b) noexcept {
    return a.numerator * b.denominator == b.numerator * a.denominator;
  }
  friend constexpr std::strong_ordering operator<=>(ratio a, ratio b) noexcept {
    return a.numerator * b.denominator <=> b.numerator * a.denominator;
  }
};

//! @brief The nearest double.
[[nodiscard]] constexpr double to_double(ratio r) noexcept {
  return static_cast<double>(r.numerator) / static_cast<double>(r.denominator);
}

} // namespace pipelining::inline v0_3
