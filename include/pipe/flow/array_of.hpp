// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Arrays whose sizes are ints, as extents are.

#include <concepts>
#include <cstddef>

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

} // namespace pipelining::inline v0_3::detail
