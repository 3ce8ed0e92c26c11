// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What tests ask of a text. Header for count and thrown_by.

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

namespace support {

//! How often a part that is not empty lies in a text.
inline int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

//! The sentence of the exception that a call throws, or nothing.
template <class Call>
std::string thrown_by(Call call) {
  try {
    call();
    return {};
  } catch (std::exception const& error) {
    return error.what();
  }
}

} // namespace support
