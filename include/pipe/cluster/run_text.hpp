// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Descriptions of runs as lines of `key=value`, and their first difference. Header for
//! pipelining::detail::differing_lines.

#include <pipe/flow/quote.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3::detail {

//! Takes the next line out of a text.
[[nodiscard]] inline std::string_view take_line(std::string_view& text) {
  std::string_view const line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

[[nodiscard]] inline std::string_view key_of(std::string_view line) {
  return line.substr(0, line.find('='));
}

//! The line of a key; an empty one where there is none.
[[nodiscard]] inline std::string_view line_of(std::string_view text, std::string_view key) {
  while (!text.empty())
    if (std::string_view const line = take_line(text); key_of(line) == key)
      return line;
  return {};
}

//! The first difference of two texts of lines `key=value` as a sentence: "rank 0 has seed=1,
//! rank 2 has seed=7", or "rank 0 has seed=1, rank 2 has no seed".
//! Printable, since texts may be those of files.
//! @param one, other whose texts they are, such as "rank 0".
//! @return an empty text when there is none. @complexity O(bytes)
[[nodiscard]] inline std::string differing_lines(std::string_view one,
                                                 std::string_view ones,
                                                 std::string_view other,
                                                 std::string_view others) {
  auto const sentence = [&](std::string_view first, std::string_view second) {
    return std::string(one)
      .append(" has ")
      .append(printable(first))
      .append(", ")
      .append(other)
      .append(" has ")
      .append(printable(second));
  };
  // What a text has instead of a line: its line of that key.
  auto const instead = [](std::string_view line, std::string_view text, std::string_view next) {
    if (std::string_view const same = line_of(text, key_of(line)); !same.empty())
      return std::string(same);
    bool const keyed = line.find('=') != std::string_view::npos;
    return keyed || next.empty() ? "no " + std::string(key_of(line)) : std::string(next);
  };
  std::string_view const first = ones;
  std::string_view const second = others;
  while (!ones.empty() || !others.empty()) {
    std::string_view const mine = take_line(ones);
    std::string_view const theirs = take_line(others);
    if (mine == theirs)
      continue;
    if (!mine.empty())
      if (std::string const found = instead(mine, second, theirs); found != mine)
        return sentence(mine, found);
    if (!theirs.empty())
      if (std::string const found = instead(theirs, first, mine); found != theirs)
        return sentence(found, theirs);
    return sentence(mine.empty() ? "an empty line" : mine, theirs.empty() ? "none" : theirs);
  }
  return {};
}

} // namespace pipelining::inline v0_3::detail
