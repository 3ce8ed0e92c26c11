// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Cuts a sequence into slices that pass a pipeline in the least time. Header for
//! pipelining::shortest_slices.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Slices of a sequence that one after the other pass `stages` stages, as in GPipe, in the
//! least time: the least sum of all t plus (stages - 1) times the largest t. How many slices there
//! are is part of the answer: many are nearly equal and short, few have less of what each slice
//! costs.
//!
//! Exact over all cuts at multiples of `alignment`, whatever the times.
//!
//! @param time `time(length, prefix)` of a slice of `length` tokens behind `prefix` earlier ones on
//! one stage; asked once for each of n (n + 1) / 2 slices, n = tokens / alignment.
//! @param alignment all slices but the last are multiples of it.
//! @return the tokens of each slice, first to last.
//! @throws std::invalid_argument for tokens, stages or an alignment below 1, or for a time that is
//! not finite or negative.
//! @complexity O(n^2) for each of the at most n^2 / 2 different times below the answer's largest
//! one, O(n^2) memory.
//! @source Li et al., "TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language
//! Models", ICML 2021 (arXiv:2102.07988), section 3.3: for every largest time a shortest sum by
//! dynamic programming; all times are tried, without the paper's tolerance.
template <class Time>
requires requires(Time const time, int tokens) {
  { time(tokens, tokens) } -> std::convertible_to<double>;
}
[[nodiscard]] std::vector<int>
shortest_slices(int tokens, int stages, Time const& time, int alignment = 1) {
  if (tokens < 1 || stages < 1 || alignment < 1)
    throw std::invalid_argument("shortest_slices: tokens, stages and alignment must be at least 1");
  int const steps = (tokens - 1) / alignment + 1;
  auto const token = [=](int step) { return step == steps ? tokens : step * alignment; };
  auto const width = static_cast<std::size_t>(steps) + 1;
  std::vector<double> times(width * width); // [begin, end)
  auto const at = [&](int begin, int end) -> double& {
    return times[static_cast<std::size_t>(begin) * width + static_cast<std::size_t>(end)];
  };
  std::vector<double> largest; // candidates
  for (int begin = 0; begin < steps; ++begin)
    for (int end = begin + 1; end <= steps; ++end) {
      double const one = time(token(end) - token(begin), token(begin));
      if (!(one >= 0 && one <= std::numeric_limits<double>::max()))
        throw std::invalid_argument(
          "shortest_slices: the time of a slice must be a finite number and not negative");
      at(begin, end) = one;
      largest.push_back(one);
    }
  std::sort(largest.begin(), largest.end());
  largest.erase(std::unique(largest.begin(), largest.end()), largest.end());

  double best = std::numeric_limits<double>::infinity();
  std::vector<int> begins(width);
  std::vector<int> best_begins;
  std::vector<double> sums(width);
  for (double const most : largest) {
    if ((stages - 1) * most >= best)
      break; // all that follow are longer
    sums[0] = 0;
    for (int end = 1; end <= steps; ++end) {
      double& sum = sums[static_cast<std::size_t>(end)];
      sum = std::numeric_limits<double>::infinity();
      for (int begin = 0; begin < end; ++begin) {
        double const with = sums[static_cast<std::size_t>(begin)] + at(begin, end);
        if (at(begin, end) <= most && with < sum) {
          sum = with;
          begins[static_cast<std::size_t>(end)] = begin;
        }
      }
    }
    double const total = sums.back() + (stages - 1) * most;
    if (total < best) {
      best = total;
      best_begins = begins;
    }
  }
  std::vector<int> lengths;
  for (int end = steps; end > 0; end = best_begins[static_cast<std::size_t>(end)])
    lengths.push_back(token(end) - token(best_begins[static_cast<std::size_t>(end)]));
  std::reverse(lengths.begin(), lengths.end());
  return lengths;
}

} // namespace pipelining::inline v0_3
