// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Arrays whose sizes are ints, as extents are, their owners, and a tree of the earliest.

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

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
  T* data = nullptr;
  std::size_t room = 0;

  constexpr owned() = default;
  constexpr explicit owned(std::integral auto count) { get(count); }
  constexpr owned(std::integral auto count, T value) { get(count, value); }
  constexpr ~owned() { delete[] data; }
  // std::exchange takes the compiler a millisecond for each type.
  constexpr owned(owned&& other) noexcept : data(other.data), room(other.room) {
    other.data = nullptr;
    other.room = 0;
  }
  owned& operator=(owned const&) = delete;

  //! Makes room. In loops the array is that of the turn before, if that is large enough, and holds
  //! its values.
  constexpr T* get(std::integral auto count) {
    std::size_t const wanted = count > 0 ? static_cast<std::size_t>(count) : 1;
    if (wanted > room) {
      T* const larger = new T[wanted];
      delete[] data;
      data = larger;
      room = wanted;
    }
    return data;
  }
  //! Makes room for elements that all have one value.
  constexpr T* get(std::integral auto count, T value) {
    get(count);
    for (decltype(count) i = 0; i < count; ++i) // none where the number is negative
      data[i] = value;
    return data;
  }
  constexpr operator T*() const noexcept { // NOLINT(google-explicit-constructor)
    return data;
  }
};

//! A list that grows, of values that can be assigned. std::vector takes the compiler 12 ms for each
//! type, which counts where a type serves one function.
template <class T>
struct owned_list {
  owned<T> all;
  std::size_t count = 0; //!< of them in use

  owned_list() = default;
  owned_list(owned_list&& other) noexcept : all(std::move(other.all)), count(other.count) {
    other.count = 0;
  }

  //! The next place, which holds anything.
  [[nodiscard]] T& take_place() {
    if (count == all.room) {
      owned<T> before(std::move(all));
      all.get(2 * count + 4);
      for (std::size_t i = 0; i < count; ++i)
        all.data[i] = std::move(before.data[i]);
    }
    return all.data[count++];
  }
  void push_back(T const& added) {
    if (count < all.room)
      all.data[count++] = added;
    else
      push_back(T(added)); // it may be an element, which moves
  }
  void push_back(T&& added) { take_place() = std::move(added); }
  void pop_back() noexcept { --count; }
  void clear() noexcept { count = 0; }
  [[nodiscard]] std::size_t size() const noexcept { return count; }
  [[nodiscard]] bool empty() const noexcept { return count == 0; }
  [[nodiscard]] T* data() const noexcept { return all.data; }
  [[nodiscard]] T* begin() const noexcept { return all.data; }
  [[nodiscard]] T* end() const noexcept { return all.data + count; }
  [[nodiscard]] T& back() const noexcept { return all.data[count - 1]; }
  [[nodiscard]] T& operator[](std::size_t at) const noexcept { return all.data[at]; }
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
