// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Memory for the time of one function, at run time and in constant evaluations.

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! An array for loops: turn after turn it gives that of the turn before, if it is large enough.
template <class T>
class reused_scratch {
public:
  constexpr reused_scratch() = default;
  constexpr ~reused_scratch() { delete[] data_; }
  reused_scratch(reused_scratch const&) = delete;
  reused_scratch& operator=(reused_scratch const&) = delete;

  //! An array whose elements are not initialised, or hold their values from before.
  [[nodiscard]] constexpr T* get(int size) {
    if (size > size_ || data_ == nullptr) {
      T* const larger = new T[static_cast<std::size_t>(size > 0 ? size : 1)];
      delete[] data_;
      data_ = larger;
      size_ = size;
    }
    return data_;
  }
  //! An array whose elements all have one value.
  [[nodiscard]] constexpr T* get(int size, T value) {
    T* const result = get(size);
    for (int i = 0; i < size; ++i)
      result[i] = value;
    return result;
  }

private:
  T* data_ = nullptr;
  int size_ = 0;
};

} // namespace pipelining::inline v0_3::detail
