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
#include <numeric>
#include <span>
#include <utility>
#include <vector>

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
//! when this stops early.
class plan_drain {
public:
  //! Runs every device from the start of its program until nothing moves.
  //! @complexity O(1) per item, times the messages of a group.
  explicit plan_drain(plan_view const& work) : work_(work), at_(count()) {
    std::vector<int> stack(count()); // devices that may go on
    std::vector<char> queued(count(), 1);
    std::iota(stack.begin(), stack.end(), 0);
    while (!stack.empty()) {
      int const device = stack.back();
      stack.pop_back();
      queued[static_cast<std::size_t>(device)] = 0;
      auto const moved = [&](int other) {
        if (std::exchange(queued[static_cast<std::size_t>(other)], 1) == 0)
          stack.push_back(other);
      };
      auto const steps = work.program_of(device);
      int& at = at_[static_cast<std::size_t>(device)];
      while (static_cast<std::size_t>(at) < steps.size()) {
        if (steps[static_cast<std::size_t>(at)].what == operation::run)
          at = end_of_group(steps, at);
        else if (!meet_at_messages(work, at_.data(), device, moved))
          break;
      }
    }
  }

  //! The item that a device stands at, or after the last.
  [[nodiscard]] int at(int device) const noexcept { return at_[static_cast<std::size_t>(device)]; }
  //! True when a device is after its last item.
  [[nodiscard]] bool ended(int device) const noexcept {
    return static_cast<std::size_t>(at(device)) == work_.program_of(device).size();
  }
  //! The devices of the circle of a plan that has stopped early, each waiting for the next and the
  //! last for the first; or the devices of a chain to a device that has ended. None when the plan
  //! has drained.
  [[nodiscard]] std::vector<int> circle() const {
    int device = 0;
    while (device < work_.over.extents.devices && ended(device))
      ++device;
    if (device == work_.over.extents.devices)
      return {};
    // Every device that stands still waits for its peer: following peers leads into the circle, or
    // to a device that has ended.
    for (std::size_t step = 0; step < count() && !ended(waits_for(device)); ++step)
      device = waits_for(device);
    std::vector<int> result{device};
    while (!ended(device) && (device = waits_for(device)) != result.front())
      result.push_back(device);
    return result;
  }

private:
  [[nodiscard]] std::size_t count() const noexcept {
    return static_cast<std::size_t>(work_.over.extents.devices);
  }
  [[nodiscard]] int waits_for(int from) const noexcept {
    message_end const& end =
      work_.message_of(work_.program_of(from)[static_cast<std::size_t>(at(from))]);
    return end.exchange == nothing ? end.peer
                                   : missing_at_exchange(work_, at_.data(), end.exchange);
  }

  plan_view work_;
  std::vector<int> at_; // [P]
};

} // namespace pipelining::inline v0_3::detail
