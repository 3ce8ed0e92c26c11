// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The proof that a plan drains and mixes up no data. Header for pipelining::prove.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove_slots.hpp>

#include <cstddef>

namespace pipelining::inline v0_1 {

//! @brief The most messages of one group.
inline constexpr int most_group_messages = 64;

namespace detail {

//! Scratch memory of a proof, freed at the end of its scope; works in constant evaluations too.
template <class T>
struct scratch {
  T* data;

  constexpr scratch(int size, T value)
      : data(new T[static_cast<std::size_t>(size > 0 ? size : 1)]) {
    for (int i = 0; i < size; ++i)
      data[i] = value;
  }
  constexpr ~scratch() { delete[] data; }
  scratch(scratch const&) = delete;
  scratch& operator=(scratch const&) = delete;
};

//! Waits point back, groups are contiguous with one peer on one lane, peers exist.
constexpr proof check_form(plan_view work, int device) noexcept {
  auto const steps = work.program_of(device);
  int const count = static_cast<int>(steps.size());
  int size = 0;
  for (int i = 0; i < count; ++i) {
    item const& step = steps[static_cast<std::size_t>(i)];
    for (int const wait : work.waits_of(step))
      if (wait < 0 || wait >= i)
        return {plan_rule::waits_forward, device, i, device, wait};
    if (step.what == operation::run)
      continue;
    if (step.peer < 0 || step.peer >= work.extents.devices || step.peer == device)
      return {plan_rule::unmatched, device, i};
    bool const joins = i > 0 && steps[static_cast<std::size_t>(i - 1)].what != operation::run &&
                       steps[static_cast<std::size_t>(i - 1)].group == step.group;
    size = joins ? size + 1 : 1;
    if (!joins)
      continue;
    item const& before = steps[static_cast<std::size_t>(i - 1)];
    if (size > most_group_messages || before.peer != step.peer || before.lane != step.lane ||
        (!work.duplex_groups && before.what != step.what))
      return {plan_rule::bad_group, device, i, device, i - 1};
  }
  return {};
}

//! Where the two ends of every message are: [pass_indices], as device * 2^32 + item would be, in
//! two arrays.
struct message_ends {
  int* sender;   // item of the send on its device
  int* receiver; // item of the receive on its device
};

//! Enters the messages of a device; a message that is sent or received twice is named.
constexpr proof enter_messages(plan_view work, int device, message_ends ends) noexcept {
  auto const steps = work.program_of(device);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    int const index = static_cast<int>(i);
    if (!contains(work.extents, step.work))
      return {plan_rule::unmatched, device, index};
    if (step.what == operation::run)
      continue;
    int const maker = pass_index(work.extents, step.work);
    int& end = step.what == operation::send ? ends.sender[maker] : ends.receiver[maker];
    if (end != nothing)
      return {plan_rule::unmatched, device, index, device, end};
    end = index;
  }
  return {};
}

//! Every message has its other end at the peer, with the same bytes, in the same place of the FIFO
//! of its edge; and the groups of the two ends hold the same messages.
//! @param counts scratch, [2 P], zero. @param order scratch, [items of the plan].
constexpr proof
check_messages(plan_view work, int device, message_ends ends, int* last_seen) noexcept {
  auto const steps = work.program_of(device);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    item const& step = steps[i];
    int const index = static_cast<int>(i);
    if (step.what == operation::run)
      continue;
    int const maker = pass_index(work.extents, step.work);
    bool const sends = step.what == operation::send;
    int const twin = sends ? ends.receiver[maker] : ends.sender[maker];
    auto const theirs = work.program_of(step.peer);
    if (twin == nothing || static_cast<std::size_t>(twin) >= theirs.size())
      return {plan_rule::unmatched, device, index};
    item const& other = theirs[static_cast<std::size_t>(twin)];
    if (other.peer != device || other.what == step.what ||
        pass_index(work.extents, other.work) != maker)
      return {plan_rule::unmatched, device, index};
    if ((sends ? step.in_bytes : step.out_bytes) != (sends ? other.out_bytes : other.in_bytes))
      return {plan_rule::sizes_differ, device, index, step.peer, twin};
    // The twins of the messages of one direction must come in the same order at the peer.
    int& last = last_seen[2 * step.peer + (sends ? 0 : 1)];
    if (last != nothing && theirs[static_cast<std::size_t>(last)].sequence >= other.sequence)
      return {plan_rule::fifo_differs, device, index, step.peer, twin};
    if (twin < last || step.sequence != other.sequence)
      return {plan_rule::fifo_differs, device, index, step.peer, twin};
    last = twin;
    bool const joins =
      i > 0 && steps[i - 1].what != operation::run && steps[i - 1].group == step.group;
    if (!joins)
      continue;
    int const before_maker = pass_index(work.extents, steps[i - 1].work);
    int const before_twin = steps[i - 1].what == operation::send ? ends.receiver[before_maker]
                                                                 : ends.sender[before_maker];
    if (theirs[static_cast<std::size_t>(before_twin)].group != other.group)
      return {plan_rule::bad_group, device, index, step.peer, twin};
  }
  return {};
}

//! The item behind the group that starts at `first`.
[[nodiscard]] constexpr int end_of_group(plan_view work, int device, int first) noexcept {
  auto const steps = work.program_of(device);
  std::size_t end = static_cast<std::size_t>(first) + 1;
  while (end < steps.size() && steps[end].what != operation::run &&
         steps[end].group == steps[static_cast<std::size_t>(first)].group)
    ++end;
  return static_cast<int>(end);
}

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
  int const end = end_of_group(work, device, first);
  if (end - first != end_of_group(work, peer, at_peer) - at_peer)
    return false;
  for (int i = first; i < end; ++i) {
    item const& step = mine[static_cast<std::size_t>(i)];
    if (step.what != head.what &&
        pass_index(work.extents, step.work) == pass_index(work.extents, head.work))
      return true;
  }
  return false;
}

} // namespace detail

//! @brief Executes a plan under rendezvous without any buffer: every device goes through its
//! program in order and
//!        stands at a group of messages until its peer stands at the same group.
//!
//! This is the strictest order that any executor may impose, so a plan that drains here drains on
//! every transport. The graph with the two ends of a message contracted to one node has a cycle
//! exactly when this stops early.
//!
//! @param at [P], receives the item that every device stands at; a device at the end of its program
//! stands behind it.
//! @param stack scratch, [P]. @param queued scratch, [P].
//! @return true when every device reached the end.
//! @complexity O(n) for n items, times the messages of a group.
[[nodiscard]] constexpr bool drain(plan_view work, int* at, int* stack, bool* queued) noexcept {
  int const devices = work.extents.devices;
  int depth = 0;
  for (int device = 0; device < devices; ++device) {
    at[device] = 0;
    stack[depth] = device;
    ++depth;
    queued[device] = true;
  }
  int done = 0;
  while (depth > 0) {
    --depth;
    int const device = stack[depth];
    queued[device] = false;
    auto const steps = work.program_of(device);
    int const count = static_cast<int>(steps.size());
    while (at[device] < count) {
      item const& step = steps[static_cast<std::size_t>(at[device])];
      if (step.what == operation::run) {
        ++at[device];
        continue;
      }
      if (!detail::groups_meet(work, device, at[device], step.peer, at[step.peer]))
        break;
      at[step.peer] = detail::end_of_group(work, step.peer, at[step.peer]);
      at[device] = detail::end_of_group(work, device, at[device]);
      if (!queued[step.peer]) {
        stack[depth] = step.peer;
        ++depth;
        queued[step.peer] = true;
      }
    }
  }
  for (int device = 0; device < devices; ++device)
    done += at[device] == static_cast<int>(work.program_of(device).size()) ? 1 : 0;
  return done == devices;
}

//! @brief Proves what execution needs of a plan, and returns the first thing that does not hold.
//!
//! Waits point back. Every message is sent once and received once, of the same size, and both ends
//! of an edge agree on its order. Groups are the same at both ends. The plan drains with no
//! buffering at all (see `drain`). No slot is written while it may still be read, and every pass
//! reads what was made for it, on the strength of the plan's waits and the order of streams alone.
//! Iterations may follow one another without a barrier between devices: each leaves no message
//! behind, so the next starts on empty edges.
//!
//! @complexity O(n L) time and memory for n items and L lanes per device.
//! @source docs/explanation/plan.md
[[nodiscard]] constexpr proof prove(plan_view work) {
  shape const& extents = work.extents;
  int const devices = extents.devices;
  proof verdict;
  for (int device = 0; device < devices && verdict; ++device)
    verdict = detail::check_form(work, device);
  int const indices = pass_indices(extents);
  detail::scratch<int> sender(indices, nothing);
  detail::scratch<int> receiver_of(indices, nothing);
  detail::message_ends const ends{sender.data, receiver_of.data};
  for (int device = 0; device < devices && verdict; ++device)
    verdict = detail::enter_messages(work, device, ends);
  detail::scratch<int> last_seen(2 * devices, nothing);
  for (int device = 0; device < devices && verdict; ++device) {
    for (int i = 0; i < 2 * devices; ++i)
      last_seen.data[i] = nothing;
    verdict = detail::check_messages(work, device, ends, last_seen.data);
  }
  if (!verdict)
    return verdict;
  detail::scratch<int> at(devices, 0);
  detail::scratch<int> stack(devices, 0);
  detail::scratch<bool> queued(devices, false);
  if (!drain(work, at.data, stack.data, queued.data)) {
    int device = 0;
    while (at.data[device] == static_cast<int>(work.program_of(device).size()))
      ++device;
    return {plan_rule::circular, device, at.data[device]};
  }
  for (int device = 0; device < devices && verdict; ++device) {
    int const count = static_cast<int>(work.program_of(device).size());
    int slots = 0;
    for (int of = 0; of < slot_classes; ++of)
      slots += work.layout(device, static_cast<slot_class>(of)).count;
    detail::scratch<int> clocks(count * (work.lanes[device] + 1), nothing);
    detail::scratch<int> tail(work.lanes[device] + 1, nothing);
    detail::scratch<detail::slot_history> histories(slots, {});
    verdict = detail::check_slots(work, device, clocks.data, tail.data, histories.data);
  }
  return verdict;
}

} // namespace pipelining::inline v0_1
