// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The optimizer's step on clipped gradients where one device has all stages.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "clipped_stage.hpp"
#include "stage.hpp"

namespace gpt {

//! The norm is that of the stages' rows in their order. Copies have the gradients of their stages
//! and step likewise. Returns how many steps were taken.
inline std::int64_t take_clipped_step(std::vector<stage<float>>& stages,
                                      clipping const& how,
                                      std::int64_t taken,
                                      std::span<stage<float>> copies = {}) {
  std::vector<gradient_row> rows;
  for (auto& each : stages) {
    rows.push_back(row_of(each));
  }
  auto const bytes = static_cast<std::int64_t>(sizeof(gradient_row));
  clipped_step const found(
    how,
    {reinterpret_cast<std::byte const*>(rows.data()), bytes, bytes, static_cast<int>(rows.size())});
  for (auto& each : stages) {
    take_step(each, how, found, taken);
  }
  for (auto& each : copies) {
    take_step(each, how, found, taken);
  }
  return taken + (found.finite ? 1 : 0);
}

} // namespace gpt
