// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The waits between the streams of a device, without those that others imply.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/lower/slots.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! @brief The most waits per item, on average. On one engine an item needs at most two items of
//! other streams for each of its neighbours: only slots of messages go between streams.
[[nodiscard]] constexpr int most_waits(pipeline_view const& over) noexcept {
  return (over.declared->engines > 1 ? kind_of_pass::most_effects : 2) * graph_width(over);
}

//! Vector clocks: for each item and each stream the last item of that stream known to be complete
//! when it starts. A stream learns of others only where it waits, so many items share a row.
struct stream_clocks {
  int* rows;   // [items + streams][streams]
  int* row_of; // [items]
  int* now;    // [streams], the row of each stream
  int streams;
  int count = 0; // rows in use

  constexpr void reset() noexcept {
    for (count = 0; count < streams; ++count) {
      now[count] = count;
      for (int other = 0; other < streams; ++other)
        rows[count * streams + other] = nothing;
    }
  }
  //! The knowledge of a stream: the last complete item of each.
  [[nodiscard]] constexpr int const* known(int stream) const noexcept {
    return rows + now[stream] * streams;
  }
  //! A stream goes on to its next group: what stands before it there is complete.
  //! @param first of the group
  constexpr void begin(int stream, int first) noexcept {
    rows[now[stream] * streams + stream] = first - 1;
  }
  //! A stream learns that an item of another is complete, and all that the other knew then.
  //! @param again whether the group has learned before
  constexpr void learn(int stream, int other, int other_stream, bool again) noexcept {
    int const* const theirs = rows + row_of[other] * streams;
    int const* const before = known(stream);
    if (!again)
      now[stream] = count++;
    int* const mine = rows + now[stream] * streams;
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

//! Scratch for the clocks of a device. The next device uses it again.
struct clock_space {
  reused_scratch<int> rows;
  reused_scratch<int> row_of;
  reused_scratch<int> now;

  [[nodiscard]] constexpr stream_clocks get(int items, int streams) {
    return {rows.get((items + streams) * streams), row_of.get(items), now.get(streams), streams};
  }
};

//! Where the waits of a device are written.
struct wait_list {
  int* waits;
  int count = 0;
};

//! The waits of one group, the latest needed item first: it is the most likely to imply the others,
//! and none of them can imply it.
constexpr void reduce_needs(program const& work,
                            stream_clocks& clock,
                            int first,
                            int end,
                            int const* needs,
                            int most_needs,
                            int const* need_counts,
                            wait_list& out) noexcept {
  int needed = 0;
  for (int i = first; i < end; ++i)
    needed += need_counts[i];
  int const stream = work.items[first].stream();
  int const written = out.count;
  // Each turn is done with one need at least; often there are none, or one.
  for (int below = first; needed > 0; --needed) {
    int latest = nothing;
    for (int i = first; i < end; ++i)
      for (int k = 0; k < need_counts[i]; ++k) {
        int const candidate = needs[i * most_needs + k];
        if (candidate < below && candidate > latest)
          latest = candidate;
      }
    if (latest == nothing)
      return;
    below = latest;
    int const other = work.items[latest].stream();
    if (other == stream || clock.known(stream)[other] >= latest)
      continue;
    clock.learn(stream, latest, other, out.count > written);
    out.waits[out.count] = latest;
    ++out.count;
  }
}

//! @brief Turns needs into waits: a need that the order of a stream or another wait already implies
//! is dropped. None of the others can be dropped.
//!
//! The waits of a group stand at its first item, since all of its items start together.
//!
//! @param needs, most_needs, need_counts what assign_slots listed, [items][most_needs].
//! @param waits receives the waits of this device, all items together; `first_wait` counts from
//! `first`.
//! @param clock scratch
//! @return the number of waits written.
//! @complexity O(n L) for n items and L streams.
//! @source own derivation: the transitive reduction of a partial order of L chains, by vector
//! clocks.
constexpr int assign_waits(program& work,
                           stream_clocks clock,
                           int const* needs,
                           int most_needs,
                           int const* need_counts,
                           int* waits,
                           int first) noexcept {
  clock.reset();
  wait_list out{waits};
  for (int begin = 0; begin < work.count;) {
    int const end = end_of_group({work.items, static_cast<std::size_t>(work.count)}, begin);
    int const stream = work.items[begin].stream();
    int const written = out.count;
    clock.begin(stream, begin);
    reduce_needs(work, clock, begin, end, needs, most_needs, need_counts, out);
    clock.end(begin, end, stream);
    work.items[begin].first_wait = first + written;
    work.items[begin].wait_count = static_cast<std::uint16_t>(out.count - written);
    for (int i = begin + 1; i < end; ++i)
      work.items[i].first_wait = first + out.count;
    begin = end;
  }
  return out.count;
}

} // namespace pipelining::inline v0_3::detail
