// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Passes in a given order, each as early as it can be: in the program and in the compiler.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>

namespace pipelining::inline v0_3::detail {

//! The state of a simulation.
struct simulation {
  entered_rows const& map;
  timetable_view const& table;
  double* starts; //!< of the table, to write
  double* ends;
  owned<int> next{}; //!< [rows], the entry that each row comes to next
  //! [rows], a row can go on when this entry has run.
  owned<int> waits_for{};
};

//! When all that an entry waits for is there, or `never`: then its row is told what it waits for.
[[nodiscard]] constexpr double ready_at(simulation& state, int row, int entry) noexcept {
  pass const& what = state.table.passes[entry];
  dependency_list const needed(state.map.over, what);
  double latest = 0;
  for (int k = 0; k < needed.count; ++k) {
    dependency const from = needed[k];
    int const maker = state.map.maker_of(from);
    bool const other_half = what.overlapped && maker == entry - 1; // a pair does not feed itself
    if (maker == nothing_before || other_half || state.ends[maker] == never) {
      state.waits_for[row] = other_half ? nothing_before : maker;
      return never;
    }
    int const device = row % state.map.over.extents.devices;
    latest = std::max(
      latest, state.ends[maker] + state.map.transfer(state.table, from, device, what.stage));
  }
  return latest;
}

//! Runs a row until a pass has to wait. Calls others for few passes, and the cost: compilers take
//! microseconds for a call.
template <cost_model Cost>
constexpr void run_row(simulation& state, Cost const& cost, int row) {
  pass const* const passes = state.table.passes;
  int const* const inputs = state.map.inputs;
  pipeline_view const& over = state.map.over;
  int const first = state.next[row];
  int const end = state.table.offsets[row + 1];
  int const device = row % over.extents.devices;
  double* const starts = state.starts;
  double* const ends = state.ends;
  double free_from = first > state.table.offsets[row] ? ends[first - 1] : 0;
  double start = free_from;
  int entry = first;
  state.waits_for[row] = nothing_before;
  for (; entry < end; ++entry) {
    pass const what = passes[entry];
    bool const pair = what.overlapped && entry > first && !passes[entry - 1].overlapped;
    if (!pair) // else from the start of the other half on
      start = free_from;
    if (int const input = inputs[entry]; input >= 0) {
      int const maker = state.map.places.data[input][over.unit_of(what)];
      if (maker == nothing_before || ends[maker] == never) {
        state.waits_for[row] = maker;
        break;
      }
      start = std::max(
        start, ends[maker] + state.table.message_time(state.map.holders.data[input], device));
    } else if (input == several_before) {
      double const ready = ready_at(state, row, entry);
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
  // The halves of a pair run together: where the second has to wait, the first has not run.
  if (entry > first && entry < end && passes[entry].overlapped && !passes[entry - 1].overlapped) {
    --entry;
    starts[entry] = ends[entry] = never;
  }
  state.next[row] = entry;
}

//! Times a whole timetable: runs passes as early as order, dependencies and messages allow, until
//! nothing more can run.
//!
//! Goes down the rows and up again, as the passes of a unit do. A row that waits is asked again
//! only when the pass that it waits for has run.
//! @param starts, ends those of the table, to write
constexpr void run(entered_rows const& entered,
                   timetable_view const& table,
                   double* starts,
                   double* ends,
                   cost_model auto const& cost) {
  int const rows = table.rows();
  for (int entry = 0; entry < table.size(); ++entry)
    starts[entry] = ends[entry] = never;
  simulation state{entered, table, starts, ends};
  std::copy_n(table.offsets, rows, state.next.get(rows));
  state.waits_for.get(rows, nothing_before);
  int idle = 0; // looks since one ran; down and up again sees all rows, wherever it begins
  for (int round = 0; idle < 2 * rows; ++round)
    for (int i = 0; i < rows; ++i) {
      int const row = round % 2 == 0 ? i : rows - 1 - i;
      ++idle;
      int const wanted = state.waits_for[row];
      if (round > 0 && (wanted == nothing_before || ends[wanted] == never))
        continue;
      int const before = state.next[row];
      run_row(state, cost, row);
      if (state.next[row] != before)
        idle = 0;
    }
}

} // namespace pipelining::inline v0_3::detail
