// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Words of the user, quoted and compared.

#include <pipe/flow/quote.hpp>
#include <pipe/flow/sort_stably.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::registry {
namespace detail {

//! Insertions, deletions, replacements and swaps of neighbours that make one text the other.
inline std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      bool const same = a[i - 1] == b[j - 1];
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + !same});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

} // namespace detail

//! A word of the user in quotes for one line of a message.
[[nodiscard]] inline std::string quoted(std::string_view word) {
  return pipelining::detail::quote(word);
}

//! Names that look like `name`, nearest first, at most three.
[[nodiscard]] inline std::string near_names(std::string_view name,
                                            std::span<std::string_view const> all) {
  std::vector<std::pair<std::size_t, std::string_view>> found;
  if (name.size() > 64)
    return {};
  std::string lower(name);
  for (char& c : lower)
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  name = lower;
  for (std::string_view const other : all) {
    std::size_t const shorter = std::min(name.size(), other.size());
    bool const begins_alike = shorter >= 3 && name.substr(0, shorter) == other.substr(0, shorter);
    std::size_t const distance = detail::edits(name, other);
    if (begins_alike || (distance < shorter && distance <= std::max<std::size_t>(2, shorter / 3)))
      found.emplace_back(distance, other);
  }
  pipelining::detail::sort_stably(found,
                                  [](auto const& a, auto const& b) { return a.first < b.first; });
  std::string text;
  for (std::size_t i = 0; i < found.size() && i < 3; ++i)
    text += (i == 0                                            ? ""
             : i + 1 == std::min<std::size_t>(found.size(), 3) ? " or "
                                                               : ", ") +
            std::string(found[i].second);
  return text;
}

} // namespace pipelining::inline v0_3::registry
