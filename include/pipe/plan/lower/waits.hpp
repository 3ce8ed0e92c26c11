// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The waits between the streams of a device, without those that others imply.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Vector clocks: for each item and each stream the last item of that stream known to be complete
//! when it starts. A stream learns of others only where it waits, so many items share a row.
struct stream_clocks {
  owned<int> rows;   // [items + streams][streams]
  owned<int> row_of; // [items], where in rows
  owned<int> now;    // [streams], where in rows that of each stream is
  int streams = 0;
  int used = 0; // of rows

  //! Begins a device, of which nothing is known.
  constexpr void reset(int items, int stream_count) {
    streams = stream_count;
    used = streams * streams;
    rows.get((items + streams) * streams);
    row_of.get(items);
    now.get(streams);
    for (int at = 0; at < used; ++at)
      rows[at] = nothing;
    for (int stream = 0; stream < streams; ++stream)
      now[stream] = stream * streams;
  }
  //! The knowledge of a stream: the last complete item of each.
  [[nodiscard]] constexpr int const* known(int stream) const noexcept { return rows + now[stream]; }
  //! A stream goes on to its next group: what stands before it there is complete.
  //! @param first of the group
  constexpr void begin(int stream, int first) noexcept { rows[now[stream] + stream] = first - 1; }
  //! A stream learns that an item of another is complete, and all that the other knew then.
  //! @param again whether the group has learned before
  constexpr void learn(int stream, int other, int other_stream, bool again) noexcept {
    int const* const theirs = rows + row_of[other];
    int const* const before = known(stream);
    if (!again) {
      now[stream] = used;
      used += streams;
    }
    int* const mine = rows + now[stream];
    // Of its own stream the row of the other may say more than the other knew.
    int const latest = other > before[other_stream] ? other : before[other_stream];
    for (int each = 0; each < streams; ++each)
      mine[each] = theirs[each] > before[each] ? theirs[each] : before[each];
    mine[other_stream] = latest;
  }
  //! Ends a group, whose items know the same, and none that another of it is complete.
  constexpr void end(int first, int end, int stream) noexcept {
    for (int i = first; i < end; ++i)
      row_of[i] = now[stream];
  }
};

//! @brief The waits of a device, found as its groups go by: what their items need, without what the
//! order of a stream or another wait implies. None of the others can be dropped.
//!
//! The waits of a group stand at its first item, since all of its items start together.
//!
//! @complexity O(L) per item for L streams.
//! @source own derivation: the transitive reduction of a partial order of L chains, by vector
//! clocks.
struct wait_list {
  int most_needs; // of an item
  bool ahead;     // items after the group may need some: each has a row of needs, else there is one
  stream_clocks clock{};
  owned<int> needs{};       // [rows][most_needs]: of a group at its first item, the latest first
  owned<int> need_counts{}; // [rows], 0
  std::vector<int>* waits = nullptr; // of this device after those of the devices before
  item* items = nullptr;             // of the device
  int group = 0;                     // where the one that goes by begins
  int after = 0;                     // where it ends
  int group_row = 0;                 // of its needs

  constexpr wait_list(pipeline_view const& over, int needed)
      : most_needs(needed), ahead(over.declared->engines > 1) {}

  //! Begins a device.
  //! @param all waits of the devices before, receives those of the device
  constexpr void reset(item* of, int item_count, int streams, std::vector<int>& all) {
    int const rows = ahead ? item_count : 1;
    clock.reset(item_count, streams);
    needs.get(rows * most_needs);
    need_counts.get(rows, 0);
    waits = &all;
    items = of;
  }
  constexpr void begin(int first_item, int end) noexcept {
    group = first_item;
    after = end;
    group_row = ahead ? group : 0;
    clock.begin(items[group].stream(), group);
  }
  //! Item `i`, of this group or after it, must not start before `earlier` is complete.
  constexpr void need(int i, int earlier) noexcept {
    if (earlier == nothing)
      return;
    int const stream = items[i].stream();
    int const other = items[earlier].stream();
    if (other == stream || clock.known(stream)[other] >= earlier)
      return;
    int const row = i < after ? group_row : i;
    int* const listed = needs + row * most_needs;
    int at = need_counts[row]++;
    for (; at > 0 && listed[at - 1] < earlier; --at)
      listed[at] = listed[at - 1];
    listed[at] = earlier;
  }
  //! Writes the waits of the group. The latest needed item is the most likely to imply the others,
  //! and none of them can imply it.
  constexpr void end() noexcept {
    int const stream = items[group].stream();
    std::size_t const written = waits->size();
    int const* const listed = needs + group_row * most_needs;
    for (int k = 0; k < need_counts[group_row]; ++k) {
      int const at = listed[k];
      int const other = items[at].stream();
      if (at >= group || clock.known(stream)[other] >= at)
        continue;
      clock.learn(stream, at, other, waits->size() > written);
      waits->push_back(at);
    }
    need_counts[group_row] = 0;
    clock.end(group, after, stream);
    items[group].first_wait = static_cast<int>(written);
    items[group].wait_count = static_cast<std::uint16_t>(waits->size() - written);
    for (int i = group + 1; i < after; ++i)
      items[i].first_wait = static_cast<int>(waits->size());
  }
};

} // namespace pipelining::inline v0_3::detail
