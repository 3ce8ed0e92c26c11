// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times an order of passes. Header for pipelining::simulate.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/forward_only.hpp>
#include <pipe/timetable/simulation.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/timetable_view.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace pipelining::inline v0_3 {

namespace detail {

//! What a cost model says of messages. @throws as `checked_links` does.
template <cost_model Cost>
[[nodiscard]] constexpr message_times messages_of(Cost const& cost, int devices) {
  std::span<double const> const links = checked_links(cost, devices);
  return {cost.latency(), groups_of(cost), links.empty() ? nullptr : links.data()};
}

//! An order in the arrays of a timetable with the times of messages of this cost, in which nothing
//! has run.
template <cost_model Cost>
[[nodiscard]] dynamic_timetable untimed(device_orders orders, Cost const& cost) {
  int const devices = orders.over.extents.devices;
  message_times const messages = messages_of(cost, devices);
  std::size_t const size = orders.passes.size();
  dynamic_timetable result{.over = std::move(orders.over),
                           .latency = messages.latency,
                           .passes = std::move(orders.passes),
                           .starts = std::vector<double>(size),
                           .ends = std::vector<double>(size),
                           .offsets = std::move(orders.offsets),
                           .groups = messages.groups};
  if (messages.links != nullptr)
    result.links.assign(messages.links, messages.links + devices * devices);
  return result;
}

//! The rows of a timetable, entered.
[[nodiscard]] inline entered_rows enter(timetable_view table) {
  return {table.over, table.passes, table.offsets};
}

//! Times a whole timetable.
//! @param starts, ends [offsets[rows]], to write
template <cost_model Cost>
constexpr void run(entered_rows const& rows,
                   int const* offsets,
                   double* starts,
                   double* ends,
                   message_times const& messages,
                   Cost const& cost) {
  int const row_total = row_count(rows.map().over);
  for (int entry = 0; entry < offsets[row_total]; ++entry)
    starts[entry] = ends[entry] = never;
  auto const count = static_cast<std::size_t>(row_total);
  owned<entry_number> const next(count);
  owned<entry_number> const waits_for(count);
  owned<int> const waits_for_row(count);
  owned<double> const free_from(count);
  for (int row = 0; row < row_total; ++row) {
    next.of[row] = waits_for.of[row] = 0;
    waits_for_row.of[row] = 0;
    free_from.of[row] = 0;
  }
  simulation state{rows.map(),
                   rows.rows(),
                   offsets,
                   starts,
                   ends,
                   next.of,
                   free_from.of,
                   waits_for_row.of,
                   waits_for.of,
                   messages};
  if (is_plain(rows.map().over) && messages.links == nullptr)
    advance<true>(state, cost);
  else
    advance<false>(state, cost);
}
template <cost_model Cost>
void run(dynamic_timetable& table, entered_rows const& rows, Cost const& cost) {
  run(rows,
      table.offsets.data(),
      table.starts.data(),
      table.ends.data(),
      {table.latency, table.groups, table.view().links},
      cost);
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
template <cost_model Cost>
[[nodiscard]] dynamic_timetable simulate(device_orders orders, Cost const& cost) {
  dynamic_timetable result = detail::untimed(std::move(orders), cost);
  detail::run(result, detail::enter(result), cost);
  return result;
}

} // namespace pipelining::inline v0_3
