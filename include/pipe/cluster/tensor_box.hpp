// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Boxes of tensors: where they meet, and how numbers go from one to another. Header for
//! pipelining::detail::copy_common.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Part of a tensor: its numbers from `first` on, `shape` of them, row by row. Both have as many
//! axes as the tensor.
struct tensor_box {
  std::vector<std::int64_t> first{};
  std::vector<std::int64_t> shape{};

  friend bool operator==(tensor_box const&, tensor_box const&) = default;
};

[[nodiscard]] inline std::int64_t numbers_of(tensor_box const& box) noexcept {
  std::int64_t count = 1;
  for (std::int64_t const extent : box.shape)
    count *= extent;
  return count;
}

//! The common part of two boxes of one tensor; an extent is zero where they miss each other.
[[nodiscard]] inline tensor_box common_of(tensor_box const& a, tensor_box const& b) {
  tensor_box common = a;
  for (std::size_t axis = 0; axis < a.shape.size(); ++axis) {
    common.first[axis] = std::max(a.first[axis], b.first[axis]);
    std::int64_t const end = std::min(a.first[axis] + a.shape[axis], b.first[axis] + b.shape[axis]);
    common.shape[axis] = std::max(end - common.first[axis], std::int64_t{0});
  }
  return common;
}

//! Where a number of the tensor lies in a box [numbers].
//! @param at [axes] in the tensor; inside the box.
[[nodiscard]] inline std::int64_t offset_in(tensor_box const& box,
                                            std::vector<std::int64_t> const& at) noexcept {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < at.size(); ++axis)
    offset = offset * box.shape[axis] + at[axis] - box.first[axis];
  return offset;
}

//! Copies the common part of two boxes of one tensor.
//! @param width [bytes] of a number. @param source, target all bytes of `from` and of `to`.
//! @complexity O(bytes copied), in one piece for each row that they have in common.
inline void copy_common(tensor_box const& from,
                        std::span<std::byte const> source,
                        tensor_box const& to,
                        std::span<std::byte> target,
                        std::int64_t width) {
  tensor_box const common = common_of(from, to);
  if (numbers_of(common) == 0)
    return;
  std::size_t const axes = common.shape.size();
  auto const row = static_cast<std::size_t>(width * (axes == 0 ? 1 : common.shape.back()));
  std::vector<std::int64_t> at = common.first;
  for (bool more = true; more;) {
    std::memcpy(
      target.data() + width * offset_in(to, at), source.data() + width * offset_in(from, at), row);
    more = false;
    for (std::size_t axis = axes - (axes == 0 ? 0 : 1); axis-- > 0 && !more;) {
      more = ++at[axis] < common.first[axis] + common.shape[axis];
      if (!more)
        at[axis] = common.first[axis];
    }
  }
}

} // namespace pipelining::inline v0_3::detail
