// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The simulation and the verification done by the compiler, in as many constant evaluations
//! as it takes.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/constants.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/pool_effect.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulation.hpp>
#include <pipe/timetable/verify.hpp>

namespace pipelining::inline v0_3 {
namespace detail {

// Constants point into themselves and into those before, so that none copies what another has made.

//! Where the passes stand and what they wait for, one constant per device.
//! @tparam Order a `static_order`
template <class Order>
struct static_places {
  static constexpr pipeline over = Order::over;
  static constexpr int devices = over.extents.devices;
  static constexpr int engines = over.declared->engines;
  static constexpr int line_count = lines(over);
  static constexpr bool plain = is_plain(over);
  static constexpr auto rules =
    each<engines>([](auto engine) { return entry_rules(over, engine.value); });
  static constexpr auto holders = [] {
    list_of<int, line_count> result{};
    for (int line = 0; line < line_count; ++line)
      result.of[line] = holder_of(over, line);
    return result;
  }();

  //! @tparam Lines that the device holds @tparam Passes of all its rows
  template <int Device, int Lines, int Passes>
  struct device {
    // Each array in a structure, since nvcc 13 loses count in pointers into arrays of arrays.
    array_of<list_of<place_code, units(over)>, Lines> places{};
    array_of<place_code*, line_count> lines{}; //!< those of the device
    array_of<input_line, Passes> inputs{};
    array_of<input_line, (engines > 1 ? Passes : 1)> others{};
    array_of<place_row, engines> rows{};
    array_of<row_findings, engines> found{};

    constexpr device() {
      for (int line = 0, own = 0; line < line_count; ++line)
        if (holders.of[line] == Device)
          lines[line] = places[own++].of;
      for (int engine = 0, first = 0; engine < engines; ++engine) {
        int const number = Device + engine * devices;
        auto const& order = *Order::rows.of[number];
        input_line* const beside = engines > 1 ? others + first : nullptr;
        rows[engine] = {
          order.passes, inputs + first, beside, static_cast<entry_number>(order.count)};
        found[engine] = enter_row<plain>({over, holders.of, lines},
                                         rules.of[engine],
                                         rows[engine],
                                         number,
                                         lines,
                                         inputs + first,
                                         beside);
        first += order.count;
      }
    }
  };
  [[nodiscard]] static constexpr int lines_of(int device) {
    int count = 0;
    for (int const holder : holders.of)
      count += holder == device ? 1 : 0;
    return count > 0 ? count : 1;
  }
  [[nodiscard]] static constexpr int passes_of(int device) {
    int count = 0;
    for (int engine = 0; engine < engines; ++engine)
      count += Order::rows.of[device + engine * devices]->count;
    return count > 0 ? count : 1;
  }
  template <int Device>
  static constexpr device<Device, lines_of(Device), passes_of(Device)> entered{};

  struct device_view {
    place_code const* const* lines;
    place_row const* rows;
    row_findings const* found;
  };
  static constexpr auto all = each<devices>([](auto number) {
    return device_view{
      entered<number.value>.lines, entered<number.value>.rows, entered<number.value>.found};
  });

  struct joined {
    array_of<place_code const*, line_count> places{};
    array_of<place_row, devices * engines> rows{};
    place_map map{over, holders.of, places};
    report first{};

    constexpr joined() {
      for (int line = 0; line < line_count; ++line)
        places[line] = all.of[holders.of[line]].lines[line];
      row_findings found;
      for (int number = 0; number < devices * engines; ++number) {
        device_view const& own = all.of[number % devices];
        rows[number] = own.rows[number / devices];
        found.add(own.found[number / devices]);
      }
      first = check_order(map, rows, found);
    }
  };
  static constexpr joined value{};
};

//! The times of the passes, some of them per constant.
template <class Order, class Cost>
struct static_simulation {
  using places = static_places<Order>;
  static constexpr int rows = Order::row_total;
  //! Compilers limit the steps of one evaluation (clang: 1,048,576), not their sum: a constant
  //! times some 16,384 entries, as many of each row. A composite pass needs two.
  static constexpr int room = 16384 / rows + 2;
  static constexpr double const* link_times = [] {
    double const* result = nullptr;
    if constexpr (requires { Cost::value.links(); }) {
      auto const links = checked_links(Cost::value, Order::extents.devices);
      result = links.empty() ? nullptr : links.data();
    }
    return result;
  }();
  static constexpr bool plain = places::plain && link_times == nullptr;

  struct part {
    array_of<entry_number, rows> first{};
    array_of<entry_number, rows> next{};
    array_of<double, rows> free_before{};
    array_of<double, rows> free_from{};
    array_of<list_of<double, room>, rows> own_starts{};
    array_of<list_of<double, room>, rows> own_ends{};
    array_of<double*, rows> starts{};
    array_of<double*, rows> ends{};
    timed_part view{first, starts, ends};
    bool moved = false;
    bool done = true;

    constexpr explicit part(part const* before) {
      array_of<int, rows> waits_for_row{};
      array_of<entry_number, rows> waits_for{};
      for (int row = 0; row < rows; ++row) {
        starts[row] = own_starts[row].of;
        ends[row] = own_ends[row].of;
        if (before == nullptr)
          continue;
        first[row] = next[row] = before->next[row];
        free_before[row] = free_from[row] = before->free_from[row];
        view.before = &before->view;
      }
      simulation state{places::value.map,
                       places::value.rows,
                       view,
                       starts,
                       ends,
                       next,
                       free_from,
                       waits_for_row,
                       waits_for,
                       Cost::value.latency(),
                       {},
                       room,
                       link_times};
      advance<plain>(state, Cost::value);
      for (int row = 0; row < rows; ++row) {
        moved = moved || next[row] != first[row];
        done = done && next[row] == places::value.rows[row].count;
      }
      if (!moved) // what comes next waits for ever, which the check finds
        for (int row = 0; row < rows; ++row)
          starts[row][0] = ends[row][0] = never;
    }
  };
  template <int Number>
  [[nodiscard]] static constexpr part const* part_at() {
    if constexpr (Number >= 0)
      return &timed<Number>;
    else
      return nullptr;
  }
  template <int Number>
  static constexpr part timed{part_at<Number - 1>()};

  //! Parts until all passes have run, or none can run any more.
  template <int Number = 0>
  [[nodiscard]] static constexpr int count_parts() {
    if constexpr (timed<Number>.done || !timed<Number>.moved)
      return Number + 1;
    else
      return count_parts<Number + 1>();
  }
  static constexpr int parts = count_parts();
  static constexpr auto all = each<parts>([](auto number) { return part_at<number.value>(); });

  //! The verdict on the times of one part.
  template <int Number>
  static constexpr report checked = [] {
    part const& own = timed<Number>;
    report verdict;
    for (int number = 0; number < rows && verdict; ++number) {
      place_row const& row = places::value.rows[number];
      bool const stuck = !own.moved && own.next[number] < row.count;
      verdict = check_times<plain>(places::value.map,
                                   row,
                                   own.view,
                                   {Cost::value.latency(), {}, link_times},
                                   number,
                                   own.next[number] + (stuck ? 1 : 0),
                                   own.free_before[number]);
    }
    return verdict;
  }();
  //! The verdict on all times.
  [[nodiscard]] static constexpr report verdict() {
    auto const verdicts = each<parts>([](auto number) { return checked<number.value>; });
    report first;
    for (report const& found : verdicts.of)
      if (!found && (first || found.device < first.device))
        first = found;
    return first;
  }
};

//! Order and times in the flat arrays of a `timetable_view`.
template <class Order, class Cost>
struct static_arrays {
  using simulated = static_simulation<Order, Cost>;
  static constexpr int rows = Order::row_total;

  struct flat_passes {
    array_of<int, rows + 1> offsets;
    array_of<pass, Order::total> passes;
  };
  static constexpr flat_passes order = [] {
    flat_passes result{};
    int at = 0;
    for (int row = 0; row < rows; ++row) {
      pass const* const passes = Order::rows.of[row]->passes;
      int const count = Order::rows.of[row]->count;
      for (int entry = 0; entry < count; ++entry)
        result.passes[at + entry] = passes[entry];
      at += count;
      result.offsets[row + 1] = at;
    }
    return result;
  }();

  struct flat_times {
    array_of<double, Order::total> starts;
    array_of<double, Order::total> ends;
  };
  static constexpr flat_times times = [] {
    flat_times result{};
    for (int row = 0; row < rows; ++row) {
      int at = order.offsets[row];
      for (auto const* part : simulated::all.of) {
        int const count = static_cast<int>(part->next[row] - part->first[row]);
        double const* const starts = part->starts[row];
        double const* const ends = part->ends[row];
        for (int i = 0; i < count; ++i) {
          result.starts[at + i] = starts[i];
          result.ends[at + i] = ends[i];
        }
        at += count;
      }
      for (; at < order.offsets[row + 1]; ++at)
        result.starts[at] = result.ends[at] = never;
    }
    return result;
  }();
};

} // namespace detail
} // namespace pipelining::inline v0_3
