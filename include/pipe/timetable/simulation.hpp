// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The event simulation that gives passes their times, on arrays of the caller, for the
//! program and the compiler.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/timetable_view.hpp>

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! The times between devices that a timetable says it has.
struct message_times {
  double latency;
  group_times groups{};
  double const* links = nullptr; //!< [P x P]; null: all take `latency`

  //! The time of a message between two devices.
  [[nodiscard]] constexpr double between(int devices, int from, int to) const noexcept {
    return message_time(links, devices, latency, from, to);
  }
};

//! The state of a simulation, on arrays of the caller.
struct simulation {
  place_map const& map;
  place_row const* rows;   //!< [rows]
  int const* offsets;      //!< [rows + 1], where the times of each row begin
  double* starts;          //!< [offsets[rows]]
  double* ends;            //!< [offsets[rows]]
  entry_number* next;      //!< [rows], the entry that each row comes to next
  double* free_from;       //!< [rows], when each row has ended its last pass
  int* waits_for_row;      //!< [rows], a row can go on when this row
  entry_number* waits_for; //!< [rows], has come past this entry; `no_entry` is never
  message_times messages;

  //! The end of a pass that has been timed.
  [[nodiscard]] constexpr double end_of(int row, entry_number entry) const noexcept {
    return ends[offsets[row] + static_cast<int>(entry)];
  }
};

//! When what an entry waits for on a line has ended, or `never`: then its row is told what it waits
//! for.
[[nodiscard]] constexpr double
ended_on(simulation& state, int row, entry_number entry, input_line line, int unit) noexcept {
  int const devices = state.map.over.extents.devices;
  place_code const at = state.map.places[line][unit];
  int const holder = state.map.holders[line];
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

//! When what an entry waits for on other engines of its device, and of several stages, is there, or
//! `never`.
[[nodiscard]] constexpr double
ready_beside(simulation& state, int row, entry_number entry, int unit) noexcept {
  place_row const& of = state.rows[row];
  double latest = 0;
  pipeline_view const& over = state.map.over;
  auto const most_waits = static_cast<entry_number>(over.declared->most_waits);
  for (entry_number k = 0; of.others != nullptr && k < most_waits && latest != never; ++k) {
    input_line const line = of.others[entry * most_waits + k];
    if (line == nothing_before)
      break;
    double const ended = ended_on(state, row, entry, line, unit);
    latest = ended == never || ended > latest ? ended : latest;
  }
  pass const& what = of.passes[entry];
  graph_inputs const inputs(over, what);
  entry_number const behind = what.overlapped ? entry - 1 : entry;
  for (int k = 0; k < inputs.count && latest != never; ++k) {
    graph_input const from = inputs.at(k, unit);
    double const ended = ended_on(state, row, behind, from.line, from.unit);
    int const devices = over.extents.devices;
    double const message =
      state.messages.between(devices, state.map.holders[from.line], row % devices);
    double const ready =
      ended == never ? never
      : from.own
        ? ended
        : ended + transfer_time(over, state.messages.groups, message, from.stage, what.stage);
    latest = ready == never || ready > latest ? ready : latest;
  }
  return latest;
}

//! Runs a row until a pass has to wait. Without inner calls but for the cost,
//! since compilers take microseconds for each.
//! @tparam Plain whether the pipeline is_plain, and all messages take the same time
template <bool Plain, cost_model Cost>
constexpr void run_row(simulation& state, Cost const& cost, int number) {
  place_row const row = state.rows[number];
  pass const* const passes = row.passes;
  int const chunks = state.map.over.extents.chunks;
  entry_number const first = state.next[number];
  double* const starts = state.starts + state.offsets[number];
  double* const ends = state.ends + state.offsets[number];
  double free_from = state.free_from[number];
  double start = free_from;
  entry_number entry = first;
  state.waits_for_row[number] = number;
  state.waits_for[number] = no_entry;
  for (; entry < row.count; ++entry) {
    pass const what = passes[entry];
    bool const pair = what.overlapped && entry > first && !passes[entry - 1].overlapped;
    if (!pair) // else from the start of the other half on
      start = free_from;
    int const input = row.inputs[entry];
    int unit = what.microbatch * chunks + what.chunk;
    if constexpr (!Plain)
      unit = unit_of(state.map.over, what);
    if (input != nothing_before) {
      place_code const at = state.map.places[input][unit];
      int const holder = state.map.holders[input];
      int source = holder;
      entry_number wanted = at - 1;
      if constexpr (!Plain) {
        source += static_cast<int>(at >> place_bits) * state.map.over.extents.devices;
        wanted = (at & entry_mask) - 1;
      }
      if (wanted >= state.next[source]) {
        state.waits_for_row[number] = source;
        state.waits_for[number] = wanted;
        break;
      }
      double ready = state.ends[state.offsets[source] + static_cast<int>(wanted)];
      if constexpr (Plain) // what stands before it in its own row is no input
        ready += state.messages.latency;
      else
        ready += state.messages.between(
          state.map.over.extents.devices, holder, number % state.map.over.extents.devices);
      if (ready > start)
        start = ready;
    }
    if constexpr (!Plain) {
      double const ready = ready_beside(state, number, entry, unit);
      if (ready == never)
        break;
      if (ready > start)
        start = ready;
    }
    if (pair) {
      free_from = start + pair_duration(cost, *state.map.over.declared, passes[entry - 1], what);
      starts[entry - 1] = start;
      ends[entry - 1] = free_from;
    } else {
      free_from = start + time_of(cost, *state.map.over.declared, what);
    }
    starts[entry] = start;
    ends[entry] = free_from;
  }
  // The halves of a pair run together: the first half waits with the second.
  if (entry > first && entry < row.count && row.passes[entry].overlapped &&
      !row.passes[entry - 1].overlapped) {
    --entry;
    starts[entry] = ends[entry] = never;
    free_from = entry > first ? ends[entry - 1] : state.free_from[number];
  }
  state.next[number] = entry;
  state.free_from[number] = free_from;
}

//! Runs passes as early as order, dependencies and messages allow, until nothing more can run.
//!
//! Goes down the rows and up again, as the passes of a unit do. A row that waits is asked again
//! only when the pass that it waits for has run.
template <bool Plain, cost_model Cost>
constexpr void advance(simulation& state, Cost const& cost) {
  int const rows = row_count(state.map.over);
  int idle = 0; // looks since one ran; down and up again sees all rows, wherever it begins
  for (int round = 0; idle < 2 * rows; ++round)
    for (int i = 0; i < rows; ++i) {
      int const row = round % 2 == 0 ? i : rows - 1 - i;
      ++idle;
      if (round > 0 && state.next[state.waits_for_row[row]] <= state.waits_for[row])
        continue;
      entry_number const before = state.next[row];
      run_row<Plain>(state, cost, row);
      if (state.next[row] != before)
        idle = 0;
    }
}

} // namespace pipelining::inline v0_3::detail
