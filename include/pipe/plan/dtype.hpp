// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Types and shapes of tensors, as safetensors files write them. Header for
//! pipelining::detail::bytes_of_dtype.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3::detail {

struct dtype_size {
  std::string_view name;
  int bytes;
};
inline constexpr std::array<dtype_size, 17> dtype_sizes = {{{"BOOL", 1},
                                                            {"U8", 1},
                                                            {"I8", 1},
                                                            {"F8_E5M2", 1},
                                                            {"F8_E4M3", 1},
                                                            {"F8_E8M0", 1},
                                                            {"I16", 2},
                                                            {"U16", 2},
                                                            {"F16", 2},
                                                            {"BF16", 2},
                                                            {"I32", 4},
                                                            {"U32", 4},
                                                            {"F32", 4},
                                                            {"F64", 8},
                                                            {"I64", 8},
                                                            {"U64", 8},
                                                            {"C64", 8}}};

//! Bytes of a number; 0 where the dtype is unknown.
[[nodiscard]] constexpr int bytes_of_dtype(std::string_view dtype) noexcept {
  for (dtype_size const& each : dtype_sizes)
    if (each.name == dtype)
      return each.bytes;
  return 0;
}

//! Such as "[4,8]".
[[nodiscard]] inline std::string list_of(std::vector<std::int64_t> const& numbers) {
  std::string text = "[";
  for (std::int64_t const number : numbers)
    text.append(text.size() == 1 ? "" : ",").append(std::to_string(number));
  return text + ']';
}

} // namespace pipelining::inline v0_3::detail
