// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A pass: one piece of work of a pipeline. Header for pipelining::pass and
//! pipelining::pass_kind.

#include <pipe/config.hpp>

#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief The kind of a pass, as a number of its flow. Names are given to the kinds of training;
//! other flows number their own.
//!
//! `backward` computes both gradients at once; `backward_input` and `backward_weight` are its
//! halves. Papers of the zero-bubble family write "B" for `backward_input`. `frugal_training` adds
//! a forward pass that keeps only its input, and the `recompute` that brings its activation back.
//! It also has a forward pass whose activation goes to the host, and the copies there and back, the
//! latter not before a `copy_request`. `vocabulary_training` adds `embed` to `embed_gradient`,
//! which the shards of a vocabulary run at both ends of a model. Sharded weights add four kinds per
//! visit (see `shard_weights`); visits opened by a backward pass use the `_again` kinds. Stages
//! whose weights never leave their device have `keep_weights`.
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
