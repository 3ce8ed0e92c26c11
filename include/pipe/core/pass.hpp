// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A pass: one piece of work of a pipeline. Header for pipelining::pass and
//! pipelining::pass_kind.

#include <pipe/config.hpp>

#include <cstdint>

namespace pipelining::inline v0_1 {

//! @brief What a pass computes.
//!
//! `backward` computes both gradients at once; `backward_input` and `backward_weight` are its
//! halves. Papers of the zero-bubble family write "B" for what is `backward_input` here.
enum class pass_kind : std::uint8_t { forward, backward, backward_input, backward_weight };

//! @brief The letter of a kind in texts and files: F, B, I or W.
[[nodiscard]] constexpr char letter(pass_kind kind) noexcept {
  switch (kind) {
  case pass_kind::forward: return 'F';
  case pass_kind::backward: return 'B';
  case pass_kind::backward_input: return 'I';
  case pass_kind::backward_weight: return 'W';
  }
  return '?';
}

//! @brief The word of a kind in sentences.
[[nodiscard]] constexpr char const* word(pass_kind kind) noexcept {
  switch (kind) {
  case pass_kind::forward: return "forward";
  case pass_kind::backward: return "backward";
  case pass_kind::backward_input: return "backward_input";
  case pass_kind::backward_weight: return "backward_weight";
  }
  return "unknown";
}

//! @brief One piece of work: a kind, on one stage, for one chunk of one microbatch. Eight bytes.
//!
//! `overlapped` marks the second half of a composite pass: it starts and ends together with the
//! entry before it on the same device, and both together take the time that the cost model gives
//! for the pair (DualPipe).
struct pass {
  pass_kind kind = pass_kind::forward;
  bool overlapped = false;
  std::uint16_t stage = 0;
  std::uint16_t microbatch = 0;
  std::uint16_t chunk = 0;

  friend constexpr bool operator==(pass const&, pass const&) = default;
};

static_assert(sizeof(pass) == 8);

//! @brief True for the kinds that produce the gradient that the stage before waits for.
[[nodiscard]] constexpr bool gives_input_gradient(pass_kind kind) noexcept {
  return kind == pass_kind::backward || kind == pass_kind::backward_input;
}

//! @brief True for the kinds at whose end the activation that the forward pass kept is free again.
[[nodiscard]] constexpr bool frees_activation(pass_kind kind) noexcept {
  return kind == pass_kind::backward || kind == pass_kind::backward_weight;
}

} // namespace pipelining::inline v0_1
