// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Products of matrices whose result does not depend on how the tokens are grouped.
//!
//! Every number is a sum that is added up one term after the other, in an order that only the place
//! of the number decides. So tokens may come in one chunk or in many: the bits are the same.

#include <cstdint>

namespace gpt {

//! to[x] += factor[i] * rows[i][x] for i = 0, 1, ..., one addition after the other for each x.
template <class Number>
inline void add_rows(Number* __restrict to,
                     Number const* factor,
                     std::int64_t factor_stride,
                     Number const* __restrict rows,
                     std::int64_t row_stride,
                     std::int64_t count,
                     std::int64_t width) {
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    Number const a = factor[i * factor_stride];
    Number const b = factor[(i + 1) * factor_stride];
    Number const c = factor[(i + 2) * factor_stride];
    Number const d = factor[(i + 3) * factor_stride];
    Number const* __restrict const first = rows + i * row_stride;
    Number const* __restrict const second = first + row_stride;
    Number const* __restrict const third = second + row_stride;
    Number const* __restrict const fourth = third + row_stride;
    for (std::int64_t x = 0; x < width; ++x) {
      to[x] = (((to[x] + a * first[x]) + b * second[x]) + c * third[x]) + d * fourth[x];
    }
  }
  for (; i < count; ++i) {
    Number const a = factor[i * factor_stride];
    Number const* __restrict const first = rows + i * row_stride;
    for (std::int64_t x = 0; x < width; ++x) {
      to[x] = to[x] + a * first[x];
    }
  }
}

inline constexpr std::int64_t columns_at_once = 128; //!< keeps a strip of the matrix in the cache

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
  for (std::int64_t n = 0; n < columns; n += columns_at_once) {
    auto const width = columns - n < columns_at_once ? columns - n : columns_at_once;
    for (std::int64_t t = 0; t < tokens; ++t) {
      add_rows(to + t * to_stride + n, from + t * inner, 1, matrix + n, columns, inner, width);
    }
  }
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
  for (std::int64_t n = 0; n < columns; n += columns_at_once) {
    auto const width = columns - n < columns_at_once ? columns - n : columns_at_once;
    for (std::int64_t k = 0; k < inner; ++k) {
      add_rows(to + k * columns + n,
               from + last * inner + k,
               -inner,
               other + last * other_stride + n,
               -other_stride,
               tokens,
               width);
    }
  }
}

} // namespace gpt
