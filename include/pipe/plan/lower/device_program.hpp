// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the global order to the program of a device. Header for pipelining::write_program.

#include <pipe/core/dependencies.hpp>
#include <pipe/core/flow.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>

namespace pipelining::inline v0_2 {

//! @brief The items of one device, in storage of the caller.
struct program {
  item* items = nullptr; //!< in their order
  int count = 0;         //!< of items
};

namespace detail {

//! The further slots of the items of a device: where they are, and how many the plan has before
//! them.
struct further_slots {
  sized_slot* of = nullptr;
  int first = 0;
  int count = 0;

  [[nodiscard]] constexpr sized_slot& at(slot_range const& range, int number) const noexcept {
    return of[range.first - first + number];
  }
  constexpr void push(slot_range& to, slot const& used) noexcept {
    if (to.count == 0)
      to.first = first + count;
    of[count] = {used};
    ++count;
    ++to.count;
  }
};

} // namespace detail

//! @brief One entry of the global order of passes and messages: a pass that runs, or the message
//! that it makes, both named by the pass's entry in the timetable.
struct event {
  int entry = 0;    //!< of the timetable
  int device = 0;   //!< runs the pass, or sends the message
  int to = nothing; //!< receives the message; `nothing` for a pass
  subject about = subject::pass; //!< what it is about
  int stage = 0;        //!< beside passes: the stage, or that of the first row
  int rows = 0;         //!< of totals
  int number = 0;       //!< of the message, as that of an item
};

namespace detail {

//! The end of the time slot that starts at `begin` of the global order: passes of different devices
//! that end at the same time, so none of them waits for another. Without slots, one pass; the
//! halves of a composite pass stay together.
[[nodiscard]] constexpr int
end_of_slot(timetable_view table, int const* order, int count, int begin, bool slots) noexcept {
  double const slot_end = table.ends[order[begin]];
  int end = begin + 1;
  for (; end < count; ++end) {
    int const entry = order[end];
    bool const joins = slots && table.ends[entry] == slot_end && table.starts[entry] < slot_end &&
                       table.starts[order[begin]] < slot_end;
    if (!joins && !table.passes[entry].overlapped)
      break;
  }
  return end;
}

//! Puts a message among those of its slot, by pairs of devices.
constexpr void insert_message(event* first, event* last, event const& message) noexcept {
  std::int64_t const pair = communicator_per_pair::key(message.device, message.to);
  for (; last != first; --last) {
    event const& before = last[-1];
    if (communicator_per_pair::key(before.device, before.to) <= pair)
      break;
    *last = before;
  }
  *last = message;
}

} // namespace detail

//! @brief Places every message behind the pass that makes it: the one global order of passes and
//! messages.
//!
//! With time slots, the messages of passes that end together come behind all of these passes, by
//! pairs of devices: then the two directions of a pair stand side by side at both ends and can be
//! one group. Without, each message follows its pass at once. Works on arrays of the caller, and
//! can stop after any slot and go on later.
struct message_placement {
  timetable_view table; //!< what the order is of
  int const* order; //!< [count], a global order
  int count;        //!< of passes
  bool slots;       //!< with time slots, for groups of both directions
  event* events;    //!< [(1 + width of the graph) count]
  int next = 0;  //!< the pass to place next
  int written = 0; //!< of events
};

//! @param budget about how many passes to place at most.
//! @return the number of passes placed.
//! @complexity O(1) per pass where passes of one slot come in the order of their devices, as the
//! merge makes them.
constexpr int advance(message_placement& work, int budget) noexcept {
  timetable_view const& table = work.table;
  pipeline const over = table.over();
  int const width = graph_width(over);
  int const start = work.next;
  while (work.next < work.count && work.next - start < budget) {
    int const end = detail::end_of_slot(table, work.order, work.count, work.next, work.slots);
    event* const passes = work.events + work.written;
    int const size = end - work.next;
    for (int i = 0; i < size; ++i) {
      int const entry = work.order[work.next + i];
      passes[i] = {entry, device_of(over, table.passes[entry])};
    }
    event* const first = passes + size;
    event* last = first;
    for (int i = 0; i < size; ++i) {
      pass const& maker = table.passes[passes[i].entry];
      for (int number = 0; number < width; ++number) {
        int const to = receiver(over, maker, number);
        if (to == nothing)
          continue;
        event message{passes[i].entry, passes[i].device, to};
        message.number = number;
        if (work.slots)
          detail::insert_message(first, last, message);
        else
          *last = message;
        ++last;
      }
    }
    work.written += static_cast<int>(last - passes);
    work.next = end;
  }
  return work.next - start;
}

//! @brief The item that an event gives to one of its devices: the pass, or an end of the message.
//! @pre `device` is one of the event's.
[[nodiscard]] constexpr item item_of(timetable_view table, event const& what, int device) noexcept {
  item step;
  if (what.about == subject::pass) {
    step.work = table.passes[what.entry];
  } else {
    step.work.kind = pass_kind::backward;
    step.work.stage = static_cast<std::uint16_t>(what.stage);
    step.about = what.about;
    step.rows = what.rows;
  }
  step.number = what.number;
  if (what.to == nothing)
    return step;
  step.work.overlapped = false;
  step.what = what.device == device ? operation::send : operation::receive;
  step.peer = what.device == device ? what.to : what.device;
  return step;
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

//! @brief Gives the copies of a device the lanes behind those of its messages, one for each engine.
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
//! starts alone.
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
        mine.items[i - 1].lane == step.lane && (duplex || mine.items[i - 1].what == step.what) &&
        step.about != subject::spread)
      joined = position_at_peer[i - 1] + 1 == position_at_peer[i];
    step.group = joined ? mine.items[i - 1].group : groups;
    if (!joined)
      ++groups;
  }
}

} // namespace pipelining::inline v0_2
