// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables whose extents are known at run time. Header for pipelining::make_timetable.

#include <pipe/flow/edge_table.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The two extents that every schedule is given.
struct pipeline_size {
  int devices = 1;      //!< P
  int microbatches = 1; //!< M
};

namespace detail {

//! The stages that a schedule, or one that it adapts, declares to be frozen.
template <class Schedule>
[[nodiscard]] std::vector<int> frozen_by(Schedule const& plan) {
  if constexpr (requires { plan.frozen; })
    return plan.frozen;
  else if constexpr (adapts_schedule<Schedule>)
    return frozen_by(plan.of);
  else
    return {};
}

//! The table of the edges that a schedule gives, or that it adapts; empty for a chain.
template <class Schedule>
[[nodiscard]] std::vector<int>
edges_by(Schedule const& plan, shape const& extents, std::vector<int> const& frozen) {
  if constexpr (joins_stages<Schedule>) {
    auto const& edges = plan.edges_of(extents);
    if constexpr (requires { plan.groups_of(extents); }) {
      auto const& groups = plan.groups_of(extents);
      return edge_table({std::data(edges), std::size(edges)},
                        stages(extents),
                        {std::data(groups), std::size(groups)},
                        frozen,
                        extents.chunks);
    } else {
      return edge_table(
        {std::data(edges), std::size(edges)}, stages(extents), {}, frozen, extents.chunks);
    }
  } else if constexpr (adapts_schedule<Schedule>) {
    return edges_by(plan.of, extents, frozen);
  } else if (!frozen.empty()) {
    std::vector<stage_edge> chain;
    for (int stage = 1; stage < stages(extents); ++stage)
      chain.push_back({stage - 1, stage, of_unit::same});
    return edge_table(chain, stages(extents), {}, frozen, extents.chunks);
  } else {
    return {};
  }
}

//! The pipeline that a schedule makes of these extents.
//! @throws std::invalid_argument for a device, a number of chunks or an edge that cannot be.
template <class Schedule>
[[nodiscard]] pipeline pipeline_of(Schedule const& plan, shape const& extents) {
  pipeline result{.extents = extents,
                  .declared = copied(flow_of<Schedule>()),
                  .edges = edges_by(plan, extents, frozen_by(plan))};
  result.holders.resize(static_cast<std::size_t>(holder_count<Schedule>(extents)));
  result.first_units.resize(static_cast<std::size_t>(first_unit_count<Schedule>(extents)));
  write_holders(plan, extents, result.holders.data());
  write_first_units(plan, extents, result.first_units.data());
  return result;
}

//! The pipeline of a schedule for a size. @throws as `arrange` and `check_extents` do.
template <class Schedule>
[[nodiscard]] pipeline arranged_pipeline(Schedule const& plan, pipeline_size size) {
  check_extents({.devices = size.devices, .microbatches = size.microbatches});
  shape const extents = plan.arrange(size.devices, size.microbatches);
  check_extents(extents, flow_of<Schedule>().rows);
  return pipeline_of(plan, extents);
}

//! Memory for the rows of a program. No template, so that it is compiled once.
struct growing_room {
  device_orders& orders;

  [[nodiscard]] pass* operator()(int begin) const {
    auto const first = static_cast<std::size_t>(begin);
    auto const capacity = static_cast<std::size_t>(row_capacity(orders.over));
    orders.passes.resize(std::max(orders.passes.size(), first + capacity));
    return orders.passes.data() + first;
  }
};

//! Orders the passes of every row, in the program and in the compiler.
//! @param offsets [rows + 1], to write
//! @param room gives memory for `row_capacity` passes, from that entry on
template <class Schedule, cost_model Cost, class Room>
constexpr void order_rows(
  Schedule const& plan, pipeline_view const& over, Cost const& cost, int* offsets, Room room) {
  int const capacity = row_capacity(over);
  int const rows = row_count(over);
  offsets[0] = 0;
  if constexpr (closed_form_schedule<Schedule>) {
    for (int row = 0; row < rows; ++row) {
      offsets[row + 1] = offsets[row];
      if (row >= over.extents.devices) // further engines have no passes
        continue;
      row_writer out{room(offsets[row]), capacity};
      plan.order(over.extents, row, out);
      offsets[row + 1] += out.count;
    }
  } else {
    owned<pass> const storage(std::int64_t{rows} * capacity);
    owned<row_writer> const writers(rows);
    for (int row = 0; row < rows; ++row)
      writers[row] = {storage + static_cast<std::ptrdiff_t>(row) * capacity, capacity};
    plan.generate(over.extents, cost, writers);
    for (int row = 0; row < rows; ++row) {
      row_writer const& made = writers[row];
      pass* const out = room(offsets[row]);
      for (int i = 0; i < made.count; ++i)
        out[i] = made.passes[i];
      offsets[row + 1] = offsets[row] + made.count;
    }
  }
}

} // namespace detail

//! @brief The order of passes on every device, without times.
//! @throws std::invalid_argument for extents that are not positive, too large, or against the
//! schedule's precondition, and for costs that are negative or not finite.
//! @complexity as the schedule says; O(1) per pass for closed forms.
template <schedule Schedule, cost_model Cost = uniform_cost>
[[nodiscard]] device_orders
make_orders(Schedule const& plan, pipeline_size size, Cost const& cost = {}) {
  device_orders orders{detail::arranged_pipeline(plan, size), {}, {0}};
  detail::check_cost(orders.over, cost);
  orders.offsets.resize(static_cast<std::size_t>(row_count(orders.over)) + 1);
  detail::order_rows(plan, orders.over, cost, orders.offsets.data(), detail::growing_room{orders});
  orders.passes.resize(static_cast<std::size_t>(orders.offsets.back()));
  if (!detail::frozen_by(plan).empty())
    detail::leave_out_unneeded(orders);
  return orders;
}

//! @brief The verified timetable of a schedule for extents known at run time.
//!
//! @param size devices P and microbatches M.
//! @param cost how long passes and messages take.
//! @throws std::invalid_argument for bad extents, and with the sentence of the broken rule for a
//! broken schedule.
//! @complexity O(1) per pass on top of the schedule's own cost.
template <schedule Schedule, cost_model Cost = uniform_cost>
[[nodiscard]] dynamic_timetable
make_timetable(Schedule const& plan, pipeline_size size, Cost const& cost = {}) {
  dynamic_timetable table = detail::untimed(make_orders(plan, size, cost), cost);
  detail::entered_rows const entered = detail::enter(table);
  if (entered.found().first) // else a pass may name what the pipeline does not have
    detail::run(table, entered, cost);
  if (report const verdict = detail::verify_entered(table, entered, detail::unlimited); !verdict)
    throw std::invalid_argument(describe(verdict, table.over));
  return table;
}

//! Says what a type misses that is no schedule.
template <class Other, cost_model Cost = uniform_cost>
requires(!schedule<Other>) dynamic_timetable
  make_timetable(Other const&, pipeline_size, Cost const& = {}) {
  static_cast<void>(sizeof(detail::schedule_requirements<Other>));
  return {};
}

//! @brief The same, for a schedule type whose parameters are all in the type:
//! `make_timetable<OneFOneB>({8, 32})`.
template <schedule Schedule, cost_model Cost = uniform_cost>
[[nodiscard]] dynamic_timetable make_timetable(pipeline_size size, Cost const& cost = {}) {
  return make_timetable(Schedule{}, size, cost);
}

} // namespace pipelining::inline v0_3
