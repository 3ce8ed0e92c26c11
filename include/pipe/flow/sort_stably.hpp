// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stable sort. Header for pipelining::detail::sort_stably.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! std::stable_sort, whose buffer newer compilers call deprecated in the standard library of GCC
//! 12, in the user's program.
template <class T, class Less>
void sort_stably(std::vector<T>& all, Less const& less) {
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return less(all[a], all[b]) || (a < b && !less(all[b], all[a]));
  });
  std::vector<T> sorted;
  sorted.reserve(all.size());
  for (std::size_t const each : order)
    sorted.push_back(std::move(all[each]));
  all = std::move(sorted);
}

} // namespace pipelining::inline v0_3::detail
