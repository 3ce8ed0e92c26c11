// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `--name=value` and `--name value` are the same on every command line of the examples.

#include <string_view>
#include <vector>

namespace examples {

//! The words of a command line, with `--name=value` as two of them.
[[nodiscard]] inline std::vector<std::string_view> split_words(int count,
                                                               char const* const* words) {
  std::vector<std::string_view> result;
  for (int i = 1; i < count; ++i) {
    std::string_view const word = words[i];
    auto const equals = word.find('=');
    bool const both = word.substr(0, 2) == "--" && equals != word.npos;
    result.push_back(both ? word.substr(0, equals) : word);
    if (both)
      result.push_back(word.substr(equals + 1));
  }
  return result;
}

} // namespace examples
