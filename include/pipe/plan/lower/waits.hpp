// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The waits between the streams of a device, without those that others imply.

#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/device_program.hpp>
#include <pipe/plan/lower/slots.hpp>

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! @brief The most waits per item, on average. On one engine an item needs at most two items of
//! other streams for each of its neighbours: only slots of messages go between streams.
[[nodiscard]] constexpr int most_waits(pipeline_view const& over) noexcept {
  return (over.declared->engines > 1 ? kind_of_pass::most_effects : 2) * graph_width(over);
}

//! Vector clocks: for each item and each stream the last item of that stream known to be complete
//! when it starts.
struct stream_clocks {
  int* last_known; // [items][streams]
  int* tail;       // [streams], the last item so far of each stream
  int streams;

  [[nodiscard]] constexpr int* of(int item_index) const noexcept {
    return last_known + item_index * streams;
  }
  constexpr void reset() noexcept {
    for (int stream = 0; stream < streams; ++stream)
      tail[stream] = nothing;
  }
  //! Starts the clock of a group with the knowledge of the item before it on its stream.
  constexpr void start(int first, int stream) noexcept {
    int const before = tail[stream];
    int* const known = of(first);
    int const* const knew = before == nothing ? nullptr : of(before);
    for (int other = 0; other < streams; ++other)
      known[other] = knew == nullptr ? nothing : knew[other];
    known[stream] = before;
  }
  //! Ends the waits of a group: its items start together, so each knows the same and none knows
  //! that another is complete.
  constexpr void share(int first, int end, int stream) noexcept {
    int const* const known = of(first);
    for (int* to = of(first + 1); to < of(end); to += streams)
      for (int other = 0; other < streams; ++other)
        to[other] = known[other];
    tail[stream] = end - 1;
  }
  //! An item learns that another is complete, and all that the other knew.
  constexpr void learn(int index, int other, int other_stream) noexcept {
    int* const mine = of(index);
    int const* const theirs = of(other);
    for (int stream = 0; stream < streams; ++stream)
      if (theirs[stream] > mine[stream])
        mine[stream] = theirs[stream];
    if (other > mine[other_stream])
      mine[other_stream] = other;
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
    if (other == stream || clock.of(first)[other] >= latest)
      continue;
    clock.learn(first, latest, other);
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
//! @param streams of the device.
//! @param clocks scratch for streams * items numbers. @param tail scratch, [streams].
//! @return the number of waits written.
//! @complexity O(n L) for n items and L streams.
//! @source own derivation: the transitive reduction of a partial order of L chains, by vector
//! clocks.
constexpr int assign_waits(program& work,
                           int streams,
                           int const* needs,
                           int most_needs,
                           int const* need_counts,
                           int* waits,
                           int first,
                           int* clocks,
                           int* tail) noexcept {
  stream_clocks clock{clocks, tail, streams};
  clock.reset();
  wait_list out{waits};
  for (int begin = 0; begin < work.count;) {
    int const end = end_of_group({work.items, static_cast<std::size_t>(work.count)}, begin);
    int const stream = work.items[begin].stream();
    clock.start(begin, stream);
    int const written = out.count;
    reduce_needs(work, clock, begin, end, needs, most_needs, need_counts, out);
    clock.share(begin, end, stream);
    work.items[begin].first_wait = first + written;
    work.items[begin].wait_count = out.count - written;
    for (int i = begin + 1; i < end; ++i)
      work.items[i].first_wait = first + out.count;
    begin = end;
  }
  return out.count;
}

} // namespace pipelining::inline v0_3::detail
