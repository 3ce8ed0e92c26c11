// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The reader of the files of this folder: one JSON object of plain values.

#include <pipe/flow/quote.hpp>

#include <algorithm>
#include <cstddef>
#include <locale>
#include <map>
#include <sstream>
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
    expect('{');
    if (peek() != '}')
      for (;;) {
        std::string const name = word();
        if (!begins_.emplace(name, at_).second)
          fail("the name " + quote(name) + " stands twice");
        expect(':');
        value(name);
        if (peek() != ',')
          break;
        ++at_;
      }
    expect('}');
    if (peek() != '\0')
      fail("there is text behind the object");
  }

  [[nodiscard]] std::map<std::string, double> const& numbers() const noexcept { return numbers_; }
  [[nodiscard]] std::map<std::string, std::string> const& words() const noexcept { return words_; }
  //! All names, with the places of their values.
  [[nodiscard]] std::map<std::string, std::size_t> const& names() const noexcept { return begins_; }

  //! The line of a member, from 1 on; 1 where there is no such member.
  [[nodiscard]] std::size_t line_of(std::string const& name) const {
    auto const found = begins_.find(name);
    return line_at(found == begins_.end() ? 0 : found->second);
  }

  //! The value of a member as a list of lists of numbers.
  //! @throws std::invalid_argument where it is something else.
  [[nodiscard]] std::vector<std::vector<double>> rows(std::string const& name) const {
    flat_json at = *this;
    at.at_ = begins_.at(name);
    at.expect(':');
    std::vector<std::vector<double>> result;
    at.each([&] {
      result.emplace_back();
      at.each([&] { result.back().push_back(at.number()); });
    });
    return result;
  }

  //! The text of a member that is an object; empty where it is none.
  [[nodiscard]] std::string_view object(std::string const& name) const {
    flat_json at = *this;
    at.at_ = begins_.contains(name) ? begins_.at(name) + 1 : text_.size();
    if (at.peek() != '{')
      return {};
    std::size_t const begin = at.at_;
    at.skip_nested();
    return text_.substr(begin, at.at_ - begin);
  }

private:
  [[nodiscard]] std::size_t line_at(std::size_t place) const {
    std::size_t line = 1;
    for (char const letter : text_.substr(0, place))
      line += letter == '\n' ? 1 : 0;
    return line;
  }
  [[noreturn]] void fail(std::string const& what) const {
    std::size_t const before = text_.substr(0, at_).rfind('\n');
    throw std::invalid_argument("JSON: " + what + ", at line " + std::to_string(line_at(at_)) +
                                ", character " +
                                std::to_string(before == text_.npos ? at_ + 1 : at_ - before));
  }
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos)
      ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(char wanted) {
    if (peek() != wanted)
      fail(wanted == '{'   ? "an object in braces is wanted"
           : wanted == '[' ? "a list in brackets is wanted"
           : wanted == ']' ? "',' or ']' is wanted"
           : wanted == ':' ? "':' is wanted behind a name"
           : wanted == '"' ? "a name in quotes is wanted"
                           : "',' or '}' is wanted");
    ++at_;
  }
  std::string word() {
    expect('"');
    std::string result;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\')
        ++at_;
      if (at_ < text_.size())
        result += text_[at_];
    }
    if (at_ >= text_.size())
      fail("a text does not end");
    ++at_;
    return result;
  }
  bool literal(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted)
      return false;
    at_ += wanted.size();
    return true;
  }
  //! Reads a list, each of its elements by `read`.
  void each(auto const& read) {
    expect('[');
    if (peek() != ']')
      for (;;) {
        read();
        if (peek() != ',')
          break;
        ++at_;
      }
    expect(']');
  }
  double number() {
    char const first = peek();
    double result = 0;
    // What reads "inf" and "nan" elsewhere is no number of JSON.
    if (first != '-' && (first < '0' || first > '9'))
      fail("a number is wanted");
    // A stream, since libc++ has no std::from_chars for it before its version 20.
    std::size_t const behind =
      std::min(text_.find_first_not_of("0123456789+-.eE", at_), text_.size());
    std::istringstream in{std::string(text_.substr(at_, behind - at_))};
    in.imbue(std::locale::classic());
    if (!(in >> result))
      fail("a number of this size cannot be read");
    if (in.peek() != std::istringstream::traits_type::eof())
      fail("a number is wanted");
    at_ = behind;
    return result;
  }
  void skip_nested() {
    std::string ends; // of the lists and objects that are open
    do {
      char const next = peek();
      if (next == '\0')
        fail("a list or an object does not end");
      if (next == '"') {
        static_cast<void>(word());
        continue;
      }
      if (next == '{' || next == '[')
        ends += next == '{' ? '}' : ']';
      else if (next == ends.back())
        ends.pop_back();
      else if (next == '}' || next == ']')
        fail(std::string("'") + ends.back() + "' is wanted");
      ++at_;
    } while (!ends.empty());
  }
  void value(std::string const& name) {
    char const next = peek();
    if (next == '"')
      words_[name] = word();
    else if (next == '{' || next == '[')
      skip_nested();
    else if (literal("true"))
      numbers_[name] = 1;
    else if (literal("false"))
      numbers_[name] = 0;
    else if (!literal("null"))
      numbers_[name] = number();
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::map<std::string, std::size_t> begins_; // of ':' behind each name
  std::map<std::string, double> numbers_;
  std::map<std::string, std::string> words_;
};

} // namespace pipelining::inline v0_3::detail
