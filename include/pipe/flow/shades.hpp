// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The colours of pictures. Header for pipelining::shade.

#include <pipe/flow/pass.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief Red, green and blue, 0 to 255.
struct colour {
  int red = 0;   //!< 0 to 255
  int green = 0; //!< 0 to 255
  int blue = 0;  //!< 0 to 255

  friend constexpr bool operator==(colour const&, colour const&) = default;
};

//! @brief "#rrggbb" with an end mark.
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

//! @brief The plain colour of a kind: that people with any common colour blindness tell apart.
//! Forward passes of all kinds look alike.
//! @source Okabe and Ito, "Color Universal Design", 2008: sky blue, vermilion, orange, bluish
//! green, reddish purple, yellow, blue; and a grey.
[[nodiscard]] constexpr colour plain_colour(pass_kind kind) noexcept {
  switch (kind) {
  case pass_kind::forward: return {86, 180, 233};
  case pass_kind::backward: return {213, 94, 0};
  case pass_kind::backward_input: return {230, 159, 0};
  case pass_kind::backward_weight: return {0, 158, 115};
  case pass_kind::checkpointed_forward: return {86, 180, 233};
  case pass_kind::offloaded_forward: return {86, 180, 233};
  case pass_kind::recompute: return {204, 121, 167};
  case pass_kind::copy_out: return {240, 228, 66};
  case pass_kind::copy_in: return {0, 114, 178};
  case pass_kind::copy_request: return {0, 114, 178};
  case pass_kind::embed: return {0, 114, 178};
  case pass_kind::logits: return {240, 228, 66};
  case pass_kind::logits_gradient: return {204, 121, 167};
  case pass_kind::embed_gradient: return {153, 153, 153};
  case pass_kind::request_weights:
  case pass_kind::gather_weights:
  case pass_kind::use_weights:
  case pass_kind::release_weights: return {0, 114, 178};
  case pass_kind::request_weights_again:
  case pass_kind::gather_weights_again:
  case pass_kind::use_weights_again:
  case pass_kind::release_weights_again: return {204, 121, 167};
  case pass_kind::collect_gradients:
  case pass_kind::request_scatter:
  case pass_kind::scatter_gradients:
  case pass_kind::keep_weights: return {240, 228, 66};
  }
  return {};
}

//! @brief Moves a colour towards another; 0 keeps it, 1 gives the other.
[[nodiscard]] constexpr colour mix(colour from, colour to, double part) noexcept {
  auto const between = [part](int a, int b) { return static_cast<int>(a + (b - a) * part + 0.5); };
  return {between(from.red, to.red), between(from.green, to.green), between(from.blue, to.blue)};
}

//! @brief The colour of a pass: stages of a device and chunks of a sequence from light to dark,
//! each stage with a range of its own.
//! @param local which of its device's `local_count` stages. @param chunk which of `chunks` chunks.
[[nodiscard]] constexpr colour
shade(pass_kind kind, int local, int local_count, int chunk, int chunks) noexcept {
  double const in_range = chunks > 1        ? static_cast<double>(chunk) / (chunks - 1)
                          : local_count > 1 ? 0.5
                                            : 0.3;
  double const darkness = (local + 0.75 * in_range) / (local_count - 0.25);
  colour const plain = plain_colour(kind);
  constexpr double turn = 0.5; // the darkness of the plain colour
  return darkness < turn ? mix(plain, {255, 255, 255}, 0.72 * (turn - darkness) / turn)
                         : mix(plain, {0, 0, 0}, 0.5 * (darkness - turn) / (1 - turn));
}

//! @brief True where text is white: on colours so dark that black and white are about equally
//! legible, or white more.
//! @source luminance with the weights of ITU-R BT.709, gamma taken as 2.
[[nodiscard]] constexpr bool text_is_light_on(colour c) noexcept {
  double const luminance =
    (0.2126 * c.red * c.red + 0.7152 * c.green * c.green + 0.0722 * c.blue * c.blue) / (255 * 255);
  return luminance < 0.235;
}

//! @brief The name of a kind in legends.
[[nodiscard]] constexpr std::string_view legend_word(pass_kind kind) noexcept {
  switch (kind) {
  case pass_kind::forward: return "forward";
  case pass_kind::backward: return "backward (input and weights)";
  case pass_kind::backward_input: return "backward for the input";
  case pass_kind::backward_weight: return "backward for the weights";
  case pass_kind::checkpointed_forward: return "forward, keeping its input alone";
  case pass_kind::offloaded_forward: return "forward, for the host";
  case pass_kind::recompute: return "recompute";
  case pass_kind::copy_out: return "copy to the host";
  case pass_kind::copy_in: return "copy from the host";
  case pass_kind::copy_request: return "request of a copy";
  case pass_kind::embed: return "shard of the embedding";
  case pass_kind::logits: return "shard of the logits";
  case pass_kind::logits_gradient: return "gradients of such a shard";
  case pass_kind::embed_gradient: return "gradients of a shard of the embedding";
  case pass_kind::request_weights:
  case pass_kind::request_weights_again: return "request of weights";
  case pass_kind::gather_weights: return "gather weights for forward";
  case pass_kind::gather_weights_again: return "gather weights for backward";
  case pass_kind::use_weights:
  case pass_kind::use_weights_again: return "weights are there";
  case pass_kind::release_weights:
  case pass_kind::release_weights_again: return "release of weights";
  case pass_kind::collect_gradients: return "memory for gradients";
  case pass_kind::request_scatter: return "request of a scatter";
  case pass_kind::scatter_gradients: return "scatter gradients";
  case pass_kind::keep_weights: return "weights that stay";
  }
  return "";
}

} // namespace pipelining::inline v0_3
