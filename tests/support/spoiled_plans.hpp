// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans with something left out, which no proof may accept. Header for leave_out_waits.

#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove.hpp>

#include <doctest/doctest.h>

#include <cstddef>

namespace support {

//! @brief Leaves out one wait of a plan after the other, and checks that the proof misses it.
//! @return how many there were
inline int leave_out_waits(pipelining::plan const& whole) {
  int left_out = 0;
  for (std::size_t i = 0; i < whole.items.size(); ++i)
    for (int k = 0; k < whole.items[i].wait_count; ++k) {
      pipelining::plan broken = whole;
      pipelining::item& step = broken.items[i];
      auto const first = static_cast<std::size_t>(step.first_wait);
      broken.waits[first + static_cast<std::size_t>(k)] =
        broken.waits[first + static_cast<std::size_t>(step.wait_count) - 1];
      --step.wait_count;
      CHECK(pipelining::prove(broken).broken == pipelining::proof::rule::unordered);
      ++left_out;
    }
  return left_out;
}

} // namespace support
