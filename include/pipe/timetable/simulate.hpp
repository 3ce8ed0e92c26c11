// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times of passes in a given order. Header for pipelining::simulate.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulation.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! Leaves out the passes that stages do not have which only go forward.
inline void leave_out_unneeded(device_orders& orders) {
  int kept = 0;
  bool halved = false; // the pass before, of a composite pass, is left out
  for (int row = 0, i = 0; row < orders.over.view().row_count(); ++row) {
    int const end = orders.offsets[static_cast<std::size_t>(row) + 1];
    for (; i < end; ++i) {
      pass what = orders.passes[static_cast<std::size_t>(i)];
      bool const stays =
        what.stage >= orders.over.extents.stages() || is_wanted(orders.over, what.kind, what.stage);
      what.overlapped = what.overlapped && !halved;
      halved = !stays;
      if (stays)
        orders.passes[static_cast<std::size_t>(kept++)] = what;
    }
    orders.offsets[static_cast<std::size_t>(row) + 1] = kept;
  }
  while (orders.passes.size() > static_cast<std::size_t>(kept))
    orders.passes.pop_back();
}

//! Moves passes of such stages to the latest times that keep nobody waiting. They could run ahead
//! as far as there are microbatches, and what they make would fill memory. What they make arrives
//! before the pass in front of its reader begins, so that there is a pass to hide the message.
//! @pre passes that have no times have a circular order
//! @complexity O(1) for a chain, O(n log n) for n passes of such stages
inline void hold_back(dynamic_timetable& table) {
  pipeline_view const over = table.over;
  bool any = false;
  for (int stage = 0; over.edges != nullptr && stage < over.extents.stages(); ++stage)
    any = any || goes_forward_only(over, stage);
  if (!any)
    return;
  auto const at = [](int number) { return static_cast<std::size_t>(number); };
  int const devices = over.extents.devices;
  std::vector<int> const entries = entries_of(table);
  std::vector<int> held;
  for (int row = 0; row < devices; ++row)
    for (int i = table.offsets[at(row)]; i < table.offsets[at(row) + 1]; ++i) {
      pass const& what = table.passes[at(i)];
      bool const paired = what.overlapped || (i + 1 < table.offsets[at(row) + 1] &&
                                              table.passes[at(i) + 1].overlapped);
      if ((*over.declared)[what.kind].calls == stage_call::forward &&
          goes_forward_only(over, what.stage) && !paired && table.starts[at(i)] >= 0)
        held.push_back(i);
    }
  sort_numbers(held, [&](int one, int other) {
    return table.starts[at(one)] != table.starts[at(other)]
             ? table.starts[at(one)] > table.starts[at(other)]
             : one > other;
  });
  for (int const entry : held) {
    pass const& what = table.passes[at(entry)];
    int const device = device_of(over, what);
    int const readers = neighbours(over, what, 1);
    double latest = entry + 1 == table.offsets[at(device) + 1]
                      ? std::numeric_limits<double>::infinity()
                      : table.starts[at(entry) + 1];
    for (int k = 0; k < readers; ++k) {
      stage_neighbour const next = neighbour(over, what, 1, k);
      pass const reads = row_writer::make(what.kind, next.stage, what.microbatch, next.chunk);
      int const reader = entries[at(pass_index(over, reads))];
      if (reader < 0) {
        latest = 0; // nobody reads it: verify says so
        break;
      }
      int const to = device_of(over, reads);
      double const message = table.view().message_time(device, to);
      bool const ahead = to != device && reader > table.offsets[at(to)];
      double const start = table.starts[at(ahead ? reader - 1 : reader)];
      double arrives = start - message; // negative of a reader that has no time
      while (arrives + message > start) // has been rounded up
        arrives = std::nextafter(arrives, -std::numeric_limits<double>::infinity());
      latest = std::min(latest, arrives);
    }
    double const later = latest - table.ends[at(entry)];
    if (readers == 0 || later <= 0)
      continue;
    table.starts[at(entry)] += later;
    table.ends[at(entry)] = latest;
  }
}

//! An order in the arrays of a timetable with the times of messages of this cost, in which nothing
//! has run.
[[nodiscard]] dynamic_timetable untimed(device_orders orders, cost_model auto const& cost) {
  std::span<double const> const links = checked_links(cost, orders.over.extents.devices);
  std::size_t const size = orders.passes.size();
  return {.over = std::move(orders.over),
          .latency = cost.latency(),
          .passes = std::move(orders.passes),
          .starts = std::vector<double>(size),
          .ends = std::vector<double>(size),
          .offsets = std::move(orders.offsets),
          .groups = groups_of(cost),
          .links = {links.begin(), links.end()}};
}

//! The rows of a timetable, entered.
[[nodiscard]] inline entered_rows enter(timetable_view table) {
  return {table.over, table.passes, table.offsets};
}

//! Times a whole timetable.
void run(dynamic_timetable& table, entered_rows const& rows, cost_model auto const& cost) {
  run(rows, table, table.starts.data(), table.ends.data(), cost);
  hold_back(table);
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
[[nodiscard]] dynamic_timetable simulate(device_orders orders, cost_model auto const& cost) {
  dynamic_timetable result = detail::untimed(std::move(orders), cost);
  detail::run(result, detail::enter(result), cost);
  return result;
}

} // namespace pipelining::inline v0_3
