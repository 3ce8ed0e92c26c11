// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the global order to the program of a device.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/message_placement.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! @brief The items of one device, in storage of the caller.
struct program {
  item* items = nullptr; //!< in their order
  int count = 0;         //!< of items
};

//! The further slots of the items of a device: where they are, and how many the plan has before
//! them.
struct further_slots {
  sized_slot* of = nullptr;
  int first = 0;
  int count = 0;

  [[nodiscard]] constexpr sized_slot& at(slot_range const& range, int number) const noexcept {
    return of[range.first - first + number];
  }
  //! Appends a slot to a range. @pre nobody else has written since the range was begun
  constexpr void push(slot_range& to, slot const& used) noexcept {
    if (to.count == 0)
      to.first = first + count;
    of[count] = {used};
    ++count;
    ++to.count;
  }
};

//! @brief Makes a fresh item what an event gives to one of its devices: the pass, or an end of the
//! message.
//! @pre `device` is one of the event's.
constexpr void
make_item(timetable_view const& table, event const& what, int device, item& step) noexcept {
  if (what.about == subject::pass) {
    step.work = table.passes[what.entry];
  } else {
    step.work.stage = static_cast<std::uint16_t>(what.stage);
    step.work.microbatch = static_cast<std::uint16_t>(what.entry);
    step.about = what.about;
    step.rows = what.rows;
  }
  step.number = what.number;
  step.exchange = what.exchange;
  if (what.to == nothing)
    return;
  step.work.overlapped = false;
  step.what = what.device == device ? operation::send : operation::receive;
  step.peer = what.device == device ? what.to : what.device;
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
      continue; // copies follow once lanes are numbered
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

//! @brief Gives the copies of a device the lanes after those of its messages, one for each engine.
constexpr void assign_copy_lanes(program& work, flow const& declared, int lanes) noexcept {
  for (int i = 0; i < work.count && declared.engines > 1; ++i) {
    item& step = work.items[i];
    if (step.what != operation::run || step.about != subject::pass)
      continue;
    int const engine_row = declared.engine_row[static_cast<int>(declared[step.work.kind].on)];
    step.lane = engine_row > 0 ? lanes + engine_row - 1 : nothing;
  }
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
//! direction join one direction only. The message with all totals is made of those before it, so it
//! starts by itself. The messages of an exchange are one group.
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
    if (i > 0 && mine.items[i - 1].what != operation::run &&
        mine.items[i - 1].exchange == step.exchange) {
      item const& before = mine.items[i - 1];
      joined = step.exchange != nothing ||
               (before.peer == step.peer && before.lane == step.lane &&
                (duplex || before.what == step.what) && step.about != subject::spread &&
                position_at_peer[i - 1] + 1 == position_at_peer[i]);
    }
    step.group = joined ? mine.items[i - 1].group : groups;
    if (!joined)
      ++groups;
  }
}

} // namespace pipelining::inline v0_3::detail
