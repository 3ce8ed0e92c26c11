// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Stable sorts, of which one is compiled for all. Header for
//! pipelining::detail::sort_stably and sort_numbers.

#include <pipe/flow/array_of.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Sorts numbers by an order that is told by a function; equal ones by number. Runs are merged, as
//! std::sort takes the compiler 14 ms.
//! @param before `before(order, a, b)`: whether a comes before b
inline void
sort_numbers(std::vector<int>& all, bool (*before)(void const*, int, int), void const* order) {
  auto const comes_before = [=](int a, int b) {
    return before(order, a, b) || (a < b && !before(order, b, a));
  };
  owned<int> merged(all.size());
  for (std::size_t run = 1; run < all.size(); run *= 2) {
    int const* const from = all.data();
    for (std::size_t i = 0; i < all.size(); i += 2 * run) {
      std::size_t const middle = std::min(i + run, all.size());
      std::size_t const end = std::min(middle + run, all.size());
      std::size_t left = i;
      std::size_t right = middle;
      for (std::size_t at = i; at < end; ++at) {
        bool const first =
          right == end || (left < middle && !comes_before(from[right], from[left]));
        merged.data[at] = from[first ? left++ : right++];
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i)
      all.data()[i] = merged.data[i];
  }
}

//! The same by `less(a, b)`. A sort of its own for each order takes the compiler 10 ms.
template <class Less>
void sort_numbers(std::vector<int>& all, Less const& less) {
  sort_numbers(
    all,
    [](void const* order, int a, int b) { return (*static_cast<Less const*>(order))(a, b); },
    &less);
}

//! std::stable_sort, whose buffer newer compilers call deprecated in the standard library of GCC
//! 12, in the user's program.
template <class List, class Less>
void sort_stably(List& all, Less const& less) {
  auto* const values = all.data();
  std::vector<int> order(all.size());
  owned<std::remove_pointer_t<decltype(values)>> given(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int>(i);
    given.data[i] = std::move(values[i]);
  }
  auto* const from = given.data;
  sort_numbers(order, [from, &less](int a, int b) { return less(from[a], from[b]); });
  for (std::size_t i = 0; i < order.size(); ++i)
    values[i] = std::move(from[order[i]]);
}

} // namespace pipelining::inline v0_3::detail
