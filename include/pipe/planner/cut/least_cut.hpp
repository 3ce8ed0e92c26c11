// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Cuts a row of items into runs at the least cost: layers into stages, tokens into chunks.

#include <cstddef>
#include <limits>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Joins a cut and its next run where the slowest run counts.
inline constexpr auto slower = [](double rest, double run) { return rest < run ? run : rest; };

//! A cut, and its cost.
struct run_cut {
  std::vector<int> lengths; //!< [parts] items of each run
  double cost = 0;
};

//! The first cut of the least cost, by dynamic programming over the end of each run.
//! @param shortest items of a run, 0 or 1
//! @param cost_of `cost_of(begin, end)(part)`: the cost of a run of these items, as a part from 0
//! on
//! @param join `join(rest, run)`: the cost of the runs before one, and of this one
//! @complexity O(parts n^2) for n items
[[nodiscard]] run_cut
least_cut(int count, int parts, int shortest, auto const& cost_of, auto const& join) {
  auto const width = static_cast<std::size_t>(parts) + 1;
  std::vector<double> best((static_cast<std::size_t>(count) + 1) * width,
                           std::numeric_limits<double>::infinity());
  std::vector<int> begins(best.size());
  best[0] = 0;
  for (int end = 0; end <= count; ++end)
    for (int begin = 0; begin + shortest <= end; ++begin) {
      auto const cost = cost_of(begin, end);
      std::size_t const before = static_cast<std::size_t>(begin) * width;
      std::size_t const here = static_cast<std::size_t>(end) * width + 1;
      for (int part = 0; part < parts; ++part) {
        auto const at = static_cast<std::size_t>(part);
        double const all = join(best[before + at], cost(part));
        if (all < best[here + at]) {
          best[here + at] = all;
          begins[here + at] = begin;
        }
      }
    }
  run_cut result{std::vector<int>(static_cast<std::size_t>(parts)), best.back()};
  for (int part = parts, end = count; part > 0; --part) {
    auto const at = static_cast<std::size_t>(part);
    int const begin = begins[static_cast<std::size_t>(end) * width + at];
    result.lengths[at - 1] = end - begin;
    end = begin;
  }
  return result;
}

} // namespace pipelining::inline v0_3::detail
