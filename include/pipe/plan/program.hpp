// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the global order to the program of a device. Header for pipelining::write_program.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/message.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>

namespace pipelining::inline v0_1 {

//! @brief The items of one device, in storage of the caller.
struct program {
  item* items = nullptr;
  int count = 0;
};

//! @brief The most items of one device: every pass it runs, a message for each, and one received
//! for each.
[[nodiscard]] constexpr int program_capacity(timetable_view table, int device) noexcept {
  return 3 * table.row_size(device);
}

namespace detail {

//! The items that one step of the global order gives to devices, handed to `give(device, item)`. A
//! step is one pass, or the two halves of a composite pass, whose messages come after both halves
//! since they end together.
template <class Give>
constexpr void write_step(timetable_view table, int const* entries, int count, Give give) {
  for (int k = 0; k < count; ++k) {
    pass const& work = table.passes[entries[k]];
    item step;
    step.work = work;
    give(device_of(table.extents, work), step);
  }
  for (int k = 0; k < count; ++k) {
    item step;
    step.work = table.passes[entries[k]];
    step.work.overlapped = false;
    int const from = device_of(table.extents, step.work);
    int const to = receiver(table.extents, step.work);
    if (to == nothing)
      continue;
    step.what = operation::send;
    step.peer = to;
    give(from, step);
    step.what = operation::receive;
    step.peer = from;
    give(to, step);
  }
}

} // namespace detail

//! @brief Writes what one device takes part in, in the global order: its passes, and each message
//! right after the pass
//!        that makes it, at both ends.
//!
//! @param order the global order of all entries, [n].
//! @param out storage for `program_capacity` items.
//! @complexity O(n) for the n passes of all devices.
constexpr void write_program(timetable_view table, int const* order, int device, program& out) {
  int const all = table.size();
  for (int i = 0; i < all;) {
    int end = i + 1;
    while (end < all && table.passes[order[end]].overlapped)
      ++end;
    detail::write_step(table, order + i, end - i, [&out, device](int owner, item const& step) {
      if (owner != device)
        return;
      out.items[out.count] = step;
      ++out.count;
    });
    i = end;
  }
}

//! @brief Numbers lanes and the messages of each direction on each lane.
//!
//! Lanes are numbered on the device in the order of their first message.
//!
//! @param keys scratch for the policy's key of every lane; at least as many as the device has
//! directed edges.
//! @return the number of lanes.
//! @complexity O(n L) for n items and L lanes.
template <communication_policy Policy>
constexpr int assign_lanes(program& work, int device, std::int64_t* keys) noexcept {
  int lanes = 0;
  for (int i = 0; i < work.count; ++i) {
    item& step = work.items[i];
    if (step.what == operation::run)
      continue;
    bool const sends = step.what == operation::send;
    std::int64_t const key =
      sends ? Policy::key(device, step.peer) : Policy::key(step.peer, device);
    int lane = 0;
    while (lane < lanes && keys[lane] != key)
      ++lane;
    keys[lane] = key;
    if (lane == lanes)
      ++lanes;
    step.lane = lane;
  }
  return lanes;
}

//! @brief Numbers the messages of every direction, which is the order that both ends must agree on.
//! @param counters scratch, [2 P].
//! @complexity O(n + P) for n items.
constexpr void number_messages(program& work, int devices, int* counters) noexcept {
  for (int i = 0; i < 2 * devices; ++i)
    counters[i] = 0;
  for (int i = 0; i < work.count; ++i) {
    item& step = work.items[i];
    if (step.what == operation::run)
      continue;
    int& counter = counters[2 * step.peer + (step.what == operation::send ? 0 : 1)];
    step.sequence = counter;
    ++counter;
  }
}

//! @brief Joins messages into groups that both ends post at once.
//!
//! Two messages between the same two devices share a group when nothing stands between them in the
//! program of either end: then the group is the same at both ends. Policies with one lane per
//! direction join one direction only.
//!
//! @param mine the program to group.
//! @param position_at_peer [items], where each message of `mine` stands in its peer's program.
//! @param duplex whether a group may hold both directions.
//! @complexity O(n) for n items.
constexpr void assign_groups(program& mine, int const* position_at_peer, bool duplex) noexcept {
  int groups = 0;
  for (int i = 0; i < mine.count; ++i) {
    item& step = mine.items[i];
    if (step.what == operation::run)
      continue;
    bool joined = false;
    if (i > 0 && mine.items[i - 1].what != operation::run && mine.items[i - 1].peer == step.peer &&
        (duplex || mine.items[i - 1].what == step.what))
      joined = position_at_peer[i - 1] + 1 == position_at_peer[i];
    step.group = joined ? mine.items[i - 1].group : groups;
    if (!joined)
      ++groups;
  }
}

} // namespace pipelining::inline v0_1
