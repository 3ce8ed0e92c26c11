// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where the writers of this folder write, and numbers without locales. Header for
//! pipelining::text_sink.

#include <pipe/config.hpp>

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <stdexcept>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief Anything that text can be appended to: std::string, or a file with a member `append`.
template <class Sink>
concept text_sink = requires(Sink& out, std::string_view text) {
  out.append(text);
};

//! @brief Appends a whole number.
void append_number(text_sink auto& out, std::integral auto value) {
  char digits[24];
  char* const last = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(std::string_view(digits, static_cast<std::size_t>(last - digits)));
}

namespace detail {

//! A double as text: the one place that all figures of tables and files go through.
//! @param how a format of std::to_chars, and with it a precision of 0 to 17 digits.
//! @throws std::invalid_argument for a number that is not finite, which JSON, SVG and tables cannot
//! hold.
template <class... How>
struct digits_of {
  explicit digits_of(double value, How... how) {
    if (!std::isfinite(value))
      throw std::invalid_argument("text: a number that is not finite cannot be written; what it "
                                  "was made of is too large or divided by 0");
    size = std::to_chars(room, room + sizeof room, value, how...).ptr - room;
  }
  [[nodiscard]] std::string_view text() const noexcept {
    return {room, static_cast<std::size_t>(size)};
  }
  char room[336]; // a sign, 309 digits of the largest double, the point and 17 digits after it
  std::ptrdiff_t size;
};

//! True when people want a number without an exponent.
[[nodiscard]] inline bool is_plain(double value) noexcept {
  double const size = std::abs(value);
  return size == 0 || (size >= 1e-5 && size < 1e16);
}

} // namespace detail

//! @brief Appends the shortest decimal that reads back as the same double; with an exponent only
//! where it has more than 16 digits before the point or begins after its fifth decimal.
//! @throws std::invalid_argument for a number that is not finite, as all that append a double.
void append_number(text_sink auto& out, double value) {
  out.append(detail::digits_of(value,
                               detail::is_plain(value) ? std::chars_format::fixed
                                                       : std::chars_format::scientific)
               .text());
}

//! @brief Appends a double with so many digits after the point: figures that stand in a column.
//! Never "-0".
//! @pre 0 <= decimals <= 17
void append_fixed(text_sink auto& out, double value, int decimals) {
  detail::digits_of const digits(value, std::chars_format::fixed, decimals);
  std::string_view text = digits.text();
  if (text.find_first_not_of("-0.") == text.npos && text.front() == '-')
    text.remove_prefix(1);
  out.append(text);
}

//! @brief Appends a double rounded to at most `decimals` digits after the point, without trailing
//! zeros.
//! @pre 0 <= decimals <= 17
void append_rounded(text_sink auto& out, double value, int decimals) {
  detail::digits_of const digits(value, std::chars_format::fixed, decimals);
  std::string_view text = digits.text();
  if (text.find('.') != text.npos) {
    text.remove_suffix(text.size() - 1 - text.find_last_not_of('0'));
    if (text.back() == '.')
      text.remove_suffix(1);
  }
  out.append(text == "-0" ? std::string_view("0") : text);
}

//! @brief Appends a double rounded to so many significant digits; with an exponent where it has
//! more digits before the point, or begins after the fourth digit after it: "2.06e+11".
//! @pre 1 <= digits <= 17
void append_general(text_sink auto& out, double value, int digits) {
  out.append(detail::digits_of(value, std::chars_format::general, digits).text());
}

//! @brief Appends a double rounded to so many significant digits, but with all digits before the
//! point: as people read a figure. "0.3333", "12345"; with an exponent as `append_number` has
//! it.
//! @pre 1 <= digits <= 12
void append_significant(text_sink auto& out, double value, int digits) {
  if (!detail::is_plain(value))
    return append_general(out, value, digits);
  double size = std::abs(value);
  int decimals = digits - 1;
  for (; size >= 10 && decimals > 0; size /= 10)
    --decimals;
  for (; size > 0 && size < 1; size *= 10)
    ++decimals;
  append_rounded(out, value, decimals);
}

namespace detail {

//! A number as `append_rounded` writes it, for `append`.
struct rounded {
  double value;
  int decimals;
  void append_to(text_sink auto& out) const { append_rounded(out, value, decimals); }
};
//! A number as `append_significant` writes it, for `append`.
struct significant {
  double value;
  int digits = 4; //!< as many as captions have
  void append_to(text_sink auto& out) const { append_significant(out, value, digits); }
};

} // namespace detail

//! @brief Appends text and numbers one after the other: `append(out, "device ", 3)`. A part may
//! have a member `append_to(out)` in place of both.
template <text_sink Sink, class... Part>
void append(Sink& out, Part const&... parts) {
  auto const one = [&out](auto const& part) {
    if constexpr (requires { part.append_to(out); })
      part.append_to(out);
    else if constexpr (std::convertible_to<decltype(part), std::string_view>)
      out.append(std::string_view(part));
    else
      append_number(out, part);
  };
  (one(parts), ...);
}

namespace detail {

//! Appends a list as JSON has it: `one(number)` appends what stands at a place of it.
void append_numbered(text_sink auto& out, int count, auto const& one) {
  append(out, "[");
  for (int number = 0; number < count; ++number) {
    append(out, number == 0 ? "" : ",");
    one(number);
  }
  append(out, "]");
}
//! The same of values: `one(value)` appends one of them.
void append_list(text_sink auto& out, auto const& values, auto const& one) {
  append_numbered(out, static_cast<int>(values.size()), [&](int number) {
    one(values[static_cast<std::size_t>(number)]);
  });
}

} // namespace detail

} // namespace pipelining::inline v0_3
