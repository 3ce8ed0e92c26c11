// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Memory for the time of one function, at run time and in constant evaluations.

#include <cstddef>

namespace pipelining::inline v0_2 {
namespace detail {

//! An array that lives as long as its scope; without a value its elements are not initialised.
template <class T>
struct scratch {
  T* data;

  constexpr explicit scratch(int size)
      : data(new T[static_cast<std::size_t>(size > 0 ? size : 1)]) {}
  constexpr scratch(int size, T value) : scratch(size) {
    for (int i = 0; i < size; ++i)
      data[i] = value;
  }
  constexpr ~scratch() { delete[] data; }
  scratch(scratch const&) = delete;
  scratch& operator=(scratch const&) = delete;
};

} // namespace detail
} // namespace pipelining::inline v0_2
