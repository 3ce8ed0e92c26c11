// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The reader of the files of this folder: one JSON object of plain values.

#include <pipe/flow/json_cursor.hpp>

#include <cstddef>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The members of a JSON object whose values are numbers, booleans (0 or 1), words or lists of
//! lists of numbers. Nested objects, other lists and null are skipped until somebody asks for them.
class flat_json {
public:
  //! @param text outlives the object.
  //! @throws std::invalid_argument that names what is wanted, the line and the character.
  explicit flat_json(std::string_view text) : text_(text) {
    cursor at = cursor_at(0);
    at.object([&](std::string const& name) {
      begins_[name] = at.place();
      (void)at.raw();
    });
    at.end();
  }

  //! The number of a member; not a number where there is none.
  [[nodiscard]] double number(std::string const& name) const {
    cursor at = value_of(name);
    if (!has_plain(name) || at.peek() == '"')
      return std::numeric_limits<double>::quiet_NaN();
    return at.literal("true") ? 1 : at.literal("false") ? 0 : at.real();
  }
  //! The word of a member; empty where there is none.
  [[nodiscard]] std::string word(std::string const& name) const {
    cursor at = value_of(name);
    return at.peek() == '"' ? at.text() : std::string();
  }
  [[nodiscard]] bool has(std::string const& name) const { return begins_.contains(name); }
  //! True for a number or a word.
  [[nodiscard]] bool has_plain(std::string const& name) const {
    return has(name) &&
           std::string_view("{[n").find(value_of(name).peek()) == std::string_view::npos;
  }
  //! All names, with the places of their values.
  [[nodiscard]] std::map<std::string, std::size_t> const& names() const noexcept { return begins_; }

  //! The line of a member, from 1 on; 1 where there is no such member.
  [[nodiscard]] std::size_t line_of(std::string const& name) const {
    auto const found = begins_.find(name);
    return cursor_at(0).line_of(found == begins_.end() ? 0 : found->second);
  }

  //! The value of a member as a list of lists of numbers.
  //! @throws std::invalid_argument where it is something else.
  [[nodiscard]] std::vector<std::vector<double>> rows(std::string const& name) const {
    cursor at = value_of(name);
    std::vector<std::vector<double>> result;
    at.list([&] {
      result.emplace_back();
      at.list([&] { result.back().push_back(at.real()); });
    });
    return result;
  }

  //! The text of a member that is an object; empty where it is none.
  [[nodiscard]] std::string_view object(std::string const& name) const {
    cursor at = value_of(name);
    return at.peek() == '{' ? at.raw() : std::string_view();
  }

private:
  using cursor = json_cursor<std::invalid_argument>;

  [[nodiscard]] cursor cursor_at(std::size_t place) const { return cursor(text_, "JSON: ", place); }
  //! The place of a value; the end where there is no such member.
  [[nodiscard]] cursor value_of(std::string const& name) const {
    return cursor_at(has(name) ? begins_.at(name) : text_.size());
  }

  std::string_view text_;
  std::map<std::string, std::size_t> begins_;
};

} // namespace pipelining::inline v0_3::detail
