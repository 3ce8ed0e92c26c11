// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Products of matrices whose result does not depend on how the tokens are grouped.
//!
//! Every number is a sum that is added up one term after the other, in an order that only the place
//! of the number decides. So tokens may come in one chunk or in many: the bits are the same.

#include <pipe/attention/host/vectors.hpp>

#include <algorithm>
#include <cstdint>

namespace gpt {

//! The version of the loops that this process uses.
[[nodiscard]] inline pipelining::attention::vector_version vectors() {
  return pipelining::attention::vector_version::of_process();
}

//! to [tokens, columns] += from [tokens, inner] * matrix [inner, columns]. Rows of `to` may be
//! wider.
template <class Number>
void add_product(Number* to,
                 std::int64_t to_stride,
                 Number const* from,
                 Number const* matrix,
                 std::int64_t tokens,
                 std::int64_t inner,
                 std::int64_t columns) {
  pipelining::attention::add_product(
    vectors(), to, to_stride, from, inner, 1, matrix, columns, tokens, inner, columns);
}

//! to [inner, columns] += transposed(from [tokens, inner]) * other [tokens, columns], last token
//! first.
template <class Number>
void add_outer_products(Number* to,
                        Number const* from,
                        Number const* other,
                        std::int64_t other_stride,
                        std::int64_t tokens,
                        std::int64_t inner,
                        std::int64_t columns) {
  auto const last = tokens - 1;
  pipelining::attention::add_product(vectors(),
                                     to,
                                     columns,
                                     from + last * inner,
                                     1,
                                     -inner,
                                     other + last * other_stride,
                                     -other_stride,
                                     inner,
                                     tokens,
                                     columns);
}

//! to [columns, rows] = transposed(from [rows, columns]), by blocks of a few cache lines.
template <class Number>
void transpose(Number const* from, Number* to, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t some_rows = 16;
  constexpr std::int64_t some_columns = 8;
  for (std::int64_t n = 0; n < columns; n += some_columns) {
    for (std::int64_t r = 0; r < rows; r += some_rows) {
      auto const last_row = std::min(rows, r + some_rows);
      for (auto column = n; column < std::min(columns, n + some_columns); ++column) {
        for (auto row = r; row < last_row; ++row) {
          to[column * rows + row] = from[row * columns + column];
        }
      }
    }
  }
}

} // namespace gpt
