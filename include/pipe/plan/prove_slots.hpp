// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the proof that looks at buffers: who wrote what a step reads, and is it
//! complete by then?

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/memory.hpp>
#include <pipe/plan/message.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/waits.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_1 {

//! @brief What can be wrong with a plan, in the order in which `prove` looks for it.
enum class plan_rule : std::uint8_t {
  none,          //!< nothing is wrong
  waits_forward, //!< an item waits for itself or for an item behind it
  bad_group,     //!< a group of messages is not one and the same at both ends
  unmatched,     //!< a message that is not sent once and received once
  sizes_differ,  //!< the two ends of a message disagree on its bytes
  fifo_differs,  //!< the two ends of an edge disagree on the order of its messages
  circular,      //!< devices wait for each other in a circle
  wrong_content, //!< a step reads a slot that holds something else
  unordered      //!< a step may start before an item that it depends on is complete
};

//! @brief The verdict of `prove`: the first broken rule and the items involved.
struct proof {
  plan_rule broken = plan_rule::none;
  int device = 0;
  int item_index = 0;
  int other_device = nothing;
  int other_item = nothing;

  [[nodiscard]] constexpr explicit operator bool() const noexcept {
    return broken == plan_rule::none;
  }
};

namespace detail {

//! Who used a slot: the item that wrote what is in it, the last that read it, and what that is.
struct slot_history {
  int writer = nothing;
  int reader = nothing;
  int content = nothing;
};

//! The walk over one device's program.
struct slot_check {
  plan_view work;
  int device;
  stream_clocks clock;
  slot_history* histories; // of all classes, one after the other
  proof verdict;

  [[nodiscard]] constexpr slot_history* history(slot_class of, int index) noexcept {
    int first = 0;
    for (int before = 0; before < static_cast<int>(of); ++before)
      first += work.layout(device, static_cast<slot_class>(before)).count;
    bool const exists = index >= 0 && index < work.layout(device, of).count;
    return exists ? histories + first + index : nullptr;
  }
  [[nodiscard]] constexpr bool knows(int item_index, int earlier) const noexcept {
    if (earlier == nothing)
      return true;
    int const stream = stream_of(work.program_of(device)[static_cast<std::size_t>(earlier)]);
    return clock.of(item_index)[stream] >= earlier;
  }
  constexpr void fail(plan_rule broken, int item_index, int other) noexcept {
    if (verdict)
      verdict = {broken, device, item_index, device, other};
  }
  //! `item_index` writes `content` into a slot: whoever wrote or read it before must be complete.
  constexpr void write(int item_index, slot_class of, int index, int content) noexcept {
    slot_history* const past = history(of, index);
    if (past == nullptr)
      return fail(plan_rule::wrong_content, item_index, nothing);
    if (!knows(item_index, past->writer))
      return fail(plan_rule::unordered, item_index, past->writer);
    if (!knows(item_index, past->reader))
      return fail(plan_rule::unordered, item_index, past->reader);
    *past = {item_index, nothing, content};
  }
  //! `item_index` reads a slot that must hold `content`, written by an item that is complete.
  constexpr void read(int item_index, slot_class of, int index, int content) noexcept {
    slot_history* const past = history(of, index);
    if (past == nullptr || past->content != content)
      return fail(plan_rule::wrong_content, item_index, past == nullptr ? nothing : past->writer);
    if (!knows(item_index, past->writer))
      return fail(plan_rule::unordered, item_index, past->writer);
    // One last reader stands for all: two readers on different streams would need one each.
    if (past->reader != nothing && !knows(item_index, past->reader))
      return fail(plan_rule::unordered, item_index, past->reader);
    past->reader = item_index;
  }
  constexpr void run(int i, item const& step) noexcept {
    shape const& extents = work.extents;
    bool const forward = step.work.kind == pass_kind::forward;
    pass unit = step.work;
    unit.kind = pass_kind::forward;
    int const unit_content = pass_index(extents, unit);
    int const sequence_content = step.work.stage * extents.microbatches + step.work.microbatch;
    bool const reads_message =
      step.work.kind != pass_kind::backward_weight &&
      (forward ? step.work.stage > 0 : step.work.stage + 1 < stages(extents));
    if (reads_message)
      read(i, step.in.of, step.in.index, pass_index(extents, maker_of_input(step)));
    if (forward)
      write(i, slot_class::activation, step.activation, unit_content);
    else
      read(i, slot_class::activation, step.activation, unit_content);
    if (step.work.kind == pass_kind::backward_input)
      write(i, slot_class::weight_input, step.weight_input, unit_content);
    if (step.work.kind == pass_kind::backward_weight)
      read(i, slot_class::weight_input, step.weight_input, unit_content);
    if (extents.chunks > 1 && step.work.kind != pass_kind::backward_weight) {
      bool const opens = forward && step.work.chunk == 0;
      bool const turns = !forward && step.work.chunk == extents.chunks - 1;
      if (opens)
        write(i, slot_class::sequence, step.state, sequence_content);
      else
        read(i, slot_class::sequence, step.state, sequence_content);
      if (turns)
        write(i, slot_class::sequence_gradient, step.state_gradient, sequence_content);
      if (!forward && !turns)
        read(i, slot_class::sequence_gradient, step.state_gradient, sequence_content);
    }
    if (reader_stage(extents, step.work) != nothing)
      write(i, step.out.of, step.out.index, pass_index(extents, step.work));
  }
};

//! Checks the slots of one device.
//! @param clocks scratch, [items][lanes + 1]. @param tail scratch, [lanes + 1].
//! @param histories scratch, one per slot of the device, fresh.
constexpr proof
check_slots(plan_view work, int device, int* clocks, int* tail, slot_history* histories) noexcept {
  slot_check walk{work, device, {clocks, tail, work.lanes[device] + 1}, histories, {}};
  walk.clock.reset();
  auto const steps = work.program_of(device);
  for (std::size_t k = 0; k < steps.size() && walk.verdict; ++k) {
    int const i = static_cast<int>(k);
    item const& step = steps[k];
    walk.clock.start(i, stream_of(step));
    for (int const wait : work.waits_of(step))
      walk.clock.learn(i, wait, stream_of(steps[static_cast<std::size_t>(wait)]));
    int const maker = pass_index(work.extents, step.work);
    if (step.what == operation::run)
      walk.run(i, step);
    else if (step.what == operation::send)
      walk.read(i, step.in.of, step.in.index, maker);
    else
      walk.write(i, step.out.of, step.out.index, maker);
  }
  return walk.verdict;
}

} // namespace detail
} // namespace pipelining::inline v0_1
