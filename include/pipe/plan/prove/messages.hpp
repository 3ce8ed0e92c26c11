// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The part of the proof that looks at messages: do the two ends of each fit together?

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/exchange.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pipelining::inline v0_3::detail {

//! @brief The most messages of one group. NCCL cuts very large groups into several launches, each
//! rank at another place.
inline constexpr int most_group_messages = 64;

//! A step about something else than a pass is of a plan that has such, runs or is a message as its
//! subject says, and has a number and rows that exist.
[[nodiscard]] constexpr bool other_exists(plan_view work, item const& step) noexcept {
  shape const& extents = work.over.extents;
  slot_class const of = class_of(step.about);
  bool const copied = of == slot_class::copied_gradient;
  bool const tied = of == slot_class::tied_gradient;
  if ((copied ? extents.routes() - 1
       : tied ? work.tied_bytes
              : work.totals_bytes) <= 0 ||
      step.rows < 0 || step.rows > (copied ? most_copies(extents) : extents.stages()) ||
      step.work.microbatch >= extents.microbatches)
    return false;
  if (step.what == operation::run)
    return step.about != subject::gather && step.about != subject::spread;
  return step.number >= 0 && step.number < work.other_messages &&
         (step.about == subject::copied_gradient || step.about == subject::tied_gradient ||
          step.about == subject::gather || step.about == subject::spread);
}

//! True when a device takes part in exchanges.
[[nodiscard]] constexpr bool takes_part_in_exchanges(plan_view work, int device) noexcept {
  for (item const& step : work.program_of(device))
    if (step.exchange != nothing)
      return true;
  return false;
}

//! An exchange is one group of a device, with all messages of it that the device has an end of.
//! @pre check_form has nothing to say.
constexpr proof check_exchanges(plan_view work, int device) {
  if (!takes_part_in_exchanges(work, device))
    return {};
  pipeline_view const over = work.over;
  int const count = exchange_indices(over);
  auto const steps = work.program_of(device);
  owned<int> group_of(count, nothing);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    if (step.exchange == nothing)
      continue;
    if (step.what == operation::run || step.exchange < 0 || step.exchange >= count)
      return {proof::rule::bad_group, device, static_cast<int>(i)};
    int& group = group_of[step.exchange];
    if (group != nothing && group != step.group)
      return {proof::rule::bad_group, device, static_cast<int>(i)};
    group = step.group;
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    bool const alone = step.what != operation::run && step.about == subject::pass &&
                       step.exchange == nothing && step.number < readers(over, step.work);
    int const exchange = alone ? exchange_of(over, step.work, step.number) : nothing;
    if (exchange != nothing && group_of[exchange] != nothing)
      return {proof::rule::bad_group, device, static_cast<int>(i)};
  }
  return {};
}

//! Waits point to items before the group, passes and peers exist, groups are contiguous, each with
//! a number of its own, one lane, and one peer or one exchange.
constexpr proof check_form(plan_view work, int device) {
  auto const steps = work.program_of(device);
  int const count = static_cast<int>(steps.size());
  pipeline_view const over = work.over;
  int const width = graph_width(over);
  owned<bool> used(count, false);
  for (int first = 0; first < count;) {
    int const end = end_of_group(steps, first);
    item const& head = steps[static_cast<std::size_t>(first)];
    bool const message = head.what != operation::run;
    if (message && (head.group < 0 || head.group >= count || used[head.group] ||
                    end - first > most_group_messages))
      return {proof::rule::bad_group, device, first};
    if (message)
      used[head.group] = true;
    for (int i = first; i < end; ++i) {
      item const& step = steps[static_cast<std::size_t>(i)];
      for (int const wait : work.waits_of(step))
        if (wait < 0 || wait >= first)
          return {proof::rule::waits_forward, device, i, device, wait};
      if (step.about == subject::pass ? !over.contains(step.work)
                                      : step.work.stage >= work.over.extents.stages())
        return {proof::rule::wrong_passes, device, i};
      if (step.about != subject::pass && !other_exists(work, step))
        return {message ? proof::rule::unmatched : proof::rule::wrong_passes, device, i};
      if (!message)
        continue;
      if (step.about == subject::pass && (step.number < 0 || step.number >= width))
        return {proof::rule::unmatched, device, i};
      if (step.peer < 0 || step.peer >= work.over.extents.devices || step.peer == device)
        return {proof::rule::unmatched, device, i};
      if (step.exchange != head.exchange || (step.exchange == nothing && step.peer != head.peer) ||
          step.lane != head.lane || (!work.duplex_groups && step.what != head.what))
        return {proof::rule::bad_group, device, i, device, first};
    }
    first = end;
  }
  return {};
}

//! The first message of a lane, the key of its communicator, and the peers of the last messages.
struct first_on_lane {
  int message = nothing;
  std::int64_t key = 0;
  int peers[2] = {nothing, nothing}; // of the last one received, of the last one sent
};

//! Two messages of a device are on one lane exactly when they share a communicator.
//! @param seen scratch, [lanes of the device], fresh.
constexpr proof check_lanes(plan_view work, int device, first_on_lane* seen) noexcept {
  auto const steps = work.program_of(device);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    int const index = static_cast<int>(i);
    if (step.what == operation::run)
      continue;
    if (step.lane < 0 || step.lane >= work.lanes[device])
      return {proof::rule::wrong_lane, device, index};
    // What is like one before it is as right as that was.
    int& peer = seen[step.lane].peers[step.what == operation::send ? 1 : 0];
    if (peer == step.peer)
      continue;
    peer = step.peer;
    std::int64_t const key =
      step.what == operation::send ? work.key(device, step.peer) : work.key(step.peer, device);
    if (seen[step.lane].message == nothing) {
      seen[step.lane].message = index;
      seen[step.lane].key = key;
    }
    for (int lane = 0; lane < work.lanes[device]; ++lane)
      if (seen[lane].message != nothing && (seen[lane].key == key) != (lane == step.lane))
        return {proof::rule::wrong_lane, device, index, device, seen[lane].message};
  }
  return {};
}

//! Where the two ends of every message are: [message_indices], item numbers on their devices.
struct message_ends {
  int* sender;
  int* receiver;
};

//! Enters the messages of a device; a message that is sent or received twice is named.
constexpr proof enter_messages(plan_view work, int device, message_ends ends) noexcept {
  auto const steps = work.program_of(device);
  message_numbers const numbers(work.over);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    int const index = static_cast<int>(i);
    if (step.what == operation::run)
      continue;
    int const maker = numbers.of(step);
    int& end = step.what == operation::send ? ends.sender[maker] : ends.receiver[maker];
    if (end != nothing)
      return {proof::rule::unmatched, device, index, device, end};
    end = index;
  }
  return {};
}

//! The messages that go one way between two devices are numbered in their order.
//! @param next scratch, [2 P], 0: the numbers of the next messages from and to every device.
constexpr proof check_sequences(plan_view work, int device, int* next) noexcept {
  auto const steps = work.program_of(device);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    if (step.what == operation::run)
      continue;
    int& expected = next[2 * step.peer + (step.what == operation::send ? 1 : 0)];
    if (step.sequence != expected)
      return {proof::rule::fifo_differs, device, static_cast<int>(i)};
    ++expected;
  }
  return {};
}

//! The rule by which two items of two devices are not the ends of one message; none where they are.
//! Both ends have the same size, place in the line of their edge, and exchange.
[[nodiscard]] constexpr proof::rule
misfit(item const& step, int device, item const& other, int peer) noexcept {
  bool const sends = step.what == operation::send;
  if (step.peer != peer || other.peer != device ||
      other.what != (sends ? operation::receive : operation::send) || !same_message(other, step))
    return proof::rule::unmatched;
  if ((sends ? step.in_bytes : step.out_bytes) != (sends ? other.out_bytes : other.in_bytes))
    return proof::rule::sizes_differ;
  if (other.sequence != step.sequence)
    return proof::rule::fifo_differs;
  return other.exchange == step.exchange ? proof::rule::none : proof::rule::bad_group;
}

//! Finds a fault in the messages of a device. Each has its other end at the peer, with the same
//! bytes and the same place in the line of its edge. The groups of both ends hold the same
//! messages.
constexpr proof check_messages(plan_view work, int device, message_ends ends) noexcept {
  auto const steps = work.program_of(device);
  message_numbers const numbers(work.over);
  int before_twin = nothing; // of the item before, where both are of one group
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    int const index = static_cast<int>(i);
    if (step.what == operation::run)
      continue;
    int const maker = numbers.of(step);
    bool const sends = step.what == operation::send;
    int const twin = sends ? ends.receiver[maker] : ends.sender[maker];
    auto const theirs = work.program_of(step.peer);
    if (twin == nothing || static_cast<std::size_t>(twin) >= theirs.size())
      return {proof::rule::unmatched, device, index};
    item const& other = theirs[static_cast<std::size_t>(twin)];
    proof::rule const broken = misfit(step, device, other, step.peer);
    if (broken == proof::rule::unmatched)
      return {broken, device, index};
    if (broken != proof::rule::none)
      return {broken, device, index, step.peer, twin};
    bool const joins = i > 0 && steps[i - 1].what != operation::run &&
                       steps[i - 1].group == step.group && steps[i - 1].peer == step.peer;
    if (joins && theirs[static_cast<std::size_t>(before_twin)].group != other.group)
      return {proof::rule::bad_group, device, index, step.peer, twin};
    before_twin = twin;
  }
  return {};
}

} // namespace pipelining::inline v0_3::detail
