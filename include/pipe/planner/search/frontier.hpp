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
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief One thing to choose: how much memory it takes, and how much time.
struct choice_point {
  double memory = 0; //!< what it takes of memory
  double time = 0;   //!< what it takes of time
  int extras = 0;    //!< how far it is from a plain schedule: options and adapters
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

//! @brief The pick under a limit, and what lies next to it on the frontier.
struct memory_choice {
  //! Times that differ by this share are equal: no prediction is as good.
  static constexpr double equal = 1e-3;

  std::optional<std::size_t> pick; //!< the best that fits, as `choose_within` says
  std::optional<std::size_t>
    faster;                         //!< the next faster one, with the least memory beyond the limit
  std::optional<std::size_t> least; //!< the one with the least memory of all
};

//! @brief Chooses from all points under a limit. Of those as fast as the fastest, within
//! `memory_choice::equal`, the pick has the least memory; of equal ones, the fewest extras; then
//! the least time; then it is the first.
//! @complexity O(n log n)
[[nodiscard]] inline memory_choice choose_within(std::span<choice_point const> points,
                                                 double limit) {
  memory_choice result;
  double fastest = 0;
  for (std::size_t const each : frontier(points)) {
    if (!result.least)
      result.least = each;
    if (points[each].memory <= limit)
      fastest = points[each].time;
    else if (!result.faster)
      result.faster = each;
  }
  auto const better = [](choice_point const& a, choice_point const& b) {
    constexpr double rounding = 1e-9; // of sums of bytes
    return a.memory < b.memory * (1 - rounding) ||
           (a.memory <= b.memory * (1 + rounding) &&
            std::pair(a.extras, a.time) < std::pair(b.extras, b.time));
  };
  for (std::size_t i = 0; i < points.size(); ++i)
    if (points[i].memory <= limit && points[i].time <= fastest * (1 + memory_choice::equal) &&
        (!result.pick || better(points[i], points[*result.pick])))
      result.pick = i;
  return result;
}

} // namespace pipelining::inline v0_3
