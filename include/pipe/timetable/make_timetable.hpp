// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables of schedules, made and verified by the program. Header for
//! pipelining::make_orders and make_timetable; static_timetable.hpp has those of the compiler.

#include <pipe/flow/edge_table.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/circle.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/static_timetable.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <cstddef>
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

//! The table of the edges of a chain with frozen stages; empty without such.
[[nodiscard]] inline std::vector<int> edges_of_chain(shape const& extents,
                                                     std::vector<int> const& frozen) {
  if (frozen.empty())
    return {};
  std::vector<stage_edge> chain;
  for (int stage = 1; stage < extents.stages(); ++stage)
    chain.push_back({stage - 1, stage, of_unit::same});
  return edge_table(chain, extents.stages(), {}, frozen, extents.chunks);
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
                        extents.stages(),
                        {std::data(groups), std::size(groups)},
                        frozen,
                        extents.chunks);
    } else {
      return edge_table(
        {std::data(edges), std::size(edges)}, extents.stages(), {}, frozen, extents.chunks);
    }
  } else if constexpr (adapts_schedule<Schedule>) {
    return edges_by(plan.of, extents, frozen);
  } else {
    return edges_of_chain(extents, frozen);
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
    auto const most = static_cast<std::size_t>(row_capacity(orders.over)) + 1;
    orders.passes.resize(std::max(orders.passes.size(), first + most));
    return orders.passes.data() + first;
  }
};

} // namespace detail

//! @brief The order of passes on every device, without times.
//! @throws std::invalid_argument for extents that are not positive, too large, or against the
//! schedule's precondition, for more passes than a row can have, and for costs that are negative or
//! not finite.
//! @complexity as the schedule says; O(1) per pass for closed forms.
template <schedule Schedule, cost_model Cost = uniform_cost>
[[nodiscard]] device_orders
make_orders(Schedule const& plan, pipeline_size size, Cost const& cost = {}) {
  device_orders orders{detail::arranged_pipeline(plan, size), {}, {0}};
  detail::check_cost(orders.over, cost);
  orders.offsets.resize(static_cast<std::size_t>(orders.over.view().row_count()) + 1);
  if (report const verdict = detail::order_rows(
        plan, orders.over, cost, orders.offsets.data(), detail::growing_room{orders});
      !verdict)
    throw std::invalid_argument(describe(verdict, orders.over));
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
    throw std::invalid_argument(describe(verdict, table));
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
