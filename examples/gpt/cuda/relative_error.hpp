// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How far the gradients of a GPU are from those of the host.

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace gpt {

//! The length of the difference over the length of what is right.
//! @throws std::logic_error for lists of different lengths
inline double relative_error(std::vector<float> const& mine, std::vector<float> const& right) {
  if (mine.size() != right.size()) {
    throw std::logic_error("gradients of two models have not the same parameters");
  }
  double off = 0;
  double all = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    double const difference = static_cast<double>(mine[i]) - static_cast<double>(right[i]);
    off += difference * difference;
    all += static_cast<double>(right[i]) * static_cast<double>(right[i]);
  }
  return std::sqrt(off / all);
}

} // namespace gpt
