// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times an order of passes. Header for pipelining::simulate.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/simulation.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/timetable_view.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! An order in the arrays of a timetable with the times of messages of this cost, in which nothing
//! has run.
template <cost_model Cost>
[[nodiscard]] dynamic_timetable untimed(device_orders orders, Cost const& cost) {
  std::span<double const> const links = checked_links(cost, orders.extents.devices);
  dynamic_timetable result{orders.extents,
                           cost.latency(),
                           std::move(orders.passes),
                           {},
                           {},
                           std::move(orders.offsets),
                           std::move(orders.tables),
                           groups_of(cost),
                           {links.begin(), links.end()}};
  result.starts.assign(result.passes.size(), never);
  result.ends.assign(result.passes.size(), never);
  return result;
}

//! The rows of a timetable, entered.
[[nodiscard]] inline entered_rows enter(timetable_view table) {
  return {table.over(), table.passes, table.offsets};
}

//! Times a whole timetable.
template <cost_model Cost>
void run(dynamic_timetable& table, entered_rows const& rows, Cost const& cost) {
  int const row_total = row_count(rows.map().over);
  auto const count = static_cast<std::size_t>(row_total);
  whole_part<double> const part(
    table.starts.data(), table.ends.data(), table.offsets.data(), row_total);
  std::vector<entry_number> next(count);
  std::vector<double> free_from(count);
  std::vector<int> waits_for_row(count);
  std::vector<entry_number> waits_for(count);
  simulation state{rows.map(),
                   rows.rows(),
                   part.view(),
                   part.starts(),
                   part.ends(),
                   next.data(),
                   free_from.data(),
                   waits_for_row.data(),
                   waits_for.data(),
                   table.latency,
                   table.groups,
                   no_entry,
                   table.view().links};
  if (is_plain(rows.map().over) && table.links.empty())
    advance<true>(state, cost);
  else
    advance<false>(state, cost);
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
