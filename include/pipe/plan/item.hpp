// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The steps of a device's program and the buffers that they use. Header for
//! pipelining::item.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/training.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pipelining::inline v0_3 {

//! @brief No slot, no item, no peer.
inline constexpr int nothing = -1;

//! @brief One use of a buffer by a step: its class and its number there, or `nothing`, and the
//! bytes that go through it.
struct use {
  slot_class of = slot_class::activation;           //!< the class of what lies in it
  detail::slot_place at = detail::slot_place::none; //!< the place in which a stage is handed it
  std::uint16_t count = 1; //!< slots from the first on, of totals or of copies that a step reads
  int index = nothing;     //!< the number of the first in its class
  std::int64_t bytes = 0;  //!< of the content, all slots together

  friend constexpr bool operator==(use const&, use const&) = default;
};

static_assert(sizeof(use) == 16);

namespace detail {

//! One end of a message, as its item refers to it.
//!
//! A message is named by the pass that makes it; both of its ends carry that pass.
struct message_end {
  int peer = nothing;     //!< the device at the other end
  int sequence = nothing; //!< how many went the same way between the same devices before it
  //! The same at both ends. A message that a pass makes: the number of its reader among the stages
  //! that read it. Another message: a number of its own.
  int number = 0;

  friend constexpr bool operator==(message_end const&, message_end const&) = default;
};

} // namespace detail

//! @brief The action of a step of a device's program.
enum class operation : std::uint8_t { run, send, receive };

namespace detail {

//! The word of an operation in sentences.
[[nodiscard]] constexpr char const* word(operation what) noexcept {
  return what == operation::run ? "run" : what == operation::send ? "send" : "receive";
}

//! The subject of a step: a pass, or work that follows complete gradients.
enum class subject : std::uint8_t {
  pass,            //!< a pass, or a message with what it has made
  tied_gradient,   //!< run: the stage hands over the gradient of its tied weight; or its message
  add_tied,        //!< run: the gradients of both copies of the tied weight are added
  contribution,    //!< run: the stage writes its row of the totals
  gather,          //!< a message with rows of the totals, towards the device that gets them all
  spread,          //!< a message with all rows of the totals, away from that device
  update,          //!< run: the step of the optimizer of the stage
  early_update,    //!< run: the same, with the rows of the devices so far, if they say that it may
  validation,      //!< run: undoes or makes up for an early step that all rows say was wrong
  copied_gradient, //!< run: a copy of a stage hands over its gradients; or their message
  add_copies       //!< run: the gradients of all copies of the stage are added
};

inline constexpr int subject_count = static_cast<int>(subject::add_copies) + 1;

//! @brief The class of the slots of a step that is not about a pass.
[[nodiscard]] constexpr slot_class class_of(subject about) noexcept {
  switch (about) {
  case subject::copied_gradient:
  case subject::add_copies: return slot_class::copied_gradient;
  case subject::tied_gradient:
  case subject::add_tied: return slot_class::tied_gradient;
  default: return slot_class::totals;
  }
}
//! @brief True where a stage hands over what its slot is to hold.
[[nodiscard]] constexpr bool hands_over(subject about) noexcept {
  return about == subject::copied_gradient || about == subject::tied_gradient ||
         about == subject::contribution;
}
} // namespace detail

//! @brief One step of a device's program: run a pass, or send or receive the data that a pass has
//! made.
//!
//! An item names its uses of slots, the items that it waits for, and its message, all in lists of
//! the plan. A pass names first what it reads, makes and keeps, in the order of the effects of its
//! kind. A send reads one slot, a receive fills one. Steps about something else than passes use one
//! class; they name their stage by `work.stage`, and its copy by a microbatch that takes it.
struct item {
  operation what = operation::run;               //!< what the device does
  detail::subject about = detail::subject::pass; //!< what the step is about
  bool completes_stage = false; //!< run: the last pass of the iteration that adds to the weight
                                //!< gradients of its stage on this device, or scatters them
  //! Posted together with the message before it. The messages of a group go to and come from one
  //! peer; those of an exchange have several.
  bool joins = false;
  pass work;                    //!< the pass to run, or the pass that makes the message
  int message = nothing;        //!< into the plan's list of messages
  int first_use = 0;            //!< into the plan's list of uses
  int first_wait = 0;           //!< into the plan's list of waits
  std::uint16_t use_count = 0;  //!< slots that it uses
  std::uint16_t wait_count = 0; //!< items of this device that must be complete before it starts
  //! The communicator of the message, numbered on this device; of a copy, its engine, numbered
  //! after them; `nothing` on the compute engine.
  int lane = nothing;

  //! The stream of the item on its device: passes of the compute engine on stream 0, messages and
  //! copies of lane l on stream l + 1. Items of one stream complete in program order.
  [[nodiscard]] constexpr int stream() const noexcept { return lane - nothing; }
  friend constexpr bool operator==(item const&, item const&) = default;
};

static_assert(sizeof(item) == 32);

namespace detail {

//! True for a message that passes on what other messages have brought, perhaps on the same
//! lane. The order of a stream says so; where lanes are no streams, the executor waits.
[[nodiscard]] constexpr bool relays(item const& step) noexcept {
  return step.about == subject::gather || step.about == subject::spread;
}

//! True for a step of an engine that works next to the compute engine.
[[nodiscard]] constexpr bool runs_beside(item const& step) noexcept {
  return step.what == operation::run && step.lane != nothing;
}

//! The item after the ones that start together with item `first`: the messages of one group,
//! or the two halves of a composite pass. Any other item starts by itself.
//! @pre `first` is the first of its group.
[[nodiscard]] constexpr int end_of_group(std::span<item const> steps, int first) noexcept {
  bool const runs = steps[static_cast<std::size_t>(first)].what == operation::run;
  auto next = static_cast<std::size_t>(first) + 1;
  while (next < steps.size() &&
         (runs ? steps[next].work.overlapped && steps[next].what == operation::run
               : steps[next].joins && steps[next].what != operation::run))
    ++next;
  return static_cast<int>(next);
}

//! The first message of the group of a message.
[[nodiscard]] constexpr int first_of_group(std::span<item const> steps, int message) noexcept {
  while (steps[static_cast<std::size_t>(message)].joins)
    --message;
  return message;
}

//! True for a step next to the program in which the library copies a slot, and no stage is called.
[[nodiscard]] constexpr bool is_copy(flow const& declared, item const& step) noexcept {
  return runs_beside(step) && is_copy(declared[step.work.kind]);
}

} // namespace detail

} // namespace pipelining::inline v0_3
