// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Numbers of tables and charts, whatever the locale.

#include <pipe/view/append.hpp>

#include <string>

namespace examples {

//! Words and numbers, one after the other.
[[nodiscard]] std::string text_of(auto const&... parts) {
  std::string text;
  pipelining::append(text, parts...);
  return text;
}

//! A number with so many digits after the point, as it stands in a column.
[[nodiscard]] inline std::string decimals(double value, int count) {
  std::string text;
  pipelining::append_fixed(text, value, count);
  return text;
}

//! The same without trailing zeros, as it stands in a sentence.
[[nodiscard]] inline std::string rounded(double value, int count) {
  std::string text;
  pipelining::append_rounded(text, value, count);
  return text;
}

//! A share in per cent, as it stands in a column.
[[nodiscard]] inline std::string per_cent(double share) {
  return decimals(100 * share, 1) + " %";
}

} // namespace examples
