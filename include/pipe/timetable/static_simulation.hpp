// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The simulation and the verification done by the compiler, in as many constant evaluations
//! as it takes.

#include <pipe/core/array_of.hpp>
#include <pipe/core/constants.hpp>
#include <pipe/core/pass.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/training.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/pool_effect.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulation.hpp>
#include <pipe/timetable/timetable_view.hpp>
#include <pipe/timetable/verify.hpp>

namespace pipelining::inline v0_2 {
namespace detail {

//! Entries that one constant evaluation times, of all devices together. Compilers limit the steps
//! of one evaluation (clang: 1,048,576), not their sum, so large timetables go in parts.
inline constexpr int part_passes = 16384;

//! Where the passes stand and what they wait for, one constant per row.
//! @tparam Order a `static_order`
template <class Order>
struct static_places {
  static constexpr pipeline over = Order::over;
  static constexpr int rows = Order::row_total;
  static constexpr int line_count = lines(over);
  static constexpr bool engines = over.declared->engines > 1;
  static constexpr bool plain = is_plain(over);
  template <int EngineRow>
  static constexpr entry_rules rules{over, EngineRow};

  struct line_table {
    array_of<int, line_count> holders;
    array_of<int, line_count> own; //!< the number of a line among those of its device
    int most;                      //!< lines of one device
  };
  static constexpr line_table table = [] {
    line_table result{};
    array_of<int, over.extents.devices> counts{};
    for (int line = 0; line < line_count; ++line) {
      int const device = holder_of(over, line);
      result.holders[line] = device;
      result.own[line] = counts[device];
      ++counts[device];
      result.most = counts[device] > result.most ? counts[device] : result.most;
    }
    return result;
  }();

  // Structures of arrays, since nvcc 13 loses count in pointers into arrays of arrays.
  struct line_places {
    array_of<place_code, units(over)> of;
  };
  struct line_list {
    array_of<line_places, table.most> of;
  };
  template <int Row>
  struct row {
    static constexpr auto const& order = *Order::rows.of[Row];
    static constexpr int count = order.count;
    static constexpr int device = Row % over.extents.devices;

    struct entered {
      line_list lines; //!< of the device, as its rows up to this one make them
      array_of<input_line, count + 1> inputs;
      array_of<input_line, engines ? count + 1 : 1> others;
      row_findings found;
    };
    static constexpr entered value = [] {
      entered result{};
      if constexpr (Row >= over.extents.devices)
        result.lines = row<Row - over.extents.devices>::value.lines;
      array_of<place_code*, line_count> own{};
      for (int line = 0; line < line_count; ++line)
        if (table.holders[line] == device)
          own[line] = result.lines.of[table.own[line]].of;
      input_line* const others = engines ? result.others : nullptr;
      result.found =
        enter_row<plain>({over, table.holders, own},
                         rules<Row / over.extents.devices>,
                         {order.passes, result.inputs, others, static_cast<entry_number>(count)},
                         Row,
                         own,
                         result.inputs,
                         others);
      return result;
    }();

    struct line_pointers {
      array_of<place_code const*, table.most> of;
    };
    static constexpr line_pointers pointers = [] {
      line_pointers result{};
      for (int line = 0; line < table.most; ++line)
        result.of[line] = value.lines.of[line].of;
      return result;
    }();
  };

  struct row_view {
    place_row row;
    place_code const* const* places; //!< [own lines]
    row_findings const* found;
  };
  template <int Row>
  [[nodiscard]] static constexpr row_view view_of() {
    using own = row<Row>;
    return {{own::order.passes,
             own::value.inputs,
             engines ? own::value.others : nullptr,
             static_cast<entry_number>(own::count)},
            own::pointers.of,
            &own::value.found};
  }
  static constexpr auto all = each<rows>([](auto row) { return view_of<row.value>(); });

  struct joined {
    array_of<place_code const*, line_count> places;
    array_of<place_row, rows> rows_of;
    report first;
  };
  static constexpr joined value = [] {
    joined result{};
    for (int line = 0; line < line_count; ++line) // the last row of a device knows all
      result.places[line] =
        all.of[rows - over.extents.devices + table.holders[line]].places[table.own[line]];
    int entered = 0;
    for (int number = 0; number < rows; ++number) {
      result.rows_of[number] = all.of[number].row;
      entered += all.of[number].found->entered;
      if (result.first)
        result.first = all.of[number].found->first;
    }
    place_map const entered_map{over, table.holders, result.places};
    if (result.first && entered != wanted_lines(over))
      result.first = find_missing(entered_map);
    if (result.first && over.declared->has_choices)
      result.first = check_sets(entered_map, result.rows_of);
    if (result.first && over.declared->has_needs)
      result.first = check_needs(entered_map, result.rows_of);
    return result;
  }();
  static constexpr place_map map{over, table.holders, value.places};
};

//! The times of the passes, some of them per constant.
template <class Order, class Cost>
struct static_simulation {
  using places = static_places<Order>;
  static constexpr int rows = places::rows;
  static constexpr entry_number room = part_passes / rows + 2; // a composite pass needs two
  static constexpr double const* link_times = [] {
    double const* result = nullptr;
    if constexpr (requires { Cost::value.links(); }) {
      auto const links = checked_links(Cost::value, places::over.extents.devices);
      result = links.empty() ? nullptr : links.data();
    }
    return result;
  }();
  static constexpr bool plain = places::plain && link_times == nullptr;

  struct row_times {
    array_of<double, static_cast<int>(room)> starts;
    array_of<double, static_cast<int>(room)> ends;
  };
  struct times {
    array_of<entry_number, rows> first;
    array_of<entry_number, rows> next;
    array_of<double, rows> free_from;
    array_of<row_times, rows> rows_of;
    bool moved;
    bool done;
  };
  [[nodiscard]] static constexpr times run(times const* before, timed_part const* earlier) {
    times own{};
    array_of<double*, rows> starts{};
    array_of<double*, rows> ends{};
    array_of<int, rows> waits_for_row{};
    array_of<entry_number, rows> waits_for{};
    for (int row = 0; row < rows; ++row) {
      starts[row] = own.rows_of[row].starts;
      ends[row] = own.rows_of[row].ends;
      if (before == nullptr)
        continue;
      own.first[row] = own.next[row] = before->next[row];
      own.free_from[row] = before->free_from[row];
    }
    simulation state{places::map,
                     places::value.rows_of,
                     {own.first, starts, ends, earlier},
                     starts,
                     ends,
                     own.next,
                     own.free_from,
                     waits_for_row,
                     waits_for,
                     Cost::value.latency(),
                     {},
                     room,
                     link_times};
    advance<plain>(state, Cost::value);
    own.done = true;
    for (int row = 0; row < rows; ++row) {
      own.moved = own.moved || own.next[row] != own.first[row];
      own.done = own.done && own.next[row] == places::value.rows_of[row].count;
    }
    return own;
  }

  struct time_pointers {
    array_of<double const*, rows> starts;
    array_of<double const*, rows> ends;
  };
  [[nodiscard]] static constexpr time_pointers pointers_to(times const& part) {
    time_pointers result{};
    for (int row = 0; row < rows; ++row) {
      result.starts[row] = part.rows_of[row].starts;
      result.ends[row] = part.rows_of[row].ends;
    }
    return result;
  }
  template <int Number>
  struct part {
    [[nodiscard]] static constexpr times const* times_before() {
      if constexpr (Number > 0)
        return &part<Number - 1>::value;
      else
        return nullptr;
    }
    [[nodiscard]] static constexpr timed_part const* view_before() {
      if constexpr (Number > 0)
        return &part<Number - 1>::view;
      else
        return nullptr;
    }
    static constexpr times value = run(times_before(), view_before());
    static constexpr time_pointers pointers = pointers_to(value);
    static constexpr timed_part view{value.first, pointers.starts, pointers.ends, view_before()};
  };

  //! Parts until all passes have run, or none can run any more.
  template <int Number = 0>
  [[nodiscard]] static constexpr int count_parts() {
    if constexpr (part<Number>::value.done || !part<Number>::value.moved)
      return Number + 1;
    else
      return count_parts<Number + 1>();
  }
  static constexpr int parts = count_parts();

  struct part_view {
    times const* value;
    timed_part const* view;
  };
  static constexpr auto all = each<parts>([](auto number) {
    using own = part<number.value>;
    return part_view{&own::value, &own::view};
  });

  //! The verdict on the times of one part.
  [[nodiscard]] static constexpr report check(int number) {
    for (int row = 0; row < rows; ++row) {
      report const verdict =
        check_times<plain>(places::map,
                           places::value.rows_of[row],
                           *all.of[number].view,
                           {Cost::value.latency(), {}, link_times},
                           row,
                           all.of[number].value->next[row],
                           number > 0 ? all.of[number - 1].value->free_from[row] : 0);
      if (!verdict)
        return verdict;
    }
    return {};
  }
  template <int Number>
  static constexpr report checked = check(Number);
  //! The verdict on all times.
  [[nodiscard]] static constexpr report verdict() {
    if constexpr (part<parts - 1>::value.done) {
      auto const verdicts = each<parts>([](auto number) { return checked<number.value>; });
      report first;
      for (report const& found : verdicts.of)
        if (!found && (first || found.device < first.device))
          first = found;
      return first;
    } else {
      times const& last = part<parts - 1>::value;
      int row = 0;
      while (last.next[row] == places::value.rows_of[row].count)
        ++row;
      entry_number const entry = last.next[row];
      return {rule::waits_for_ever,
              row % places::over.extents.devices,
              static_cast<int>(entry),
              places::value.rows_of[row].passes[entry],
              {}};
    }
  }
};

//! The verdict on the memory that an order takes, a constant per device.
template <class Order, int MemoryLimit>
struct static_memory {
  static constexpr int devices = Order::extents.devices;

  template <int Device>
  static constexpr report
    checked = check_memory(effect_on(*Order::over.declared, slot_class::activation),
                           Order::rows.of[Device]->passes,
                           static_cast<entry_number>(Order::rows.of[Device]->count),
                           Device,
                           MemoryLimit);
  static constexpr report value =
    first_failing(each<devices>([](auto device) { return checked<device.value>; }));
};

//! Order and times in the flat arrays of a `timetable_view`.
template <class Order, class Cost>
struct static_arrays {
  using simulation_of = static_simulation<Order, Cost>;
  static constexpr int rows = Order::row_total;
  static constexpr int total = Order::total;

  struct flat_passes {
    array_of<pass, total> values;
    array_of<int, rows + 1> offsets;
  };
  static constexpr flat_passes order = [] {
    flat_passes result{};
    int at = 0;
    for (int row = 0; row < rows; ++row) {
      pass const* const passes = Order::rows.of[row]->passes;
      int const count = Order::rows.of[row]->count;
      for (int entry = 0; entry < count; ++entry)
        result.values[at + entry] = passes[entry];
      at += count;
      result.offsets[row + 1] = at;
    }
    return result;
  }();

  struct flat_times {
    array_of<double, total> values;
  };
  //! @param which the pointers to starts or to ends of a part
  [[nodiscard]] static constexpr flat_times join(double const* const* timed_part::*which) {
    flat_times result{};
    for (int row = 0; row < rows; ++row) {
      int at = order.offsets[row];
      for (int number = 0; number < simulation_of::parts; ++number) {
        auto const& part = *simulation_of::all.of[number].value;
        double const* const values = (simulation_of::all.of[number].view->*which)[row];
        int const count = static_cast<int>(part.next[row] - part.first[row]);
        for (int i = 0; i < count; ++i)
          result.values[at + i] = values[i];
        at += count;
      }
      for (; at < order.offsets[row + 1]; ++at)
        result.values[at] = never;
    }
    return result;
  }
  static constexpr flat_times starts = join(&timed_part::starts);
  static constexpr flat_times ends = join(&timed_part::ends);
};

} // namespace detail
} // namespace pipelining::inline v0_2
