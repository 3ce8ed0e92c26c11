// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief JSON of known form, read strictly from its first byte to its last.
//! Header for pipelining::detail::json_cursor.

#include <pipe/flow/quote.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3::detail {

//! Appends a code point in UTF-8.
inline void append_code_point(std::string& text, std::uint32_t code) {
  auto const add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  auto const rest = [&](int shift) { add(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6);
    rest(0);
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    rest(6);
    rest(0);
  } else {
    add(0xf0 | code >> 18);
    rest(12);
    rest(6);
    rest(0);
  }
}

//! A place in a JSON text, for a reader that knows which value comes next: objects, lists, texts
//! and whole numbers that are not negative. Everything else is an error.
class json_cursor {
public:
  //! @param text outlives the object.
  explicit json_cursor(std::string_view text) noexcept : text_(text) {}

  //! Calls member(name) for every member of an object; it reads the value.
  //! @throws std::runtime_error, as all of these, that says what is wrong, and at which byte.
  template <class Member>
  void object(Member const& member) {
    std::set<std::string> names;
    each('{', '}', [&] {
      std::string const name = text();
      if (!names.insert(name).second)
        fail("the name " + json_text(name) + " stands twice");
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
  //! Says that only blanks are left.
  void end() {
    if (peek() != '\0' || at_ < text_.size())
      fail("the text goes on after the object");
  }
  [[noreturn]] void fail(std::string const& what) const {
    throw std::runtime_error(what + ", at byte " + std::to_string(at_));
  }

private:
  [[nodiscard]] static bool is_digit(char letter) noexcept {
    return letter >= '0' && letter <= '9';
  }
  char peek() noexcept {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos)
      ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  char next() {
    if (at_ == text_.size())
      fail("a text does not end");
    return text_[at_++];
  }
  void expect(char wanted) {
    if (peek() != wanted)
      fail(std::string("'") + wanted + "' is wanted");
    ++at_;
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
  std::size_t at_ = 0;
};

} // namespace pipelining::inline v0_3::detail
