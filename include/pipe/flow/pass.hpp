// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A pass: one piece of work of a pipeline. Header for pipelining::pass and
//! pipelining::pass_kind.

#include <pipe/config.hpp>

#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief What a pass computes.
//!
//! `backward` computes both gradients at once; `backward_input` and `backward_weight` are its
//! halves. Papers of the zero-bubble family write "B" for what is `backward_input` here.
//! The other kinds are those of `frugal_training`: a forward pass that keeps its input alone and
//! the `recompute` that brings its activation back; a forward pass whose activation goes to the
//! host, and the copies there and back, the latter not before a `copy_request`. `embed` to
//! `embed_gradient` are those of `vocabulary_training`: what the shards of a vocabulary do at both
//! ends of a model. The last are those of flows with sharded weights, see `shard_weights`: a visit
//! of a stage that a forward pass opens has the first four, one that a backward pass opens the four
//! `_again`; stages whose weights never leave their device have `keep_weights`.
enum class pass_kind : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  checkpointed_forward,
  recompute,
  offloaded_forward,
  copy_out,
  copy_in,
  copy_request,
  embed,
  logits,
  logits_gradient,
  embed_gradient,
  request_weights,
  gather_weights,
  use_weights,
  release_weights,
  request_weights_again,
  gather_weights_again,
  use_weights_again,
  release_weights_again,
  collect_gradients,
  request_scatter,
  scatter_gradients,
  keep_weights
};

namespace detail {

struct pass_name {
  char letter;
  char const* word;
};
inline constexpr pass_name pass_names[] = {
  {'F', "forward"},
  {'B', "backward"},
  {'I', "backward_input"},
  {'W', "backward_weight"},
  {'K', "checkpointed_forward"},
  {'R', "recompute"},
  {'H', "offloaded_forward"},
  {'O', "copy_out"},
  {'L', "copy_in"},
  {'Q', "copy_request"},
  {'E', "embed"},
  {'S', "logits"},
  {'T', "logits_gradient"},
  {'G', "embed_gradient"},
  {'N', "request_weights"},
  {'A', "gather_weights"},
  {'U', "use_weights"},
  {'X', "release_weights"},
  {'P', "request_weights_again"},
  {'J', "gather_weights_again"},
  {'V', "use_weights_again"},
  {'Y', "release_weights_again"},
  {'C', "collect_gradients"},
  {'D', "request_scatter"},
  {'Z', "scatter_gradients"},
  {'M', "keep_weights"},
};

//! Unknown kinds come from broken plans.
[[nodiscard]] constexpr pass_name name_of(pass_kind kind) noexcept {
  return kind <= pass_kind::keep_weights ? pass_names[static_cast<int>(kind)]
                                         : pass_name{'?', "unknown"};
}

} // namespace detail

//! @brief The letter of a kind of training in texts and files: F, B, I, W, K, R, H, O, L, Q, E, S,
//! T, G, and with sharded weights N, A, U, X, P, J, V, Y, C, D, Z or M.
[[nodiscard]] constexpr char letter(pass_kind kind) noexcept {
  return detail::name_of(kind).letter;
}

//! @brief The word of a kind of training in sentences.
[[nodiscard]] constexpr char const* word(pass_kind kind) noexcept {
  return detail::name_of(kind).word;
}

//! @brief True for the kinds that stand between passes and take no time.
[[nodiscard]] constexpr bool stands_between(pass_kind kind) noexcept {
  switch (kind) {
  case pass_kind::copy_request:
  case pass_kind::request_weights:
  case pass_kind::use_weights:
  case pass_kind::release_weights:
  case pass_kind::request_weights_again:
  case pass_kind::use_weights_again:
  case pass_kind::release_weights_again:
  case pass_kind::collect_gradients:
  case pass_kind::request_scatter:
  case pass_kind::keep_weights: return true;
  default: return false;
  }
}

//! @brief One piece of work: a kind, on one stage, for one chunk of one microbatch. Eight bytes.
//!
//! `overlapped` marks the second half of a composite pass: it starts and ends together with the
//! entry before it on the same device, and both together take the time that the cost model gives
//! for the pair (DualPipe).
struct pass {
  pass_kind kind = pass_kind::forward; //!< what it computes
  bool overlapped = false;             //!< part of a composite pass, with its neighbour
  std::uint16_t stage = 0;             //!< whose work it is, in forward order
  std::uint16_t microbatch = 0;        //!< from 0
  std::uint16_t chunk = 0;             //!< of the sequence, from 0

  friend constexpr bool operator==(pass const&, pass const&) = default;
};

static_assert(sizeof(pass) == 8);

} // namespace pipelining::inline v0_3
