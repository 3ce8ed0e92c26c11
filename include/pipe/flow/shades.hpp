// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The names of kinds in files, and the colours of pictures. Header for
//! pipelining::detail::sign and pipelining::detail::shade.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/training.hpp>

#include <array>
#include <iterator>
#include <string_view>

namespace pipelining::inline v0_3::detail {

//! Red, green and blue, 0 to 255.
struct colour {
  int red = 0;   //!< 0 to 255
  int green = 0; //!< 0 to 255
  int blue = 0;  //!< 0 to 255

  friend constexpr bool operator==(colour const&, colour const&) = default;
};

//! "#rrggbb" with an end mark.
[[nodiscard]] constexpr std::array<char, 8> hexadecimal(colour c) noexcept {
  constexpr char digits[] = "0123456789abcdef";
  return {'#',
          digits[c.red / 16],
          digits[c.red % 16],
          digits[c.green / 16],
          digits[c.green % 16],
          digits[c.blue / 16],
          digits[c.blue % 16],
          '\0'};
}

//! Legend and colour of a kind of training in pictures.
struct kind_in_pictures {
  std::string_view legend;
  colour plain;
};

//! Colours that people with any common colour blindness tell apart.
//! @source Okabe and Ito, "Color Universal Design", 2008; and a grey.
inline constexpr colour sky_blue{86, 180, 233}, vermilion{213, 94, 0}, orange{230, 159, 0},
  bluish_green{0, 158, 115}, reddish_purple{204, 121, 167}, yellow{240, 228, 66}, blue{0, 114, 178},
  grey{153, 153, 153};

//! By number of the kinds of training. Forward passes of all kinds look alike.
inline constexpr kind_in_pictures pictures_of_training[] = {
  {"forward", sky_blue},
  {"backward (input and weights)", vermilion},
  {"backward for the input", orange},
  {"backward for the weights", bluish_green},
  {"forward, keeping its input alone", sky_blue},
  {"recompute", reddish_purple},
  {"forward, for the host", sky_blue},
  {"copy to the host", yellow},
  {"copy from the host", blue},
  {"request of a copy", blue},
  {"shard of the embedding", blue},
  {"shard of the logits", yellow},
  {"gradients of such a shard", reddish_purple},
  {"gradients of a shard of the embedding", grey},
  {"request of weights", blue},
  {"gather weights for forward", blue},
  {"weights are there", blue},
  {"release of weights", blue},
  {"request of weights", reddish_purple},
  {"gather weights for backward", reddish_purple},
  {"weights are there", reddish_purple},
  {"release of weights", reddish_purple},
  {"memory for gradients", yellow},
  {"request of a scatter", yellow},
  {"scatter gradients", yellow},
  {"weights that stay", yellow},
};
static_assert(std::size(pictures_of_training) == kinds_of_training.kind_count);

//! Kinds of one's own look like those of training that have their role.
[[nodiscard]] constexpr colour colour_of(role is) noexcept {
  switch (is) {
  case role::forward: return sky_blue;
  case role::backward: return vermilion;
  case role::input: return orange;
  case role::weights: return bluish_green;
  case role::again: return reddish_purple;
  case role::copy: return yellow;
  case role::communicate: return blue;
  case role::mark: return grey;
  }
  return {};
}

//! The number of a kind of training with the word of another kind; negative where there is none.
[[nodiscard]] constexpr int number_in_training(kind_of_pass const& kind) noexcept {
  for (int number = 0; number < kinds_of_training.kind_count; ++number)
    if (kinds_of_training.kinds[number].word == kind.word)
      return number;
  return -1;
}

//! The plain colour of a kind: that people with any common colour blindness tell apart.
//! Kinds that are none of training have the colour of their role.
[[nodiscard]] constexpr colour plain_colour(kind_of_pass const& kind) noexcept {
  int const known = number_in_training(kind);
  return known < 0 ? colour_of(kind.is) : pictures_of_training[known].plain;
}

//! The name of a kind in files: its letter, or its word where it has none; "?" for a kind that the
//! flow does not have.
[[nodiscard]] constexpr flow_word sign(flow const& declared, pass_kind kind) noexcept {
  if (declared.has(kind) && declared[kind].letter == '\0')
    return declared[kind].word;
  flow_word result;
  result.text[0] = declared.letter(kind);
  return result;
}

//! The name of a kind in legends: of a kind of training in full, else its word.
[[nodiscard]] constexpr std::string_view legend_word(kind_of_pass const& kind) noexcept {
  int const known = number_in_training(kind);
  return known < 0 ? std::string_view(kind.word.c_str()) : pictures_of_training[known].legend;
}

//! Moves a colour towards another; 0 keeps it, 1 gives the other.
[[nodiscard]] constexpr colour mix(colour from, colour to, double part) noexcept {
  auto const between = [part](int a, int b) { return static_cast<int>(a + (b - a) * part + 0.5); };
  return {between(from.red, to.red), between(from.green, to.green), between(from.blue, to.blue)};
}

//! The colour of a pass: stages of a device and chunks of a sequence from light to dark,
//! each stage with a range of its own.
//! @param local which of its device's `local_count` stages. @param chunk which of `chunks` chunks.
[[nodiscard]] constexpr colour
shade(kind_of_pass const& kind, int local, int local_count, int chunk, int chunks) noexcept {
  double const in_range = chunks > 1        ? static_cast<double>(chunk) / (chunks - 1)
                          : local_count > 1 ? 0.5
                                            : 0.3;
  double const darkness = (local + 0.75 * in_range) / (local_count - 0.25);
  colour const plain = plain_colour(kind);
  constexpr double turn = 0.5; // the darkness of the plain colour
  return darkness < turn ? mix(plain, {255, 255, 255}, 0.72 * (turn - darkness) / turn)
                         : mix(plain, {0, 0, 0}, 0.5 * (darkness - turn) / (1 - turn));
}

//! True where text is white: on colours so dark that black and white are about equally
//! legible, or white more.
//! @source luminance with the weights of ITU-R BT.709, gamma taken as 2.
[[nodiscard]] constexpr bool text_is_light_on(colour c) noexcept {
  double const luminance =
    (0.2126 * c.red * c.red + 0.7152 * c.green * c.green + 0.0722 * c.blue * c.blue) / (255 * 255);
  return luminance < 0.235;
}

} // namespace pipelining::inline v0_3::detail
