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
  entry_number room;       //!< entries of each device in `part`
};

//! Runs a device until a pass has to wait or the part is full.
template <cost_model Cost>
constexpr void run_device(simulation& state, Cost const& cost, int device) {
  place_row const row = state.rows[device];
  entry_number const base = state.part.first[device];
  entry_number const first = state.next[device];
  entry_number const last = row.count - base > state.room ? base + state.room : row.count;
  double const latency = cost.latency();
  int const chunks = state.map.extents.chunks;
  double* const starts = state.starts[device];
  double* const ends = state.ends[device];
  double free_from = state.free_from[device];
  entry_number entry = first;
  state.waits_for_device[device] = device;
  state.waits_for[device] = no_entry;
  for (; entry < last; ++entry) {
    pass const what = row.passes[entry];
    bool const pair = what.overlapped && entry > first && !row.passes[entry - 1].overlapped;
    double start = pair ? starts[entry - 1 - base] : free_from;
    int const input = row.inputs[entry];
    if (input != nothing_before) {
      int const source = state.map.holders[input];
      entry_number const wanted =
        state.map.entries[input][what.microbatch * chunks + what.chunk] - 1;
      if (wanted >= state.next[source]) {
        state.waits_for_device[device] = source;
        state.waits_for[device] = wanted;
        break;
      }
      double const ready = state.part.end_of(source, wanted) + latency;
      start = ready > start ? ready : start;
    }
    free_from =
      start + (pair ? pair_duration(cost, row.passes[entry - 1], what) : cost.duration(what));
    if (pair) {
      starts[entry - 1 - base] = start;
      ends[entry - 1 - base] = free_from;
    }
    starts[entry - base] = start;
    ends[entry - base] = free_from;
  }
  // The halves of a pair run together: the first half waits with the second.
  if (entry > first && entry < row.count && row.passes[entry].overlapped &&
      !row.passes[entry - 1].overlapped) {
    --entry;
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
  int idle = 0; // devices looked at since one ran
  for (int round = 0; idle < devices; ++round)
    for (int i = 0; i < devices && idle < devices; ++i) {
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
  auto const devices = static_cast<std::size_t>(orders.extents.devices);
  dynamic_timetable result{orders.extents,
                           cost.latency(),
                           std::move(orders.passes),
                           {},
                           {},
                           std::move(orders.offsets),
                           std::move(orders.custom_devices)};
  if (result.extents.where == placement::custom)
    result.extents.custom_devices = result.custom_devices.data();
  detail::entered_rows const entered(result.extents, result.passes.data(), result.offsets.data());
  result.starts.assign(result.passes.size(), never);
  result.ends.assign(result.passes.size(), never);
  detail::whole_part<double> const part(
    result.starts.data(), result.ends.data(), result.offsets.data(), result.extents.devices);
  std::vector<detail::entry_number> next(devices);
  std::vector<double> free_from(devices);
  std::vector<int> waits_for_device(devices);
  std::vector<detail::entry_number> waits_for(devices);
  detail::simulation state{entered.map(),
                           entered.rows(),
                           part.view(),
                           part.starts(),
                           part.ends(),
                           next.data(),
                           free_from.data(),
                           waits_for_device.data(),
                           waits_for.data(),
                           detail::no_entry};
  detail::advance(state, cost);
  result.extents.custom_devices = nullptr;
  return result;
}

} // namespace pipelining::inline v0_1
