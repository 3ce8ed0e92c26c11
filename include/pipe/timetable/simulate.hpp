// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The event simulation that gives passes their times. Header for pipelining::simulate.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/places.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {

namespace detail {

//! The times of some passes: those of every device from its entry `first` on. Those of entries
//! before it are in the part `before`, which lets the compiler time large timetables in several
//! constant evaluations, none of which copies what another has made.
struct timed_part {
  entry_number const* first;   //!< [P]
  double const* const* starts; //!< [P]
  double const* const* ends;   //!< [P]
  timed_part const* before = nullptr;

  //! The end of a pass that has been timed.
  [[nodiscard]] constexpr double end_of(int device, entry_number entry) const noexcept {
    timed_part const* part = this;
    while (entry < part->first[device])
      part = part->before;
    return part->ends[device][entry - part->first[device]];
  }
};

//! One part that is a whole timetable, on flat arrays of the caller.
//! @tparam Time double, or double const for times that are only looked at.
template <class Time>
class whole_part {
public:
  constexpr whole_part(Time* starts, Time* ends, int const* offsets, int devices) {
    auto const count = static_cast<std::size_t>(devices);
    first_ = new entry_number[count]{};
    starts_ = new Time*[count];
    ends_ = new Time*[count];
    for (int device = 0; device < devices; ++device) {
      starts_[device] = starts + offsets[device];
      ends_[device] = ends + offsets[device];
    }
  }
  constexpr ~whole_part() {
    delete[] first_;
    delete[] starts_;
    delete[] ends_;
  }
  whole_part(whole_part const&) = delete;
  whole_part& operator=(whole_part const&) = delete;

  [[nodiscard]] constexpr timed_part view() const noexcept { return {first_, starts_, ends_}; }
  [[nodiscard]] constexpr Time* const* starts() const noexcept { return starts_; }
  [[nodiscard]] constexpr Time* const* ends() const noexcept { return ends_; }

private:
  entry_number* first_;
  Time** starts_;
  Time** ends_;
};

//! The state of a simulation, on arrays of the caller.
struct simulation {
  place_map map;
  place_row const* rows;   //!< [P]
  timed_part part;         //!< what is being written
  double* const* starts;   //!< [P], that of `part`
  double* const* ends;     //!< [P], that of `part`
  entry_number* next;      //!< [P], the entry that each device comes to next
  double* free_from;       //!< [P], when each device has ended its last pass
  int* waits_for_device;   //!< [P], a device can go on when the row of this device
  entry_number* waits_for; //!< [P], has come past this entry; `no_entry` is never
  int chunks;
  double latency;
  entry_number room; //!< entries of each device in `part`
};

//! Runs a device until a pass has to wait or the part is full. Without inner calls but for the
//! cost, since compilers take microseconds for each.
template <cost_model Cost>
constexpr void run_device(simulation& state, Cost const& cost, int device) {
  place_row const row = state.rows[device];
  entry_number const base = state.part.first[device];
  entry_number const first = state.next[device];
  entry_number const last = row.count - base > state.room ? base + state.room : row.count;
  double* const starts = state.starts[device];
  double* const ends = state.ends[device];
  double free_from = state.free_from[device];
  double start = free_from;
  entry_number entry = first;
  state.waits_for_device[device] = device;
  state.waits_for[device] = no_entry;
  for (; entry < last; ++entry) {
    pass const what = row.passes[entry];
    bool const pair = what.overlapped && entry > first && !row.passes[entry - 1].overlapped;
    if (!pair) // else from the start of the other half on
      start = free_from;
    int const input = row.inputs[entry];
    if (input != nothing_before) {
      int const source = state.map.holders[input];
      entry_number const wanted =
        state.map.entries[input][what.microbatch * state.chunks + what.chunk] - 1;
      if (wanted >= state.next[source]) {
        state.waits_for_device[device] = source;
        state.waits_for[device] = wanted;
        break;
      }
      timed_part const* part = &state.part;
      while (wanted < part->first[source])
        part = part->before;
      double const ready = part->ends[source][wanted - part->first[source]] + state.latency;
      if (ready > start)
        start = ready;
    }
    if (pair) {
      free_from = start + pair_duration(cost, row.passes[entry - 1], what);
      starts[entry - 1 - base] = start;
      ends[entry - 1 - base] = free_from;
    } else {
      free_from = start + cost.duration(what);
    }
    starts[entry - base] = start;
    ends[entry - base] = free_from;
  }
  // The halves of a pair run together: the first half waits with the second.
  if (entry > first && entry < row.count && row.passes[entry].overlapped &&
      !row.passes[entry - 1].overlapped) {
    --entry;
    starts[entry - base] = ends[entry - base] = never;
    free_from = entry > first ? ends[entry - 1 - base] : state.free_from[device];
  }
  state.next[device] = entry;
  state.free_from[device] = free_from;
}

//! Runs passes as early as order, dependencies and messages allow, until nothing more can run or
//! the part is full.
//!
//! Goes down the devices and up again, as the passes of a unit do. A device that waits is asked
//! again only when the pass that it waits for has run.
template <cost_model Cost>
constexpr void advance(simulation& state, Cost const& cost) {
  int const devices = state.map.extents.devices;
  int idle = 0; // looks since one ran; down and up again sees all devices, wherever it begins
  for (int round = 0; idle < 2 * devices; ++round)
    for (int i = 0; i < devices; ++i) {
      int const device = round % 2 == 0 ? i : devices - 1 - i;
      ++idle;
      if (round > 0 && state.next[state.waits_for_device[device]] <= state.waits_for[device])
        continue;
      entry_number const before = state.next[device];
      run_device(state, cost, device);
      if (state.next[device] != before)
        idle = 0;
    }
}

//! An order in the arrays of a timetable, in which nothing has run.
[[nodiscard]] inline dynamic_timetable untimed(device_orders orders, double latency) {
  dynamic_timetable result{orders.extents,
                           latency,
                           std::move(orders.passes),
                           {},
                           {},
                           std::move(orders.offsets),
                           std::move(orders.custom_devices)};
  result.extents.custom_devices = nullptr;
  result.starts.assign(result.passes.size(), never);
  result.ends.assign(result.passes.size(), never);
  return result;
}

//! The rows of a timetable, entered.
[[nodiscard]] inline entered_rows enter(timetable_view table) {
  return {table.extents, table.passes, table.offsets};
}

//! Times a whole timetable.
template <cost_model Cost>
void run(dynamic_timetable& table, entered_rows const& rows, Cost const& cost) {
  auto const devices = static_cast<std::size_t>(table.extents.devices);
  whole_part<double> const part(
    table.starts.data(), table.ends.data(), table.offsets.data(), table.extents.devices);
  std::vector<entry_number> next(devices);
  std::vector<double> free_from(devices);
  std::vector<int> waits_for_device(devices);
  std::vector<entry_number> waits_for(devices);
  simulation state{rows.map(),
                   rows.rows(),
                   part.view(),
                   part.starts(),
                   part.ends(),
                   next.data(),
                   free_from.data(),
                   waits_for_device.data(),
                   waits_for.data(),
                   table.extents.chunks,
                   table.latency,
                   no_entry};
  advance(state, cost);
}

} // namespace detail

//! @brief Times an order: every pass starts as early as its device, its dependencies and the
//! messages allow.
//!
//! Passes of a circular order never start; they keep `never` as start and end, and `verify` names
//! the first of them.
//!
//! @param orders the passes of every device; every stage, microbatch and chunk must exist.
//! @complexity O(n) time and memory for n passes.
//! @source own derivation: longest paths of the dependency graph with the order of each device
//! added.
template <cost_model Cost>
[[nodiscard]] dynamic_timetable simulate(device_orders orders, Cost const& cost) {
  dynamic_timetable result = detail::untimed(std::move(orders), cost.latency());
  detail::run(result, detail::enter(result), cost);
  return result;
}

} // namespace pipelining::inline v0_1
