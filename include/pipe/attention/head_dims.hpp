// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The head dims that a kernel is built for, as one number: a template parameter of the GPU
//! functions.

#include <pipe/config.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::attention {

//! @brief Head dims as the template parameter Dim of the GPU functions. One number where both are
//! the same: head_dims(128, 128) is 128.
//! @param query elements of a head of queries and keys
//! @param value elements of a head of values and outputs
//! @pre both are above 0 and below 65536
[[nodiscard]] constexpr int head_dims(int query, int value) {
  return query == value ? query : value * 65536 + query;
}

namespace detail {

//! Elements of a head of queries and keys.
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr int query_dim(int dims) {
  return dims % 65536;
}
//! Elements of a head of values and outputs.
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr int value_dim(int dims) {
  return dims < 65536 ? dims : dims / 65536;
}
//! The head dims of a kernel.
template <int Dim>
struct kernel_dims {
  static_assert(Dim == 64 || Dim == 80 || Dim == 96 || Dim == 112 || Dim == 128 || Dim == 256 ||
                  Dim == head_dims(192, 128),
                "attention: the head dim of kernels must be 64, 80, 96, 112, 128, 256 or "
                "head_dims(192, 128), because tiles of other widths are not laid out");
  static constexpr int query = query_dim(Dim); //!< of queries and keys
  static constexpr int value = value_dim(Dim); //!< of values and outputs
};
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr bool is_power_of_two(int n) {
  return n > 0 && (n & (n - 1)) == 0;
}
//! Neighbouring lanes that share a row of so many elements, eight each: a power of two, so some may
//! have none.
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr int lanes_of_row(int dim) {
  int lanes = 1;
  while (lanes * 8 < dim) {
    lanes *= 2;
  }
  return lanes;
}
//! Elements from one row of a tile in shared memory to the next: whole groups of 64.
[[nodiscard]] PIPELINING_HOST_DEVICE constexpr int row_elements(int dim) {
  return (dim + 63) / 64 * 64;
}

} // namespace detail

} // namespace pipelining::inline v0_3::attention
