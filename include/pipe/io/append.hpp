// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where the writers of this folder write, and numbers without locales. Header for
//! pipelining::text_sink.

#include <pipe/config.hpp>

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace pipelining::inline v0_2 {

//! @brief Anything that text can be appended to: std::string, or a file behind a member `append`.
template <class Sink>
concept text_sink = requires(Sink& out, std::string_view text) {
  out.append(text);
};

//! @brief Appends a whole number.
template <text_sink Sink>
void append_number(Sink& out, std::integral auto value) {
  char digits[24];
  char* const last = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(std::string_view(digits, static_cast<std::size_t>(last - digits)));
}

//! @brief Appends the shortest decimal that reads back as the same double; with an exponent only
//! where it has more than 16 digits before the point or begins behind the fifth after it.
template <text_sink Sink>
void append_number(Sink& out, double value) {
  char digits[40];
  double const size = value < 0 ? -value : value;
  bool const plain = size == 0 || (size >= 1e-5 && size < 1e16);
  char* const last = std::to_chars(digits,
                                   digits + sizeof digits,
                                   value,
                                   plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  out.append(std::string_view(digits, static_cast<std::size_t>(last - digits)));
}

//! @brief Appends a double rounded to at most `decimals` digits behind the point, without trailing
//! zeros.
//! @pre 0 <= decimals <= 17
template <text_sink Sink>
void append_rounded(Sink& out, double value, int decimals) {
  char digits[400]; // 309 digits of the largest double, the point and the decimals
  char const* last =
    std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, decimals).ptr;
  std::string_view text(digits, static_cast<std::size_t>(last - digits));
  if (text.find('.') != std::string_view::npos) {
    text.remove_suffix(text.size() - 1 - text.find_last_not_of('0'));
    if (text.back() == '.')
      text.remove_suffix(1);
  }
  out.append(text == "-0" ? std::string_view("0") : text);
}

//! @brief Appends a double rounded to so many significant digits, but with all digits before the
//! point: what people read of a figure. "0.3333", "12345"; with an exponent as `append_number` has
//! it.
//! @pre 1 <= digits <= 12
template <text_sink Sink>
void append_significant(Sink& out, double value, int digits) {
  double size = value < 0 ? -value : value;
  if (size == 0 || (size >= 1e-5 && size < 1e16)) {
    int decimals = digits - 1;
    for (; size >= 10 && decimals > 0; size /= 10)
      --decimals;
    for (; size > 0 && size < 1; size *= 10)
      ++decimals;
    append_rounded(out, value, decimals);
    return;
  }
  char text[40];
  char* const last =
    std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits).ptr;
  out.append(std::string_view(text, static_cast<std::size_t>(last - text)));
}

//! @brief Appends text and numbers one after the other: `append(out, "device ", 3)`.
template <text_sink Sink, class... Part>
void append(Sink& out, Part const&... parts) {
  auto const one = [&out](auto const& part) {
    if constexpr (std::convertible_to<decltype(part), std::string_view>)
      out.append(std::string_view(part));
    else
      append_number(out, part);
  };
  (one(parts), ...);
}

} // namespace pipelining::inline v0_2
