// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The order of passes made by the compiler, in as many constant evaluations as it takes.

#include <pipe/core/array_of.hpp>
#include <pipe/core/constants.hpp>
#include <pipe/core/pass.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstdint>
#include <type_traits>

namespace pipelining::inline v0_2 {
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

//! The order of passes, made by the compiler: one constant per device for closed forms.
template <class Schedule, int Devices, int Microbatches, class Cost>
struct static_order {
  static_assert(
    !has_edges<Schedule>(),
    "timetable: the compiler makes timetables of stages in a chain; make those of a stage "
    "graph with make_timetable");
  static constexpr shape extents = arranged<Schedule>(Devices, Microbatches);
  using placing = adapted_type<Schedule>;
  static constexpr bool places = places_stages<placing>;
  static constexpr bool counts = counts_chunks<placing>;

  //! The tables of a placement or of numbers of chunks of the schedule's own.
  struct holder_table {
    array_of<std::uint16_t, places ? stages(extents) * routes(extents) : 1> of;
  };
  static constexpr holder_table holders = [] {
    holder_table result{};
    if constexpr (places) {
      for (int i = 0; i < stages(extents) * routes(extents); ++i) {
        int const stage = i % stages(extents);
        int const device = placing{}.device_of(extents, stage, i / stages(extents));
        check_holder(extents, stage, device);
        result.of[i] = static_cast<std::uint16_t>(device);
      }
    } else {
      check_named_placement(extents);
    }
    return result;
  }();
  struct unit_table {
    array_of<int, counts ? Microbatches + 1 : 1> of;
  };
  static constexpr unit_table first_units = [] {
    unit_table result{};
    if constexpr (counts)
      for (int microbatch = 0; microbatch < Microbatches; ++microbatch) {
        int const chunks = placing{}.chunks_of(extents, microbatch);
        check_chunk_count(extents, microbatch, chunks);
        result.of[microbatch + 1] = result.of[microbatch] + chunks;
      }
    return result;
  }();
  static constexpr pipeline over{extents,
                                 flow_pointer<Schedule>,
                                 places ? holders.of : nullptr,
                                 counts ? first_units.of : nullptr};
  static constexpr int capacity = row_capacity(over);
  static constexpr int row_total = row_count(over);

  struct row {
    array_of<pass, capacity> passes;
    int count;
  };
  template <int Device>
  static constexpr row closed_form = [] {
    row result{};
    row_writer out{result.passes, capacity};
    if constexpr (Device < Devices) // further engines have no passes
      Schedule{}.order(extents, Device, out);
    result.count = out.count;
    return result;
  }();

  using row_list = list_of<row, row_total>;
  [[nodiscard]] static constexpr row_list generate() {
    row_list result{};
    array_of<row_writer, row_total> writers{};
    for (int number = 0; number < row_total; ++number)
      writers[number] = {result.of[number].passes, capacity};
    Schedule{}.generate(extents, Cost::value, writers);
    for (int number = 0; number < row_total; ++number)
      result.of[number].count = writers[number].count;
    return result;
  }
  template <class Order>
  static constexpr row_list generated = Order::generate();

  template <int Device>
  static constexpr row sliced = [] {
    using work = typename Schedule::template slices<Devices, Microbatches, Cost>;
    row result{};
    row_writer out{result.passes, capacity};
    work::write_row(after<work, work::count>, Device, out);
    result.count = out.count;
    return result;
  }();

  template <int Device>
  [[nodiscard]] static constexpr row const* row_of() {
    if constexpr (closed_form_schedule<Schedule>)
      return &closed_form<Device>;
    else if constexpr (sliced_schedule<Schedule, Devices, Microbatches, Cost>)
      return &sliced<Device>;
    else
      return &generated<static_order>.of[Device];
  }
  static constexpr auto rows = each<row_total>([](auto row) { return row_of<row.value>(); });
  static constexpr int total = [] {
    int sum = 0;
    for (int number = 0; number < row_total; ++number)
      sum += rows.of[number]->count;
    return sum;
  }();
};

} // namespace detail
} // namespace pipelining::inline v0_2
