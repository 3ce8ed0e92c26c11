// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How large buffers are. Header for the concept pipelining::buffer_sizes, for
//! pipelining::uniform_sizes.

#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>

#include <concepts>
#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief The user's size functions: `bytes(class, pass)` is the size in bytes of the data that the
//! pass makes or keeps.
//!
//! For `output` and `input_gradient` the pass is the one that makes the message; the receiver's
//! buffers follow from the sender's. For the sequence classes it is the pass of chunk 0 that opens
//! the state; for `copied_gradient` a backward pass of the stage. Zero bytes: the user keeps such
//! buffers itself, indexed by the slot numbers. The answer may depend on stage, microbatch and
//! chunk, and must be the same on all devices: both ends of a message know its size without asking.
//!
//! The type may have two more members, numbers of bytes: `tied_bytes`, of the gradient of a weight
//! that the first and the last stage share, and `totals_bytes`, of a stage's row of the totals.
//! With them a plan has the steps that follow complete gradients: see docs/decisions/0006-hooks.md.
template <class Sizes>
concept buffer_sizes = requires(Sizes const sizes, slot_class of, pass const what) {
  { sizes.bytes(of, what) } -> std::convertible_to<std::int64_t>;
};

namespace detail {

//! Buffers of no bytes: the plan hands out slot numbers only.
struct no_sizes {
  [[nodiscard]] static constexpr std::int64_t bytes(slot_class, pass const&) noexcept { return 0; }
};

} // namespace detail

//! @brief One size for all messages, one for each class of kept buffers.
struct uniform_sizes {
  //! A number of bytes from a whole number of any type: sizes are computed from `sizeof`, and
  //! braces refuse to narrow a number that is no constant.
  struct byte_count {
    std::int64_t value = 0; //!< bytes

    constexpr byte_count() = default; //!< none
    //! Takes a number of bytes. A number beyond 2^63 becomes negative, which plans refuse.
    template <std::integral Number>
    constexpr byte_count(Number bytes) noexcept : value(std::int64_t(bytes)) {}
    constexpr operator std::int64_t() const noexcept { return value; } //!< the number
  };

  byte_count message = 0;           //!< activations and gradients between stages
  byte_count activation = 0;        //!< from forward to the end of backward
  byte_count weight_input = 0;      //!< from backward_input to backward_weight
  byte_count sequence = 0;          //!< keys and values of a microbatch
  byte_count sequence_gradient = 0; //!< their gradients
  byte_count tied_bytes = 0;        //!< of the gradient of a weight that first and last stage share
  byte_count totals_bytes = 0;      //!< of a stage's row of the totals
  byte_count copied_gradient = 0;   //!< of a stage, where it has several copies

  [[nodiscard]] constexpr std::int64_t bytes(slot_class of, pass const&) const noexcept {
    switch (of) {
    case slot_class::activation: return activation;
    case slot_class::weight_input: return weight_input;
    case slot_class::sequence: return sequence;
    case slot_class::sequence_gradient: return sequence_gradient;
    case slot_class::copied_gradient: return copied_gradient;
    default: return message;
    }
  }
};

} // namespace pipelining::inline v0_3
