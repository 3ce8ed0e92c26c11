// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How many slots of a pool a device holds as its passes start and end.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/timetable/timetable_view.hpp>

namespace pipelining::inline v0_3::detail {

//! How many slots of one pool a pass of each kind takes at its start and gives back at its end.
struct pool_effect {
  int taken[most_kinds];
  int freed[most_kinds];
};

[[nodiscard]] constexpr pool_effect effect_on(flow const& declared, slot_class pool) noexcept {
  pool_effect result{};
  for (int kind = 0; kind < declared.kind_count; ++kind)
    for (int i = 0; i < declared.kinds[kind].effect_count; ++i) {
      effect const& one = declared.kinds[kind].effects[i];
      datum const& of = declared.data[one.of];
      if (one.stage != of_stage::own || of.lives == residence::nowhere ||
          of.pool != static_cast<int>(pool) || of.instance == per::microbatch)
        continue;
      result.taken[kind] += one.what == does::makes ? 1 : 0;
      result.freed[kind] += one.what == does::frees ? 1 : 0;
    }
  return result;
}

//! A row of passes on the way through time. The halves of a composite pass start before either
//! ends.
struct row_walk {
  timetable_view const& table;
  int first; // of the passes that start together
  int last;  // behind them
  int end;
  bool running = false;

  constexpr row_walk(timetable_view const& of, int row)
      : table(of), first(of.offsets[row]), last(first), end(of.offsets[row + 1]) {
    find_last();
  }
  constexpr void find_last() noexcept {
    last = first < end ? first + 1 : end;
    while (last < end && table.passes[last].overlapped)
      ++last;
  }
  [[nodiscard]] constexpr bool done() const noexcept { return first == end; }
  [[nodiscard]] constexpr double time() const noexcept {
    return running ? table.ends[first] : table.starts[first];
  }
  //! True when what comes next here comes before what comes next there; at one time, what is given
  //! back comes first.
  [[nodiscard]] constexpr bool before(row_walk const& there) const noexcept {
    if (done() || there.done())
      return !done();
    return time() != there.time() ? time() < there.time() : running && !there.running;
  }
  //! Takes or gives back, and goes on. @return what is held then
  template <class Number, class Change>
  constexpr Number advance(Number held, Change const& change) noexcept {
    for (int i = first; i < last; ++i)
      held += static_cast<Number>(change(table.passes[i], running));
    if (running) {
      first = last;
      find_last();
    }
    running = !running;
    return held;
  }
};

//! The most that a device holds of something at once, by the times of its passes; on one engine, by
//! their order.
//! @param change `change(pass, ends)`: how much more is held when a pass starts, or ends
template <class Number, class Change>
[[nodiscard]] constexpr Number
peak_by(timetable_view const& table, int device, Change const& change) noexcept {
  int const devices = table.over.extents.devices;
  int const engines = table.over.declared->engines;
  row_walk walks[engine_count] = {{table, device},
                                  {table, engines > 1 ? device + devices : device},
                                  {table, engines > 2 ? device + 2 * devices : device},
                                  {table, engines > 3 ? device + 3 * devices : device}};
  Number held{};
  Number peak{};
  for (;;) {
    int earliest = 0;
    for (int row = 1; row < engines; ++row)
      if (walks[row].before(walks[earliest]))
        earliest = row;
    if (walks[earliest].done())
      return peak;
    held = walks[earliest].advance(held, change);
    if (held > peak)
      peak = held;
  }
}

//! The most that a device holds of a pool at once.
//! @param weight what the slot of a pass counts
template <class Number, class Weight>
[[nodiscard]] constexpr Number
peak_of(timetable_view const& table, int device, slot_class pool, Weight const& weight) noexcept {
  pool_effect const of = effect_on(*table.over.declared, pool);
  return peak_by<Number>(table, device, [&](pass const& what, bool ends) {
    auto const kind = static_cast<int>(what.kind);
    if (goes_forward_only(table.over, what.stage)) // works in it, and keeps nothing
      return (ends ? -of.taken[kind] : of.taken[kind]) * weight(what);
    return (ends ? -of.freed[kind] : of.taken[kind]) * weight(what);
  });
}

} // namespace pipelining::inline v0_3::detail
