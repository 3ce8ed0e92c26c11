// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Does a plan drain when nothing is buffered?

#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove/messages.hpp>

#include <cstddef>
#include <span>

namespace pipelining::inline v0_3::detail {

//! The items of a device that start together.
struct item_group {
  std::span<item const> steps; // of the device
  int first;
  int end;

  constexpr item_group(plan_view const& work, int device, int at) noexcept
      : steps(work.program_of(device)), first(at),
        end(static_cast<std::size_t>(at) < steps.size() ? end_of_group(steps, at) : at) {}
  [[nodiscard]] constexpr item const& operator[](int at) const noexcept {
    return steps[static_cast<std::size_t>(at)];
  }
};

//! True when the groups that two devices stand at are the two ends of the same messages. The
//! messages of one direction stand in the same order.
[[nodiscard]] constexpr bool groups_meet(plan_view const& work,
                                         int device,
                                         item_group const& mine,
                                         int peer,
                                         item_group const& theirs) noexcept {
  if (mine.end - mine.first != theirs.end - theirs.first)
    return false;
  // Where the next one that the peer sends may be, and the next that it receives.
  int sent = theirs.first;
  int received = theirs.first;
  for (int i = mine.first; i < mine.end; ++i) {
    auto const wanted = mine[i].what == operation::send ? operation::receive : operation::send;
    int& next = wanted == operation::send ? sent : received;
    while (next < theirs.end && theirs[next].what != wanted)
      ++next;
    if (next == theirs.end ||
        misfit(work, mine[i], device, theirs[next], peer) != proof::rule::none)
      return false;
    ++next;
  }
  return true;
}

//! True when a device stands at an exchange.
[[nodiscard]] constexpr bool
is_at_exchange(plan_view work, int const* at, int device, int exchange) noexcept {
  auto const steps = work.program_of(device);
  auto const index = static_cast<std::size_t>(at[device]);
  return index < steps.size() && steps[index].what != operation::run &&
         work.message_of(steps[index]).exchange == exchange;
}

//! A device that others at an exchange wait for, or `nothing` where all have come.
[[nodiscard]] constexpr int
missing_at_exchange(plan_view work, int const* at, int exchange) noexcept {
  for (int device = 0; device < work.over.extents.devices; ++device) {
    if (!is_at_exchange(work, at, device, exchange))
      continue;
    auto const steps = work.program_of(device);
    int const end = end_of_group(steps, at[device]);
    for (int i = at[device]; i < end; ++i)
      if (int const peer = work.message_of(steps[static_cast<std::size_t>(i)]).peer;
          !is_at_exchange(work, at, peer, exchange))
        return peer;
  }
  return nothing;
}

//! Where all ends of the messages that a device stands at have come, takes the devices at them
//! on: two, or all that take part in an exchange.
//! @param at [P], the items that devices stand at. @param moved called with each of the others.
//! @return whether they have.
template <class Moved>
constexpr bool meet_at_messages(plan_view const& work, int* at, int device, Moved moved) {
  item_group const mine(work, device, at[device]);
  message_end const& end = work.message_of(mine[mine.first]);
  auto const move = [&](int other, item_group const& theirs) {
    at[other] = theirs.end;
    moved(other);
  };
  if (end.exchange == nothing) {
    item_group const theirs(work, end.peer, at[end.peer]);
    if (!groups_meet(work, device, mine, end.peer, theirs))
      return false;
    move(end.peer, theirs);
  } else {
    if (missing_at_exchange(work, at, end.exchange) != nothing)
      return false;
    for (int other = 0; other < work.over.extents.devices; ++other)
      if (other != device && is_at_exchange(work, at, other, end.exchange))
        move(other, item_group(work, other, at[other]));
  }
  at[device] = mine.end;
  return true;
}

//! @brief An execution of a plan under rendezvous without any buffer: every device goes through its
//! program in order and stands at a group of messages until its peer stands at the same group, at
//! an exchange until all that take part do.
//!
//! No executor may impose a stricter order: the one line per device is also one line per
//! communicator, per stream and per queue. A plan that drains here drains on every transport. The
//! graph with all ends of a message or of an exchange contracted to one node has a cycle exactly
//! when this stops early. Works on arrays of the caller.
struct plan_drain {
  plan_view work; //!< the plan that runs
  int* at;        //!< [P], the item that a device stands at, or after the last
  int* stack;     //!< [P], devices that may go on
  bool* queued;   //!< [P], devices on the stack
  int depth = 0;  //!< devices on the stack
};

//! @brief Runs every device from the start of its program until nothing moves.
//! @complexity O(1) per item, times the messages of a group.
constexpr void drain(plan_drain& run) noexcept {
  for (int device = 0; device < run.work.over.extents.devices; ++device) {
    run.at[device] = 0;
    run.stack[run.depth] = device;
    ++run.depth;
    run.queued[device] = true;
  }
  while (run.depth > 0) {
    --run.depth;
    int const device = run.stack[run.depth];
    run.queued[device] = false;
    auto const steps = run.work.program_of(device);
    int& at = run.at[device];
    while (static_cast<std::size_t>(at) < steps.size()) {
      item const& step = steps[static_cast<std::size_t>(at)];
      if (step.what == operation::run)
        at = end_of_group(steps, at);
      else if (!meet_at_messages(run.work, run.at, device, [&run](int other) {
                 if (run.queued[other])
                   return;
                 run.stack[run.depth] = other;
                 ++run.depth;
                 run.queued[other] = true;
               }))
        break;
    }
  }
}

//! @brief True when a device is after its last item.
[[nodiscard]] constexpr bool ended(plan_drain const& run, int device) noexcept {
  return static_cast<std::size_t>(run.at[device]) == run.work.program_of(device).size();
}

//! @brief The first device that has not ended, or `nothing` when the plan has drained.
[[nodiscard]] constexpr int first_standing(plan_drain const& run) noexcept {
  for (int device = 0; device < run.work.over.extents.devices; ++device)
    if (!ended(run, device))
      return device;
  return nothing;
}

//! @brief The devices of the circle of a plan that has stopped early, each waiting for the next and
//! the last for the first; or the devices of a chain to a device that has ended.
//! @param circle [P], receives devices.
//! @return their number, 0 when the plan has drained.
[[nodiscard]] constexpr int find_circle(plan_drain const& run, int* circle) noexcept {
  int device = first_standing(run);
  if (device == nothing)
    return 0;
  auto const waits_for = [&run](int from) {
    message_end const& end =
      run.work.message_of(run.work.program_of(from)[static_cast<std::size_t>(run.at[from])]);
    return end.exchange == nothing ? end.peer : missing_at_exchange(run.work, run.at, end.exchange);
  };
  // Every device that stands still waits for its peer: following peers leads into the circle, or to
  // a device that has ended.
  for (int step = 0; step < run.work.over.extents.devices && !ended(run, waits_for(device)); ++step)
    device = waits_for(device);
  int count = 0;
  int const start = device;
  do {
    circle[count] = device;
    ++count;
    if (ended(run, device))
      break;
    device = waits_for(device);
  } while (device != start);
  return count;
}

} // namespace pipelining::inline v0_3::detail
