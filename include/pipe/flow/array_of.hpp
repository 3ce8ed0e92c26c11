// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Arrays whose sizes are ints, as extents are, their owners, and a stable sort.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief An array whose bound is an int, as extents are; `T of[count]` makes g++ warn of the sign
//! in the builds of users who ask for -Wsign-conversion.
//! @pre Count >= 1; another one does not compile.
template <class T, int Count>
using array_of = T[static_cast<std::size_t>(Count)];

//! Owns an array, and stands for the pointer to it; without a value its elements are not
//! initialised. Loops that the compiler evaluates ask `data`: the conversion is a call, which costs
//! two of clang's steps.
template <class T>
struct owned {
  T* data;

  constexpr explicit owned(std::integral auto count)
      : data(new T[static_cast<std::size_t>(count > 0 ? count : 1)]) {}
  constexpr owned(std::integral auto count, T value) : owned(count) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      data[i] = value;
  }
  constexpr ~owned() { delete[] data; }
  owned(owned const&) = delete;
  owned& operator=(owned const&) = delete;
  constexpr operator T*() const noexcept { // NOLINT(google-explicit-constructor)
    return data;
  }
};

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

//! An array for loops, which stands for the pointer to it: turn after turn it is that of the turn
//! before, if that is large enough.
template <class T>
class reused_scratch {
public:
  constexpr reused_scratch() = default;
  constexpr ~reused_scratch() { delete[] data_; }
  reused_scratch(reused_scratch const&) = delete;
  reused_scratch& operator=(reused_scratch const&) = delete;

  //! Makes room. Elements are not initialised, or hold their values from before.
  constexpr T* get(int size) {
    if (size > size_ || data_ == nullptr) {
      T* const larger = new T[static_cast<std::size_t>(size > 0 ? size : 1)];
      delete[] data_;
      data_ = larger;
      size_ = size;
    }
    return data_;
  }
  //! Makes room for elements that all have one value.
  constexpr T* get(int size, T value) {
    T* const result = get(size);
    for (int i = 0; i < size; ++i)
      result[i] = value;
    return result;
  }
  constexpr operator T*() const noexcept { // NOLINT(google-explicit-constructor)
    return data_;
  }

private:
  T* data_ = nullptr;
  int size_ = 0;
};

} // namespace pipelining::inline v0_3::detail
