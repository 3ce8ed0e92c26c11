// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Texts of others inside of sentences: no byte of a file, a word or a message does anything
//! to the terminal that shows it. Header for pipelining::detail::quote.

#include <pipe/config.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3::detail {

//! How many bytes the character has that a text begins with; 0 where it is not UTF-8: a byte that
//! begins none, too few that go on, a longer form than needed, half a surrogate pair, beyond
//! U+10FFFF.
//! @source RFC 3629, section 4
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  auto const byte = [&](std::size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U;
  };
  unsigned const first = byte(0);
  if (first < 0x80)
    return text.empty() ? 0 : 1;
  std::size_t const length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  unsigned const least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  unsigned const most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (first < 0xc2 || first > 0xf4 || byte(1) < least || byte(1) > most)
    return 0;
  for (std::size_t at = 2; at < length; ++at)
    if ((byte(at) & 0xc0) != 0x80)
      return 0;
  return length;
}

//! Whether a text is UTF-8, as JSON asks.
[[nodiscard]] inline bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    std::size_t const length = utf8_length(text);
    if (length == 0)
      return false;
    text.remove_prefix(length);
  }
  return true;
}

//! Takes the first character off a text: a question mark for a byte that is not UTF-8, nothing at
//! the end.
[[nodiscard]] inline std::string_view take_letter(std::string_view& text) noexcept {
  std::size_t const length = utf8_length(text);
  std::string_view const letter = length == 0 && !text.empty() ? "?" : text.substr(0, length);
  text.remove_prefix(letter.size());
  return letter;
}

//! A text with a question mark in place of each control character, line ends among them, and of
//! each byte that is not UTF-8.
[[nodiscard]] inline std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    std::string_view const letter = take_letter(text);
    bool const controls = letter.size() == 1 ? letter < " " || letter == "\x7f"
                                             : letter >= "\xc2\x80" && letter < "\xc2\xa0";
    result += controls ? "?" : letter;
  }
  return result;
}

//! A text in quotes, printable, and cut after 60 bytes.
[[nodiscard]] inline std::string quote(std::string_view text) {
  std::size_t end = std::min<std::size_t>(text.size(), 60);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
    --end; // not inside of a character
  // Appends only: g++ 12 warns falsely of a literal before a temporary string.
  std::string quoted = "'";
  quoted += printable(text.substr(0, end));
  return quoted += end < text.size() ? "...'" : "'";
}

//! A text in double quotes, with what JSON forbids inside escaped, and a question mark for each
//! byte that is not UTF-8.
[[nodiscard]] inline std::string json_text(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string result = "\"";
  while (!text.empty()) {
    std::string_view const letter = take_letter(text);
    auto const code = static_cast<unsigned char>(letter.front());
    if (code < 0x20)
      result.append("\\u00").append({digits[code / 16], digits[code % 16]});
    else
      result.append(letter == "\"" || letter == "\\" ? "\\" : "").append(letter);
  }
  return result + '"';
}

} // namespace pipelining::inline v0_3::detail
