// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What tests ask of a text.

#include <cstddef>
#include <string_view>

namespace support {

//! How often a part that is not empty lies in a text.
inline int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

} // namespace support
