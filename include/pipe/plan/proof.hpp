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
  constexpr char const* sentences[] = {
    "the plan is proven",
    "an item waits for an item that does not come before it",
    "a group of messages is not the same at both ends",
    "a message is not in the line of its communicator",
    "a message is not sent once and received once",
    "the two ends of a message disagree on its size",
    "the two ends of an edge disagree on the order of its messages",
    "devices wait for each other in a circle",
    "a pass does not run exactly once on the device of its stage",
    "slots of an arena overlap or are too small for what they hold",
    "a pass runs where what it needs of its stage is not there",
    "a step reads a slot that holds something else",
    "a step may start before an item that it depends on is complete",
    "a step uses gradients that are not complete when it runs",
    "the optimizer's step of an iteration is not validated before what depends on it",
    "two plans in a row differ in their devices, stages or communicators"};
  static_assert(std::size(sentences) == static_cast<int>(proof::rule::seam) + 1);
  return sentences[static_cast<int>(broken)];
}
} // namespace detail
} // namespace pipelining::inline v0_3
