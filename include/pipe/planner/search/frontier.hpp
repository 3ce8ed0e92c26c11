// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What to choose where memory buys time. Header for pipelining::choice_point, frontier and
//! choose_within.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief One thing to choose: how much memory it takes, and how much time.
struct choice_point {
  double memory = 0; //!< what it takes of memory
  double time = 0;   //!< what it takes of time
};

//! @brief The points that no other point beats in both, by memory; the first of equal ones.
//! @return positions in `points`; times fall along them.
//! @complexity O(n log n)
[[nodiscard]] inline std::vector<std::size_t> frontier(std::span<choice_point const> points) {
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [points](std::size_t a, std::size_t b) {
    if (points[a].memory != points[b].memory)
      return points[a].memory < points[b].memory;
    return points[a].time != points[b].time ? points[a].time < points[b].time : a < b;
  });
  std::vector<std::size_t> result;
  for (std::size_t const each : order)
    if (result.empty() || points[each].time < points[result.back()].time)
      result.push_back(each);
  return result;
}

//! @brief The pick under a limit, and what lies beside it on the frontier.
struct memory_choice {
  std::optional<std::size_t> pick; //!< the fastest that fits
  std::optional<std::size_t>
    faster;                         //!< the next faster one, with the least memory beyond the limit
  std::optional<std::size_t> least; //!< the one with the least memory of all
};

//! @brief Chooses from all points under a limit.
[[nodiscard]] inline memory_choice choose_within(std::span<choice_point const> points,
                                                 double limit) {
  memory_choice result;
  for (std::size_t const each : frontier(points)) {
    if (!result.least)
      result.least = each;
    if (points[each].memory <= limit)
      result.pick = each;
    else if (!result.faster)
      result.faster = each;
  }
  return result;
}

} // namespace pipelining::inline v0_3
