// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What the buffers of a plan hold, and where passes get them. Header for
//! pipelining::slot_class.

#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief The content of a buffer. Every device has, for every class, slots 0 ... n - 1 of one
//! size. The classes are the pools of the flows of training, in order.
enum class slot_class : std::uint8_t {
  activation,        //!< what a forward pass keeps for its backward: from F to the end of B or W
  received_input,    //!< an activation from another device: from its receive to the end of F
  output,            //!< an activation made here: from F until it is sent, or read on this device
  received_gradient, //!< a gradient from another device: from its receive to the end of B or I
  input_gradient,    //!< a gradient made here: from B or I until it is sent, or read on this device
  weight_input,      //!< what I keeps for W
  sequence, //!< keys and values of a microbatch on a stage: first chunk's F to the end of its
            //!< backward
  sequence_gradient, //!< their gradients, carried from the last chunk's backward to the first
                     //!< chunk's
  tied_gradient,     //!< the gradients of a weight that the first and the last stage share: slot 0
                     //!< is the first stage's, slot 1 the last one's, until both are added
  totals,            //!< a row of numbers of each stage, slot s for stage s, until the end of the
                     //!< iteration
  host_activation,   //!< an activation that has been copied to the host
  logits, //!< what a shard of the output layer keeps of its logits until their gradients are made
  statistics, //!< largest logit, sum of exponentials, logit of the label of each token, of one
              //!< shard
  received_statistics, //!< those of a shard on another device
  weights,             //!< the whole weights of a stage, from their gather to their release
  full_gradients,      //!< gradients of the whole weights, until they have been scattered
  copied_gradient      //!< gradients of a stage, slot c from its c-th copy in the order of devices,
                       //!< until all are added
};

namespace detail {

//! The most classes of slots. Pools of flows have the numbers of `slot_class`; those that no
//! pass takes, tied and copied gradients and totals, are not for flows.
inline constexpr int slot_classes = 17;

//! The member of a context that hands a pass the slot of a datum: one of those that stay, or
//! the list of what it reads or of what it fills.
enum class slot_place : std::uint8_t {
  none, //!< the datum lies in no slot
  activation,
  weight_input,
  state,
  state_gradient,
  inputs,
  outputs
};

inline constexpr int slot_places = 7; // values of slot_place

//! The member that hands out slots of a class of what stays; else `none`.
[[nodiscard]] constexpr slot_place member_of(slot_class of) noexcept {
  switch (of) {
  case slot_class::activation:
  case slot_class::logits: return slot_place::activation;
  case slot_class::weight_input: return slot_place::weight_input;
  case slot_class::sequence: return slot_place::state;
  case slot_class::sequence_gradient: return slot_place::state_gradient;
  default: return slot_place::none;
  }
}

//! The word of a class in sentences and tables.
[[nodiscard]] constexpr char const* word(slot_class of) noexcept {
  switch (of) {
  case slot_class::activation: return "activation";
  case slot_class::received_input: return "received_input";
  case slot_class::output: return "output";
  case slot_class::received_gradient: return "received_gradient";
  case slot_class::input_gradient: return "input_gradient";
  case slot_class::weight_input: return "weight_input";
  case slot_class::sequence: return "sequence";
  case slot_class::sequence_gradient: return "sequence_gradient";
  case slot_class::tied_gradient: return "tied_gradient";
  case slot_class::totals: return "totals";
  case slot_class::host_activation: return "host_activation";
  case slot_class::logits: return "logits";
  case slot_class::statistics: return "statistics";
  case slot_class::received_statistics: return "received_statistics";
  case slot_class::weights: return "weights";
  case slot_class::full_gradients: return "full_gradients";
  case slot_class::copied_gradient: return "copied_gradient";
  }
  return "unknown";
}

} // namespace detail

} // namespace pipelining::inline v0_3
