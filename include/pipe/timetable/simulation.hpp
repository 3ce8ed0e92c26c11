// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Passes in a given order, each as early as it can be: in the program and in the compiler.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <span>

namespace pipelining::inline v0_3::detail {

//! The state of a simulation.
struct simulation {
  entered_rows const& map;
  int const* offsets; //!< [rows + 1], where the times of each row begin
  double* starts;     //!< [offsets[rows]]
  double* ends;       //!< [offsets[rows]]
  message_times messages;
  owned<entry_number> next;      //!< [rows], the entry that each row comes to next
  owned<double> free_from;       //!< [rows], when each row has ended its last pass
  owned<int> waits_for_row;      //!< [rows], a row can go on when this row
  owned<entry_number> waits_for; //!< [rows], has come past this entry; `no_entry` is never

  constexpr simulation(entered_rows const& entered,
                       int const* begins,
                       double* from,
                       double* to,
                       message_times const& times)
      : map(entered), offsets(begins), starts(from), ends(to), messages(times),
        next(map.over.row_count(), 0), free_from(map.over.row_count(), 0),
        waits_for_row(map.over.row_count(), 0), waits_for(map.over.row_count(), 0) {}

  //! The end of a pass that has been timed.
  [[nodiscard]] constexpr double end_of(int row, entry_number entry) const noexcept {
    return ends[offsets[row] + static_cast<int>(entry)];
  }
};

//! When what an entry waits for on a line has ended, or `never`: then its row is told what it waits
//! for.
[[nodiscard]] constexpr double
ended_on(simulation& state, int row, entry_number entry, int line, int unit) noexcept {
  int const devices = state.map.over.extents.devices;
  place_code const at = state.map.places.data[line][unit];
  int const holder = state.map.holders.data[line];
  int const source = static_cast<int>(at >> place_bits) * devices + holder;
  entry_number const wanted = (at & entry_mask) - 1;
  if (at != 0 && source == row && wanted < entry)
    return state.end_of(source, wanted); // the row has come past it
  if (at == 0 || wanted >= state.next[source]) {
    state.waits_for_row[row] = source;
    state.waits_for[row] = at == 0 ? no_entry : wanted;
    return never;
  }
  return state.end_of(source, wanted);
}

//! When all that an entry waits for is there, or `never`.
[[nodiscard]] constexpr double ready_at(simulation& state, int row, entry_number entry) noexcept {
  pass const& what = state.map.rows[row].passes[entry];
  entry_number const behind = what.overlapped ? entry - 1 : entry;
  int const device = row % state.map.over.extents.devices;
  dependency_list const needed(state.map.over, what);
  double latest = 0;
  for (int k = 0; k < needed.count; ++k) {
    dependency const from = needed[k];
    double const ended = ended_on(state, row, behind, from.line, from.unit);
    if (ended == never)
      return never;
    latest = std::max(latest, ended + state.map.transfer(state.messages, from, device, what.stage));
  }
  return latest;
}

//! The halves of a pair run together: where the second has to wait, takes back the times of the
//! first, which ran as entry `next - 1`.
//! @return the entry that the row goes on with
constexpr entry_number take_back_half(simulation& state, int number, entry_number next) noexcept {
  pass const* const passes = state.map.rows[number].passes;
  if (next == state.map.rows[number].count || !passes[next].overlapped ||
      passes[next - 1].overlapped)
    return next;
  int const half = state.offsets[number] + static_cast<int>(next) - 1;
  state.starts[half] = state.ends[half] = never;
  return next - 1;
}

//! Runs a row until a pass has to wait. Calls others for few passes, and the cost: compilers take
//! microseconds for a call.
template <cost_model Cost>
constexpr void run_row(simulation& state, Cost const& cost, int number) {
  place_row const row = state.map.rows[number];
  pass const* const passes = row.passes;
  pipeline_view const& over = state.map.over;
  entry_number const first = state.next[number];
  double* const starts = state.starts + state.offsets[number];
  double* const ends = state.ends + state.offsets[number];
  double free_from = state.free_from[number];
  double start = free_from;
  entry_number entry = first;
  int const device = number % over.extents.devices;
  state.waits_for_row[number] = number;
  state.waits_for[number] = no_entry;
  for (; entry < row.count; ++entry) {
    pass const what = passes[entry];
    bool const pair = what.overlapped && entry > first && !passes[entry - 1].overlapped;
    if (!pair) // else from the start of the other half on
      start = free_from;
    if (input_line const input = row.inputs[entry]; input >= 0) {
      place_code const at = state.map.places.data[input][over.unit_of(what)];
      int const source =
        static_cast<int>(at >> place_bits) * over.extents.devices + state.map.holders.data[input];
      entry_number const wanted = (at & entry_mask) - 1; // `no_entry` where nobody makes it
      if (wanted >= state.next[source]) {
        state.waits_for_row[number] = source;
        state.waits_for[number] = wanted;
        break;
      }
      start = std::max(
        start, state.end_of(source, wanted) + state.map.across(state.messages, input, device));
    } else if (input == several_before) {
      double const ready = ready_at(state, number, entry);
      if (ready == never)
        break;
      start = std::max(start, ready);
    }
    if (pair) {
      free_from = start + pair_duration(cost, *over.declared, passes[entry - 1], what);
      starts[entry - 1] = start;
      ends[entry - 1] = free_from;
    } else {
      free_from = start + time_of(cost, *over.declared, what);
    }
    starts[entry] = start;
    ends[entry] = free_from;
  }
  entry = entry > first ? take_back_half(state, number, entry) : entry;
  state.next[number] = entry;
  state.free_from[number] = entry > first ? ends[entry - 1] : state.free_from[number];
}

//! Runs passes as early as order, dependencies and messages allow, until nothing more can run.
//!
//! Goes down the rows and up again, as the passes of a unit do. A row that waits is asked again
//! only when the pass that it waits for has run.
template <cost_model Cost>
constexpr void advance(simulation& state, Cost const& cost) {
  int const rows = state.map.over.row_count();
  int idle = 0; // looks since one ran; down and up again sees all rows, wherever it begins
  for (int round = 0; idle < 2 * rows; ++round)
    for (int i = 0; i < rows; ++i) {
      int const row = round % 2 == 0 ? i : rows - 1 - i;
      ++idle;
      if (round > 0 && state.next[state.waits_for_row[row]] <= state.waits_for[row])
        continue;
      entry_number const before = state.next[row];
      run_row(state, cost, row);
      if (state.next[row] != before)
        idle = 0;
    }
}

//! The times of messages under a cost model. @throws as `checked_links` does.
[[nodiscard]] constexpr message_times messages_of(cost_model auto const& cost, int devices) {
  std::span<double const> const links = checked_links(cost, devices);
  return {cost.latency(), groups_of(cost), links.empty() ? nullptr : links.data()};
}

//! Times a whole timetable.
//! @param starts, ends [offsets[rows]], to write
constexpr void run(entered_rows const& rows,
                   int const* offsets,
                   double* starts,
                   double* ends,
                   message_times const& messages,
                   cost_model auto const& cost) {
  for (int entry = 0; entry < offsets[rows.over.row_count()]; ++entry)
    starts[entry] = ends[entry] = never;
  simulation state(rows, offsets, starts, ends, messages);
  advance(state, cost);
}

} // namespace pipelining::inline v0_3::detail
