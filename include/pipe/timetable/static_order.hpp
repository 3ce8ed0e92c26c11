// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The order of passes made by the compiler, in as many constant evaluations as it takes.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/constants.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/schedule_tables.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_3 {
namespace detail {

//! The extents of a schedule for a size that it takes. @throws as `arrange` and `check_extents` do.
template <class Schedule>
[[nodiscard]] constexpr shape arranged(int devices, int microbatches) {
  check_extents({.devices = devices, .microbatches = microbatches});
  shape const extents = Schedule{}.arrange(devices, microbatches);
  check_extents(extents, flow_of<Schedule>().rows);
  return extents;
}

//! True for a schedule that gives edges, or adapts one that does.
template <class Schedule>
[[nodiscard]] constexpr bool has_edges() noexcept {
  if constexpr (joins_stages<Schedule>)
    return true;
  else if constexpr (adapts_schedule<Schedule>)
    return has_edges<std::remove_cvref_t<decltype(Schedule::of)>>();
  else
    return false;
}

//! The order of passes, made by the compiler: a constant for each row.
template <class Schedule, int Devices, int Microbatches, class Cost>
struct static_order {
  static_assert(
    !has_edges<Schedule>(),
    "timetable: the compiler makes timetables of stages in a chain; make those of a stage "
    "graph with make_timetable");
  static constexpr shape extents = arranged<Schedule>(Devices, Microbatches);
  static constexpr int holder_total = holder_count<Schedule>(extents);
  static constexpr int unit_total = first_unit_count<Schedule>(extents);

  struct own_tables {
    array_of<std::uint16_t, holder_total + 1> holders;
    array_of<int, unit_total + 1> first_units;
  };
  static constexpr own_tables tables = [] {
    own_tables result{};
    write_holders(Schedule{}, extents, result.holders);
    write_first_units(Schedule{}, extents, result.first_units);
    return result;
  }();
  static constexpr pipeline over{extents,
                                 flow_pointer<Schedule>,
                                 holder_total > 0 ? tables.holders : nullptr,
                                 unit_total > 0 ? tables.first_units : nullptr};
  static constexpr int capacity = row_capacity(over);
  static constexpr int row_total = row_count(over);

  struct row {
    array_of<pass, capacity> passes;
    int count;
  };
  //! All rows at once. A template, so that only schedules that need it have it.
  template <class Generated>
  static constexpr auto generated = [] {
    list_of<row, row_total> result{};
    array_of<row_writer, row_total> writers{};
    for (int number = 0; number < row_total; ++number)
      writers[number] = {result.of[number].passes, capacity};
    Generated{}.generate(extents, Cost::value, writers);
    for (int number = 0; number < row_total; ++number)
      result.of[number].count = writers[number].count;
    return result;
  }();
  template <int Number>
  static constexpr row made = [] {
    row result{};
    row_writer out{result.passes, capacity};
    if constexpr (!closed_form_schedule<Schedule>) {
      using work = typename Schedule::template slices<Devices, Microbatches, Cost>;
      work::write_row(after<work, work::count>, Number, out);
    } else if constexpr (Number < Devices) { // further engines have no passes
      Schedule{}.order(extents, Number, out);
    }
    result.count = out.count;
    return result;
  }();
  static constexpr auto rows = each<row_total>([](auto number) -> row const* {
    if constexpr (closed_form_schedule<Schedule> ||
                  sliced_schedule<Schedule, Devices, Microbatches, Cost>)
      return &made<number.value>;
    else
      return &generated<Schedule>.of[number.value];
  });
  static constexpr int total = [] {
    int sum = 0;
    for (row const* own : rows.of)
      sum += own->count;
    return sum;
  }();
};

} // namespace detail
} // namespace pipelining::inline v0_3
