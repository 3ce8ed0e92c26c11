// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The verdict of a proof. Header for pipelining::proof.

#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>

#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief The verdict of `prove`: the first broken rule and the items involved.
struct proof {
  //! @brief The rules that a plan may break, in the order in which `prove` looks at them.
  enum class rule : std::uint8_t {
    none,          //!< nothing is wrong
    waits_forward, //!< an item waits for one that does not come before its group
    bad_group,     //!< a group of messages is not one and the same at both ends, or is too large
    wrong_lane,   //!< a message is not in the line of its communicator, or a pass not of its engine
    unmatched,    //!< a message that is not sent once and received once
    sizes_differ, //!< the two ends of a message disagree on its bytes
    fifo_differs, //!< the two ends of an edge disagree on the order of its messages
    circular,     //!< devices wait for each other in a circle
    wrong_passes, //!< a pass is missing, runs twice, or runs on another device than its stage's
    slots_overlap, //!< slots lie over one another in the arena, or are too small for what they hold
    not_there,     //!< a pass needs weights that are not gathered then, or memory for gradients
    wrong_content, //!< a step reads a slot that holds something else
    unordered,     //!< a step may start before an item that it depends on is complete
    incomplete,    //!< a step uses gradients that are not complete when it runs
    not_validated, //!< an early step of the optimizer is not validated in the plan that follows, or
                   //!< after a step of that plan that cannot run again
    seam           //!< two plans in a row differ in their devices, stages or communicators
  };

  rule broken = rule::none;   //!< the rule, none where all is well
  int device = 0;             //!< where it is broken
  int item_index = nothing;   //!< on `device`; `nothing` for a pass that no device runs
  int other_device = nothing; //!< the device it is in conflict with
  int other_item = nothing;   //!< on the other device
  pass what{};                //!< the pass that is missing where no device runs it
  detail::subject about = detail::subject::pass; //!< what is missing where no device runs it

  [[nodiscard]] constexpr explicit operator bool() const noexcept {
    return broken == proof::rule::none;
  }
};

namespace detail {

//! The sentence of a rule of plans.
[[nodiscard]] constexpr char const* sentence(proof::rule broken) noexcept {
  switch (broken) {
  case proof::rule::none: return "the plan is proven";
  case proof::rule::waits_forward: return "an item waits for an item that does not come before it";
  case proof::rule::bad_group: return "a group of messages is not the same at both ends";
  case proof::rule::wrong_lane: return "a message is not in the line of its communicator";
  case proof::rule::unmatched: return "a message is not sent once and received once";
  case proof::rule::sizes_differ: return "the two ends of a message disagree on its size";
  case proof::rule::fifo_differs:
    return "the two ends of an edge disagree on the order of its messages";
  case proof::rule::circular: return "devices wait for each other in a circle";
  case proof::rule::wrong_passes:
    return "a pass does not run exactly once on the device of its stage";
  case proof::rule::slots_overlap:
    return "slots of an arena overlap or are too small for what they hold";
  case proof::rule::not_there: return "a pass runs where what it needs of its stage is not there";
  case proof::rule::wrong_content: return "a step reads a slot that holds something else";
  case proof::rule::unordered:
    return "a step may start before an item that it depends on is complete";
  case proof::rule::incomplete: return "a step uses gradients that are not complete when it runs";
  case proof::rule::not_validated:
    return "the optimizer's step of an iteration is not validated before what depends on it";
  case proof::rule::seam:
    return "two plans in a row differ in their devices, stages or communicators";
  }
  return "unknown rule";
}

} // namespace detail
} // namespace pipelining::inline v0_3
