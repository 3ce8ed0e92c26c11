// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The order of passes made by the compiler, in as many constant evaluations as it takes.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <utility>

namespace pipelining::inline v0_1 {
namespace detail {

//! What `Work` has made after `Steps` steps, each step a constant evaluation of its own.
template <class Work, int Steps>
inline constexpr typename Work::state after = Work::go_on(after<Work, Steps - 1>, Steps - 1);
template <class Work>
inline constexpr typename Work::state after<Work, 0> = Work::start();

//! The order of passes, made by the compiler: one constant per device for closed forms.
template <class Schedule, int Devices, int Microbatches, class Cost>
struct static_order {
  static constexpr shape extents = [] {
    check_extents({.devices = Devices, .microbatches = Microbatches});
    shape const arranged = Schedule{}.arrange(Devices, Microbatches);
    check_extents(arranged);
    return arranged;
  }();
  static constexpr int capacity = row_capacity(extents);

  struct row {
    pass passes[capacity];
    int count;
  };
  template <int Device>
  static constexpr row closed_form = [] {
    row result{};
    row_writer out{result.passes, capacity};
    Schedule{}.order(extents, Device, out);
    result.count = out.count;
    return result;
  }();

  struct row_list {
    row of[Devices];
  };
  [[nodiscard]] static constexpr row_list generate() {
    row_list result{};
    row_writer writers[Devices]{};
    for (int device = 0; device < Devices; ++device)
      writers[device] = {result.of[device].passes, capacity};
    Schedule{}.generate(extents, Cost::value, writers);
    for (int device = 0; device < Devices; ++device)
      result.of[device].count = writers[device].count;
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

  struct row_pointers {
    row const* of[Devices];
  };
  template <int... Device>
  [[nodiscard]] static constexpr row_pointers collect(std::integer_sequence<int, Device...>) {
    if constexpr (closed_form_schedule<Schedule>)
      return {{&closed_form<Device>...}};
    else if constexpr (sliced_schedule<Schedule, Devices, Microbatches, Cost>)
      return {{&sliced<Device>...}};
    else
      return {{&generated<static_order>.of[Device]...}};
  }
  static constexpr row_pointers rows = collect(std::make_integer_sequence<int, Devices>{});
  static constexpr int total = [] {
    int sum = 0;
    for (int device = 0; device < Devices; ++device)
      sum += rows.of[device]->count;
    return sum;
  }();
};

} // namespace detail
} // namespace pipelining::inline v0_1
