// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables of schedules, made and verified by the program. Header for
//! pipelining::make_orders and make_timetable; static_timetable.hpp has those of the compiler.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/edge_table.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/static_timetable.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! Waits of passes that never start, the first of each row: entry `at[i]` of the timetable for
//! entry `other[i]`, row by row.
struct stuck_passes {
  std::vector<int> at{};
  std::vector<int> other{};
  std::vector<int> begins{0}; //!< [rows + 1], the first wait of each row

  explicit stuck_passes(timetable_view const& table) {
    pipeline_view const& over = table.over;
    entered_rows const entered(over, table.passes, table.offsets);
    for (int row = 0; row < table.rows(); ++row) {
      int const end = table.offsets[row + 1];
      int head = table.offsets[row];
      while (head < end && table.starts[head] >= 0)
        ++head;
      for (int entry = head; entry < end && (entry == head || table.passes[entry].overlapped);
           ++entry) {
        dependency_list const needed(over, table.passes[entry]);
        for (int k = 0; k < needed.count; ++k) {
          int const maker = entered.maker_of(needed[k]);
          if (maker == nothing_before || table.starts[maker] >= 0)
            continue;
          at.push_back(entry);
          other.push_back(maker);
        }
      }
      begins.push_back(static_cast<int>(at.size()));
    }
  }
};

//! The shortest circle of rows, each of which waits for the next, as numbers of waits from the last
//! to the first; empty where there is none.
//! @complexity O(rows^2)
[[nodiscard]] inline std::vector<int> shortest_circle(timetable_view const& table,
                                                      stuck_passes const& waits) {
  int const count = static_cast<int>(waits.at.size());
  auto const row_of = [&](int entry) { return table.over.row_of(table.passes[entry]); };
  std::vector<int> shortest;
  for (int first = 0; first < table.rows(); ++first) {
    owned<int> came(table.rows(), count); // over which wait a row was reached
    std::vector<int> reached{first};
    for (std::size_t i = 0; i < reached.size() && came[first] == count; ++i)
      for (int wait = waits.begins.data()[reached[i]]; wait < waits.begins.data()[reached[i] + 1];
           ++wait)
        if (int const to = row_of(waits.other.data()[wait]); came[to] == count) {
          came[to] = wait;
          reached.push_back(to);
        }
    std::vector<int> circle;
    for (int row = first; came[first] != count;) {
      circle.push_back(came[row]);
      row = row_of(waits.at.data()[came[row]]);
      if (row == first)
        break;
    }
    if (!circle.empty() && (shortest.empty() || circle.size() < shortest.size()))
      shortest = std::move(circle);
  }
  return shortest;
}

} // namespace detail

//! @brief A verdict as one sentence that names the rule, the device and the passes; for passes that
//! wait for ever, the shortest circle of them.
[[nodiscard]] inline std::string describe(report const& verdict, timetable_view table) {
  if (verdict.broken != report::rule::waits_for_ever)
    return describe(verdict, table.over);
  detail::stuck_passes const waits(table);
  std::vector<int> circle = detail::shortest_circle(table, waits);
  if (circle.empty())
    return describe(verdict, table.over);
  auto const name = [&](int entry) {
    pass const& what = table.passes[entry];
    int const row = table.over.row_of(what);
    return "device " + std::to_string(row % table.over.extents.devices) + ", entry " +
           std::to_string(entry - table.offsets[row]) + ": " + describe(what, table.over);
  };
  std::string text = std::string("timetable: ") + detail::sentence(verdict.broken);
  for (char const* before = " ("; !circle.empty(); circle.pop_back(), before = "; ")
    text += before + name(waits.at.data()[circle.back()]) + ", waits for " +
            name(waits.other.data()[circle.back()]);
  return text + ")";
}

//! @brief The two extents that every schedule is given.
struct pipeline_size {
  int devices = 1;      //!< P
  int microbatches = 1; //!< M
};

namespace detail {

//! Orders the passes of all devices, whichever of both a schedule does.
template <class Schedule, cost_model Cost>
constexpr void
order_all(Schedule const& plan, shape const& extents, Cost const& cost, row_writer* rows) {
  if constexpr (orders_device<Schedule>)
    for (int device = 0; device < extents.devices; ++device)
      plan.order(extents, device, rows[device]);
  else
    plan.generate(extents, cost, rows);
}

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
  owned_list<stage_edge> chain;
  for (int stage = 1; stage < extents.stages(); ++stage)
    chain.push_back({stage - 1, stage, of_unit::same});
  return edge_table(chain, extents.stages(), {}, {frozen.data(), frozen.size()}, extents.chunks);
}

//! The table of the edges that a schedule gives, or that it adapts; empty for a chain.
template <class Schedule>
[[nodiscard]] std::vector<int>
edges_by(Schedule const& plan, shape const& extents, std::vector<int> const& frozen) {
  if constexpr (joins_stages<Schedule>) {
    auto const& edges = plan.edges_of(extents);
    auto const table = [&](auto const& groups) {
      return edge_table(
        edges, extents.stages(), groups, {frozen.data(), frozen.size()}, extents.chunks);
    };
    if constexpr (requires { plan.groups_of(extents); })
      return table(plan.groups_of(extents));
    else
      return table(std::initializer_list<stage_group>{});
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
  auto const at = [](int count) { return static_cast<std::size_t>(count); };
  result.holders = std::vector<std::uint16_t>(at(holder_count<Schedule>(extents)));
  result.first_units = std::vector<int>(at(first_unit_count<Schedule>(extents)));
  write_tables(plan, extents, result.holders.data(), result.first_units.data());
  return result;
}

//! The pipeline of a schedule for a size. @throws as `arrange` and `check_extents` do.
template <class Schedule>
[[nodiscard]] pipeline arranged_pipeline(Schedule const& plan, pipeline_size size) {
  return pipeline_of(plan, arranged(plan, size.devices, size.microbatches));
}

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
  auto const append = [&orders](auto const* row, int count) { // compiled only where it is called
    orders.passes.insert(orders.passes.end(), row, row + count);
  };
  if (report const verdict =
        detail::order_rows(plan, orders.over, cost, orders.offsets.data(), append);
      !verdict)
    throw std::invalid_argument(describe(verdict, orders.over));
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
  if (entered.found.first) // else a pass may name what the pipeline does not have
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
