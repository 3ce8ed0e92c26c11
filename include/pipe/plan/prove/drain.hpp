// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Does a plan drain when nothing is buffered? Header for pipelining::drain and
//! pipelining::find_circle.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <cstddef>

namespace pipelining::inline v0_2 {

namespace detail {

//! True when the groups that two devices stand at are the two ends of the same messages.
[[nodiscard]] constexpr bool
groups_meet(plan_view work, int device, int first, int peer, int at_peer) noexcept {
  auto const mine = work.program_of(device);
  auto const theirs = work.program_of(peer);
  if (static_cast<std::size_t>(at_peer) >= theirs.size())
    return false;
  item const& head = theirs[static_cast<std::size_t>(at_peer)];
  if (head.what == operation::run || head.peer != device)
    return false;
  // Groups have been found to be the same at both ends: one common message tells.
  int const end = end_of_group(mine, first);
  for (int i = first; i < end; ++i) {
    item const& step = mine[static_cast<std::size_t>(i)];
    if (step.what != head.what && same_message(step, head))
      return true;
  }
  return false;
}

} // namespace detail

//! @brief An execution of a plan under rendezvous without any buffer: every device goes through its
//! program in order and stands at a group of messages until its peer stands at the same group.
//!
//! This is the strictest order that any executor may impose: that one line per device is also one
//! line per communicator, per stream and per queue. A plan that drains here drains on every
//! transport. The graph with the two ends of a message contracted to one node has a cycle exactly
//! when this stops early. Works on arrays of the caller, and can stop after any item and go on
//! later.
struct plan_drain {
  plan_view work; //!< the plan that runs
  int* at;      //!< [P], the item that a device stands at, or behind the last
  int* stack;   //!< [P], devices that may go on
  bool* queued; //!< [P], devices on the stack
  int depth = 0; //!< devices on the stack
};

//! @brief Puts every device at the start of its program.
constexpr void begin(plan_drain& run) noexcept {
  run.depth = 0;
  for (int device = 0; device < run.work.extents.devices; ++device) {
    run.at[device] = 0;
    run.stack[run.depth] = device;
    ++run.depth;
    run.queued[device] = true;
  }
}

//! @brief Goes on until nothing moves, or until about `budget` groups are done.
//! @return the number of groups and passes done; 0 when nothing moves any more.
//! @complexity O(1) per item, times the messages of a group.
constexpr int advance(plan_drain& run, int budget) noexcept {
  int done = 0;
  while (run.depth > 0 && done < budget) {
    --run.depth;
    int const device = run.stack[run.depth];
    run.queued[device] = false;
    auto const steps = run.work.program_of(device);
    int& at = run.at[device];
    while (static_cast<std::size_t>(at) < steps.size()) {
      item const& step = steps[static_cast<std::size_t>(at)];
      if (step.what != operation::run) {
        int& at_peer = run.at[step.peer];
        if (!detail::groups_meet(run.work, device, at, step.peer, at_peer))
          break;
        at_peer = end_of_group(run.work.program_of(step.peer), at_peer);
        if (!run.queued[step.peer]) {
          run.stack[run.depth] = step.peer;
          ++run.depth;
          run.queued[step.peer] = true;
        }
      }
      at = end_of_group(steps, at);
      ++done;
    }
  }
  return done;
}

//! @brief True when a device is behind its last item.
[[nodiscard]] constexpr bool ended(plan_drain const& run, int device) noexcept {
  return static_cast<std::size_t>(run.at[device]) == run.work.program_of(device).size();
}

//! @brief The first device that has not ended, or `nothing` when the plan has drained.
[[nodiscard]] constexpr int first_standing(plan_drain const& run) noexcept {
  for (int device = 0; device < run.work.extents.devices; ++device)
    if (!ended(run, device))
      return device;
  return nothing;
}

//! @brief The devices of the circle of a plan that has stopped early, each waiting for the next and
//! the last for the first; or those of a chain to a device that has ended.
//! @param circle [P], receives devices.
//! @return their number, 0 when the plan has drained.
[[nodiscard]] constexpr int find_circle(plan_drain const& run, int* circle) noexcept {
  int device = first_standing(run);
  if (device == nothing)
    return 0;
  auto const waits_for = [&run](int from) {
    return run.work.program_of(from)[static_cast<std::size_t>(run.at[from])].peer;
  };
  // Every device that stands still waits for its peer: following peers leads into the circle, or to
  // a device that has ended.
  for (int step = 0; step < run.work.extents.devices && !ended(run, waits_for(device)); ++step)
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
} // namespace pipelining::inline v0_2
