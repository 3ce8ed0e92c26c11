// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tells the author of a type that is no schedule which of the requirements it misses.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <concepts>

namespace pipelining::inline v0_3::detail {

//! Each requirement of the concept `schedule` in a sentence. To be named where one is missing.
template <class Schedule>
struct schedule_requirements {
  static constexpr bool arranges = requires(Schedule const plan, int number) {
    plan.arrange(number, number);
  };
  static constexpr bool orders =
    requires(Schedule const plan, shape const extents, row_writer row) {
    plan.order(extents, 0, row);
  };
  static constexpr bool generates =
    requires(Schedule const plan, shape const extents, row_writer* rows) {
    plan.generate(extents, no_cost{}, rows);
  };

  static_assert(std::copyable<Schedule>,
                "schedule: a schedule is a value; this type cannot be copied and assigned. Keep "
                "only its parameters in it");
  static_assert(arranges,
                "schedule: a const member `shape arrange(int devices, int microbatches)` is "
                "missing. It gives the extents: placement, stages per device, chunks");
  static_assert(!arranges || pipelining::detail::arranges<Schedule> || !std::copyable<Schedule>,
                "schedule: `arrange` must return a pipelining::shape");
  static_assert(orders || generates,
                "schedule: the order of passes is missing. Write a const member `void order(shape "
                "const& extents, int device, row_writer& out)` where it follows from the extents, "
                "or `void generate(shape const& extents, auto const& cost, row_writer* rows)` "
                "where devices are ordered together or costs matter");
};

} // namespace pipelining::inline v0_3::detail
