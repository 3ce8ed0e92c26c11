// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief From the global order of passes to one of passes and messages.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/exchange.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! @brief One entry of the global order of passes and messages: a pass that runs, or the message
//! that it makes, both named by the pass's entry in the timetable.
struct event {
  int entry = 0;                 //!< of the timetable; else a microbatch of the copy
  int device = 0;                //!< runs the pass, or sends the message
  int to = nothing;              //!< receives the message; `nothing` for a pass
  subject about = subject::pass; //!< what it is about
  std::uint16_t slots = 0;       //!< that each of its items uses, once counted
  int stage = 0;                 //!< of other steps: the stage, or that of the first row
  int rows = 0;                  //!< of totals
  int number = 0;                //!< of the message, as that of an item
  int exchange = nothing;        //!< that the message is part of, as that of an item
};

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

//! Puts a message, which stands after the messages of its slot, among them, by pairs of devices.
constexpr void insert_message(event* first, event* last) noexcept {
  std::int64_t const pair = communicators::per_pair::key(last->device, last->to);
  auto const belongs = [first, pair](event const* at) {
    return at == first || communicators::per_pair::key(at[-1].device, at[-1].to) <= pair;
  };
  if (belongs(last))
    return;
  event const message = *last;
  for (; !belongs(last); --last)
    *last = last[-1];
  *last = message;
}

//! @brief Places every message after the pass that makes it: the one global order of passes and
//! messages.
//!
//! With time slots, the messages of passes that end together come after all of these passes, by
//! pairs of devices: then the two directions of a pair stand side by side at both ends and can be
//! one group. Without, each message follows its pass at once. Where exchanges are joined, all
//! messages of one come after the last of the passes that make them. Works on arrays of the
//! caller.
struct message_placement {
  timetable_view table; //!< what the order is of
  int const* order;     //!< [count], a global order
  int count;            //!< of passes
  bool slots;           //!< with time slots, for groups of both directions
  event* events;        //!< [(1 + width of the graph) count]
  int next = 0;         //!< the pass to place next
  int written = 0;      //!< of events
  //! [pass_indices], `nothing`: the entries of passes that are placed; null where exchanges are not
  //! joined.
  int* entries = nullptr;
};

//! Hands the messages of a pass that are part of one exchange, or of none, to `put`.
//! @param wanted the exchange, or `nothing`.
template <class Put>
constexpr void
place_messages_of(message_placement const& work, int entry, int wanted, Put put) noexcept {
  pipeline_view const over = work.table.over;
  pass const& maker = work.table.passes[entry];
  int const width = graph_width(over);
  for (int number = 0; number < width; ++number) {
    int const to = receiver(over, maker, number);
    if (to == nothing)
      continue;
    int const exchange = work.entries == nullptr ? nothing : exchange_of(over, maker, number);
    if (exchange != wanted)
      continue;
    put(event{.entry = entry,
              .device = device_of(over, maker),
              .to = to,
              .number = number,
              .exchange = exchange});
  }
}

//! Notes that a pass is placed. Where it is the last that makes something for an exchange, hands
//! all messages of the exchange to `put`.
template <class Put>
constexpr void place_exchanges(message_placement const& work, int entry, Put put) noexcept {
  pipeline_view const over = work.table.over;
  pass const& maker = work.table.passes[entry];
  work.entries[pass_index(over, maker)] = entry;
  bool const grouped = over.in_group(maker.stage);
  int const members = grouped ? neighbours(over, maker.stage, group_step) : 1;
  auto const entry_of = [&](int member) {
    pass other = maker;
    if (grouped)
      other.stage =
        static_cast<std::uint16_t>(neighbour(over, maker.stage, group_step, member).stage);
    return work.entries[pass_index(over, other)];
  };
  for (int member = 0; member < members; ++member)
    if (entry_of(member) == nothing)
      return;
  int before = nothing;
  for (int number = 0; number < readers(over, maker); ++number) {
    int const exchange = exchange_of(over, maker, number);
    if (exchange == nothing || exchange == before)
      continue;
    before = exchange;
    for (int member = 0; member < members; ++member)
      place_messages_of(work, entry_of(member), exchange, put);
  }
}

//! Places all passes and their messages.
//! @complexity O(1) per pass where passes of one slot come in the order of their devices, as the
//! merge makes them.
constexpr void place_all(message_placement& work) noexcept {
  timetable_view const& table = work.table;
  pipeline_view const over = table.over;
  while (work.next < work.count) {
    int const end = end_of_slot(table, work.order, work.count, work.next, work.slots);
    event* const passes = work.events + work.written;
    int const size = end - work.next;
    for (int i = 0; i < size; ++i) {
      int const entry = work.order[work.next + i];
      passes[i] = {entry, device_of(over, table.passes[entry])};
    }
    event* const first = passes + size;
    event* last = first;
    for (int i = 0; i < size; ++i)
      place_messages_of(work, passes[i].entry, nothing, [&](event const& message) {
        *last = message;
        if (work.slots)
          insert_message(first, last);
        ++last;
      });
    for (int i = 0; i < size && work.entries != nullptr; ++i)
      place_exchanges(work, passes[i].entry, [&](event const& message) {
        *last = message;
        ++last;
      });
    work.written += static_cast<int>(last - passes);
    work.next = end;
  }
}

} // namespace pipelining::inline v0_3::detail
