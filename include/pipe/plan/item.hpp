// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The steps of a device's program and the buffers that they use. Header for
//! pipelining::item.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/slot_class.hpp>
#include <pipe/flow/training.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pipelining::inline v0_3 {

//! @brief No slot, no item, no peer.
inline constexpr int nothing = -1;

//! @brief One buffer of a device: a class and a number in it, or `nothing`.
struct slot {
  slot_class of = slot_class::activation; //!< what lies in it
  int index = nothing;                    //!< its number in the class

  friend constexpr bool operator==(slot const&, slot const&) = default;
};

namespace detail {

//! A slot and what goes through it.
struct sized_slot {
  slot used{};            //!< which
  std::int64_t bytes = 0; //!< of what is in it

  friend constexpr bool operator==(sized_slot const&, sized_slot const&) = default;
};

//! A part of a plan's list of further slots.
struct slot_range {
  int first = 0; //!< in the list
  int count = 0; //!< how many

  friend constexpr bool operator==(slot_range const&, slot_range const&) = default;
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
} // namespace detail

//! @brief One step of a device's program: run a pass, or send or receive the data that a pass has
//! made.
//!
//! A message is named by the pass that makes it; both of its ends carry that pass. Steps about
//! something else than passes name their stage by `work.stage`, its copy by a microbatch that takes
//! it, and their messages by `number`.
struct item {
  operation what = operation::run;               //!< what the device does
  detail::subject about = detail::subject::pass; //!< what the step is about
  bool completes_stage = false; //!< run: the last pass of the iteration that adds to the weight
                                //!< gradients of its stage on this device, or scatters them
  pass work;                    //!< the pass to run, or the pass that makes the message
  int peer = nothing;           //!< the device at the other end of a message
  //! The communicator of the message, numbered on this device; of a copy, its engine, numbered
  //! after them; `nothing` on the compute engine.
  int lane = nothing;
  //! Messages of one group are posted together; numbered on this device. They go to and come from
  //! one peer; the messages of an exchange have several peers.
  int group = nothing;
  int sequence =
    nothing; //!< how many messages went the same way between the same devices before this one
  //! The same at both ends. A message that a pass makes: the number of its reader among the stages
  //! that read it. Another message: a number of its own.
  int number = 0;
  //! The number of the exchange that a message is part of, the same at all of its ends. An exchange
  //! is one step of all devices that take part.
  int exchange = nothing;
  std::int64_t in_bytes = 0;  //!< size of what is in `in`
  std::int64_t out_bytes = 0; //!< size of what goes into `out`
  slot in;  //!< run: the first of what it reads, of a copy its source; send: what is sent
  slot out; //!< run: the first of what it fills, of a copy its target; receive: where it goes
  int first_wait = 0;         //!< into the plan's list of waits
  int wait_count = 0;         //!< items of this device that must be complete before this one starts
  int activation = nothing;   //!< slot of class activation, or logits
  int weight_input = nothing; //!< slot of class weight_input
  int state = nothing;        //!< slot of class sequence
  int state_gradient = nothing; //!< slot of class sequence_gradient
  int rows = 0; //!< of totals or of copies that the step reads or writes, from its slot on
  detail::slot_range further_inputs{};  //!< run: what it reads after the first
  detail::slot_range further_outputs{}; //!< run: what it fills after the first

  //! The stream of the item on its device: passes of the compute engine on stream 0, messages and
  //! copies of lane l on stream l + 1. Items of one stream complete in program order.
  [[nodiscard]] constexpr int stream() const noexcept { return lane == nothing ? 0 : lane + 1; }
  friend constexpr bool operator==(item const&, item const&) = default;
};

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

//! The number of the slot that a step has in a member of its context, or null for lists.
[[nodiscard]] constexpr int* kept_slot(item& step, slot_place at) noexcept {
  switch (at) {
  case slot_place::activation: return &step.activation;
  case slot_place::weight_input: return &step.weight_input;
  case slot_place::state: return &step.state;
  case slot_place::state_gradient: return &step.state_gradient;
  default: return nullptr;
  }
}
//! The same of an item that stays as it is.
[[nodiscard]] constexpr int const* kept_slot(item const& step, slot_place at) noexcept {
  return kept_slot(const_cast<item&>(step), at);
}

//! True when two items are about one message: its two ends.
//! @pre both are messages.
[[nodiscard]] constexpr bool same_message(item const& one, item const& other) noexcept {
  return one.number == other.number && one.about == other.about &&
         (one.about != subject::pass || one.work == other.work);
}

//! The item after the ones that start together with item `first`: the messages of one group,
//! or the two halves of a composite pass. Any other item starts by itself.
//! @pre `first` is the first of its group.
[[nodiscard]] constexpr int end_of_group(std::span<item const> steps, int first) noexcept {
  item const& head = steps[static_cast<std::size_t>(first)];
  std::size_t end = static_cast<std::size_t>(first) + 1;
  if (head.what == operation::run)
    while (end < steps.size() && steps[end].what == operation::run && steps[end].work.overlapped)
      ++end;
  else
    while (end < steps.size() && steps[end].what != operation::run &&
           steps[end].group == head.group)
      ++end;
  return static_cast<int>(end);
}

//! True for a step next to the program in which the library copies a slot, and no stage is called.
[[nodiscard]] constexpr bool is_copy(flow const& declared, item const& step) noexcept {
  return runs_beside(step) && is_copy(declared[step.work.kind]);
}

} // namespace detail

} // namespace pipelining::inline v0_3
