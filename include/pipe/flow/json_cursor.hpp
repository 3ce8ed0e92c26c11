// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief JSON of known form, read strictly from its first byte to its last.
//! Header for pipelining::detail::json_cursor.

#include <pipe/flow/quote.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <locale>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3::detail {

//! Appends a code point in UTF-8.
inline void append_code_point(std::string& text, std::uint32_t code) {
  constexpr std::uint32_t marks[] = {0, 0xc0, 0xe0, 0xf0};
  int const more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3; // bytes to come
  text += static_cast<char>(marks[more] | code >> 6 * more);
  for (int shift = 6 * more; shift > 0;) {
    shift -= 6;
    text += static_cast<char>(0x80 | (code >> shift & 0x3f));
  }
}

//! A place in a JSON text, for a reader that knows which value comes next. Every other value is an
//! error.
//! @tparam Error is thrown with a sentence that says what is wrong, and where.
template <class Error>
class json_cursor {
public:
  //! @param text outlives the object, as `before` does, with which errors begin.
  //! @param at the byte of the text to begin at
  explicit json_cursor(std::string_view text,
                       std::string_view before = {},
                       std::size_t at = 0) noexcept
      : text_(text), before_(before), at_(at) {}

  //! The byte that comes next.
  [[nodiscard]] std::size_t place() const noexcept { return at_; }
  //! The first letter of the next value; 0 at the end.
  char peek() noexcept {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos)
      ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  //! Calls member(name) for every member of an object; it reads the value.
  template <class Member>
  void object(Member const& member) {
    std::set<std::string> names;
    each('{', '}', [&] {
      std::string const name = text();
      if (!names.insert(name).second)
        fail("the name " + quote(name) + " stands twice");
      expect(':');
      member(name);
    });
  }
  //! Calls item() for every item of a list; it reads the value.
  template <class Item>
  void list(Item const& item) {
    each('[', ']', item);
  }
  //! A text, with its escapes resolved.
  [[nodiscard]] std::string text() {
    expect('"');
    std::string result;
    for (char letter = next(); letter != '"'; letter = next()) {
      if (static_cast<unsigned char>(letter) < 0x20)
        fail("a text has a control character");
      if (letter == '\\')
        escape(result);
      else
        result += letter;
    }
    if (!is_utf8(result))
      fail("a text is not UTF-8");
    return result;
  }
  //! A whole number from 0 on.
  [[nodiscard]] std::int64_t number() {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    if (!is_digit(peek()))
      fail("a whole number is wanted");
    bool const starts_with_zero = text_[at_] == '0';
    std::int64_t value = text_[at_++] - '0';
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
      int const digit = text_[at_] - '0';
      if (starts_with_zero || value > (most - digit) / 10)
        fail("a whole number below 2^63, without zeros before it, is wanted");
      value = 10 * value + digit;
    }
    return value;
  }
  //! Any number.
  [[nodiscard]] double real() {
    char const first = peek();
    double result = 0;
    // What reads "inf" and "nan" elsewhere is no number of JSON.
    if (first != '-' && !is_digit(first))
      fail("a number is wanted");
    // A stream, since libc++ has no std::from_chars for it before its version 20.
    std::size_t const end = std::min(text_.find_first_not_of("0123456789+-.eE", at_), text_.size());
    std::istringstream in{std::string(text_.substr(at_, end - at_))};
    in.imbue(std::locale::classic());
    if (!(in >> result))
      fail("a number of this size cannot be read");
    if (in.peek() != std::istringstream::traits_type::eof())
      fail("a number is wanted");
    at_ = end;
    return result;
  }
  //! Whether true, false or null comes next, which it reads.
  [[nodiscard]] bool literal(std::string_view wanted) {
    (void)peek();
    if (text_.substr(at_, wanted.size()) != wanted)
      return false;
    at_ += wanted.size();
    return true;
  }
  //! Any value, as it stands.
  std::string_view raw() {
    char const next = peek();
    std::size_t const begin = at_;
    if (next == '"')
      (void)text();
    else if (next == '{' || next == '[')
      skip_nested();
    else if (!literal("true") && !literal("false") && !literal("null"))
      (void)real();
    return text_.substr(begin, at_ - begin);
  }
  //! Says that only blanks are left.
  void end() {
    if (peek() != '\0' || at_ < text_.size())
      fail("there is text after the object");
  }
  [[noreturn]] void fail(std::string const& what) const {
    std::size_t const before = text_.substr(0, at_).rfind('\n');
    throw Error(std::string(before_) + what + ", at line " + std::to_string(line_of(at_)) +
                ", character " + std::to_string(before == text_.npos ? at_ + 1 : at_ - before));
  }
  //! The line of a byte, from 1 on.
  [[nodiscard]] std::size_t line_of(std::size_t place) const noexcept {
    auto const begin = text_.begin();
    return 1 + static_cast<std::size_t>(
                 std::count(begin, begin + static_cast<std::ptrdiff_t>(place), '\n'));
  }

private:
  [[nodiscard]] static bool is_digit(char letter) noexcept {
    return letter >= '0' && letter <= '9';
  }
  char next() {
    if (at_ == text_.size())
      fail("a text does not end");
    return text_[at_++];
  }
  void expect(char wanted) {
    if (peek() != wanted)
      fail(wanted == '{'   ? "an object in braces is wanted"
           : wanted == '[' ? "a list in brackets is wanted"
           : wanted == ']' ? "',' or ']' is wanted"
           : wanted == ':' ? "':' is wanted after a name"
           : wanted == '"' ? "a text in quotes is wanted"
                           : "',' or '}' is wanted");
    ++at_;
  }
  //! A list or an object, however deep.
  void skip_nested() {
    std::string ends; // of those that are open
    do {
      char const next = peek();
      if (next == '\0')
        fail("a list or an object does not end");
      if (next == '"') {
        (void)text();
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
  template <class Item>
  void each(char open, char close, Item const& item) {
    expect(open);
    if (peek() != close) {
      item();
      while (peek() == ',') {
        ++at_;
        item();
      }
    }
    expect(close);
  }
  [[nodiscard]] std::uint32_t four_digits() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      auto const digit = std::string_view("0123456789abcdefABCDEF").find(next());
      if (digit == std::string_view::npos)
        fail("four hexadecimal digits are wanted");
      value = value * 16 + static_cast<std::uint32_t>(digit < 16 ? digit : digit - 6);
    }
    return value;
  }
  void escape(std::string& result) {
    char const letter = next();
    if (letter == 'u') {
      std::uint32_t code = four_digits();
      if (code >= 0xd800 && code < 0xdc00) {
        bool const paired = next() == '\\' && next() == 'u';
        std::uint32_t const low = paired ? four_digits() : 0;
        if (low < 0xdc00 || low > 0xdfff)
          fail("the second half of a surrogate pair is wanted");
        code = 0x10000 + (code - 0xd800) * 0x400 + (low - 0xdc00);
      } else if (code >= 0xdc00 && code < 0xe000) {
        fail("the first half of a surrogate pair is wanted");
      }
      append_code_point(result, code);
      return;
    }
    auto const known = std::string_view("\"\\/bfnrt").find(letter);
    if (known == std::string_view::npos)
      fail("a text has an unknown escape");
    result += "\"\\/\b\f\n\r\t"[known];
  }

  std::string_view text_;
  std::string_view before_;
  std::size_t at_;
};

} // namespace pipelining::inline v0_3::detail
