// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Arrays whose sizes are ints, as extents are, their owners, a stable sort, and a tree of
//! the earliest.

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
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

//! The row of the earliest time; equal times go by row number. A tree: every node has the first of
//! the two below it, and the rows are its leaves. A change takes no jumps that a processor could
//! foresee wrongly, which took longer than all other work on a pass.
struct earliest_tree {
  struct node {
    std::int64_t key = absent;
    int row = 0;
  };
  static constexpr std::int64_t absent = std::numeric_limits<std::int64_t>::max() - 1;

  int leaves;        // a power of two
  owned<node> nodes; // [2 leaves], node 1 above all

  constexpr explicit earliest_tree(int rows)
      : leaves(static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)))),
        nodes(2 * leaves, node{}) {}

  [[nodiscard]] constexpr bool empty() const noexcept { return nodes[1].key == absent; }
  [[nodiscard]] constexpr int first() const noexcept { return nodes[1].row; }
  //! A number that grows with a time.
  [[nodiscard]] static constexpr std::int64_t key_of(double time) noexcept {
    auto const bits = std::bit_cast<std::int64_t>(time + 0.0);
    return bits < 0 ? bits ^ std::numeric_limits<std::int64_t>::max() : bits;
  }
  //! A row has another key, or none.
  constexpr void set(int row, std::int64_t key) noexcept {
    node now{key, row};
    int at = leaves + row;
    for (; at > 1; at /= 2) {
      nodes.data[at] = now;
      node const other = nodes.data[at ^ 1];
      bool const earlier = other.key < now.key + at % 2; // of equals the left one
      now.key = earlier ? other.key : now.key;
      now.row = earlier ? other.row : now.row;
    }
    nodes.data[at] = now;
  }
};

} // namespace pipelining::inline v0_3::detail
