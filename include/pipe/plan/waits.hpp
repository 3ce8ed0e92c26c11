// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The waits between the streams of a device, without those that others imply. Header for
//!        pipelining::assign_waits.

#include <pipe/plan/item.hpp>
#include <pipe/plan/program.hpp>
#include <pipe/plan/slots.hpp>

namespace pipelining::inline v0_1 {

//! @brief The stream of an item on its device: passes on stream 0, messages of lane l on stream l
//! + 1. Items of one
//!        stream complete in program order.
[[nodiscard]] constexpr int stream_of(item const& step) noexcept {
  return step.what == operation::run ? 0 : step.lane + 1;
}

namespace detail {

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
  //! Starts the clock of an item with what the item before it on its stream knew.
  constexpr void start(int index, int stream) noexcept {
    int const before = tail[stream];
    for (int other = 0; other < streams; ++other)
      of(index)[other] = before == nothing ? nothing : of(before)[other];
    of(index)[stream] = before;
    tail[stream] = index;
  }
  //! An item learns that another is complete, and all that the other knew.
  constexpr void learn(int index, int other, int other_stream) noexcept {
    for (int stream = 0; stream < streams; ++stream)
      if (of(other)[stream] > of(index)[stream])
        of(index)[stream] = of(other)[stream];
    if (other > of(index)[other_stream])
      of(index)[other_stream] = other;
  }
};

} // namespace detail

//! @brief Turns needs into waits: a need that the order of a stream or an earlier wait already
//! implies is dropped.
//!
//! @param needs, need_counts what assign_slots listed.
//! @param waits receives the waits of this device, all items together; `first_wait` counts from
//! `first`.
//! @param clocks scratch for (lanes + 1) * items numbers. @param tail scratch, [lanes + 1].
//! @return the number of waits written.
//! @complexity O(n L) for n items and L lanes.
//! @source own derivation: the transitive reduction of a partial order of L + 1 chains, by vector
//! clocks.
constexpr int assign_waits(program& work,
                           int lanes,
                           int const* needs,
                           int const* need_counts,
                           int* waits,
                           int first,
                           int* clocks,
                           int* tail) noexcept {
  detail::stream_clocks clock{clocks, tail, lanes + 1};
  clock.reset();
  int written = 0;
  for (int i = 0; i < work.count; ++i) {
    item& step = work.items[i];
    int const stream = stream_of(step);
    clock.start(i, stream);
    step.first_wait = first + written;
    // The latest needed item first: it is the most likely to imply the others.
    int below = work.count;
    for (int round = 0; round < need_counts[i]; ++round) {
      int latest = nothing;
      for (int k = 0; k < need_counts[i]; ++k) {
        int const candidate = needs[i * most_needs + k];
        if (candidate < below && candidate > latest)
          latest = candidate;
      }
      if (latest == nothing)
        break;
      below = latest;
      int const other = stream_of(work.items[latest]);
      if (other == stream || clock.of(i)[other] >= latest)
        continue;
      clock.learn(i, latest, other);
      waits[written] = latest;
      ++written;
    }
    step.wait_count = first + written - step.first_wait;
  }
  return written;
}

} // namespace pipelining::inline v0_1
