// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables whose extents are known at run time. Header for pipelining::make_timetable.

#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/describe.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief The two extents that every schedule is given.
struct pipeline_size {
  int devices = 1;
  int microbatches = 1;
};

//! @brief The order of passes on every device, without times.
//! @throws std::invalid_argument for extents that are not positive, too large, or against the
//! schedule's precondition.
//! @complexity as the schedule says; O(1) per pass for closed forms.
template <schedule Schedule, cost_model Cost = uniform_cost>
[[nodiscard]] device_orders
make_orders(Schedule const& plan, pipeline_size size, Cost const& cost = {}) {
  check_extents({.devices = size.devices, .microbatches = size.microbatches});
  device_orders orders{plan.arrange(size.devices, size.microbatches), {}, {0}, {}};
  check_extents(orders.extents);
  auto const devices = static_cast<std::size_t>(size.devices);
  int const capacity = row_capacity(orders.extents);
  if constexpr (closed_form_schedule<Schedule>) {
    orders.passes.resize(static_cast<std::size_t>(capacity));
    for (int device = 0; device < size.devices; ++device) {
      auto const begin = static_cast<std::size_t>(orders.offsets.back());
      orders.passes.resize(
        std::max(orders.passes.size(), begin + static_cast<std::size_t>(capacity)));
      row_writer row{orders.passes.data() + begin, capacity};
      plan.order(orders.extents, device, row);
      orders.offsets.push_back(static_cast<int>(begin) + row.count);
    }
    orders.passes.resize(static_cast<std::size_t>(orders.offsets.back()));
  } else {
    std::vector<pass> storage(devices * static_cast<std::size_t>(capacity));
    std::vector<row_writer> rows(devices);
    for (std::size_t device = 0; device < devices; ++device)
      rows[device] = {storage.data() + device * static_cast<std::size_t>(capacity), capacity};
    plan.generate(orders.extents, cost, rows.data());
    for (row_writer const& row : rows) {
      orders.passes.insert(orders.passes.end(), row.passes, row.passes + row.count);
      orders.offsets.push_back(static_cast<int>(orders.passes.size()));
    }
  }
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
  dynamic_timetable table = detail::untimed(make_orders(plan, size, cost), cost.latency());
  detail::entered_rows const entered = detail::enter(table);
  detail::run(table, entered, cost);
  if (report const verdict = detail::verify_entered(table, entered, unlimited); !verdict)
    throw std::invalid_argument(describe(verdict, table.extents.chunks > 1));
  return table;
}

//! @brief The same, for a schedule type whose parameters are all in the type:
//! `make_timetable<OneFOneB>({8, 32})`.
template <schedule Schedule, cost_model Cost = uniform_cost>
[[nodiscard]] dynamic_timetable make_timetable(pipeline_size size, Cost const& cost = {}) {
  return make_timetable(Schedule{}, size, cost);
}

} // namespace pipelining::inline v0_1
