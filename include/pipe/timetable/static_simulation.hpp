// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The simulation and the verification done by the compiler, in as many constant evaluations
//! as it takes.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/timetable/places.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <utility>

namespace pipelining::inline v0_1 {
namespace detail {

//! Entries that one constant evaluation times, of all devices together. Compilers limit the steps
//! of one evaluation (clang: 1,048,576), not their sum, so large timetables go in parts.
inline constexpr int part_passes = 16384;

//! Where the passes stand and what they wait for, one constant per device.
//! @tparam Order a `static_order`
template <class Order>
struct static_places {
  static constexpr shape extents = Order::extents;
  static constexpr int devices = extents.devices;
  static constexpr int line_count = lines(extents);

  struct line_table {
    int holders[line_count];
    int own[line_count]; //!< the number of a line among those of its device
    int most;            //!< lines of one device
  };
  static constexpr line_table table = [] {
    line_table result{};
    int counts[devices]{};
    for (int line = 0; line < line_count; ++line) {
      int const device = holder_of(extents, line);
      result.holders[line] = device;
      result.own[line] = counts[device];
      ++counts[device];
      result.most = counts[device] > result.most ? counts[device] : result.most;
    }
    return result;
  }();

  template <int Device>
  struct row {
    static constexpr auto const& order = *Order::rows.of[Device];
    static constexpr int count = order.count;

    // Structures of arrays, since nvcc 13 loses count in pointers into arrays of arrays.
    struct line_entries {
      entry_number of[units(extents)];
    };
    struct entered {
      line_entries entries[table.most];
      input_line inputs[count + 1];
      row_findings found;
    };
    static constexpr entered value = [] {
      entered result{};
      entry_number* own[line_count]{};
      for (int line = 0; line < line_count; ++line)
        if (table.holders[line] == Device)
          own[line] = result.entries[table.own[line]].of;
      result.found = enter_row({extents, table.holders, own},
                               {order.passes, result.inputs, static_cast<entry_number>(count)},
                               Device,
                               own,
                               result.inputs);
      return result;
    }();

    struct line_pointers {
      entry_number const* of[table.most];
    };
    static constexpr line_pointers pointers = [] {
      line_pointers result{};
      for (int line = 0; line < table.most; ++line)
        result.of[line] = value.entries[line].of;
      return result;
    }();
  };

  struct row_pointers {
    pass const* passes[devices];
    input_line const* inputs[devices];
    entry_number const* const* entries[devices]; //!< [own lines]
    row_findings const* found[devices];
  };
  template <int... Device>
  [[nodiscard]] static constexpr row_pointers collect(std::integer_sequence<int, Device...>) {
    return {{row<Device>::order.passes...},
            {row<Device>::value.inputs...},
            {row<Device>::pointers.of...},
            {&row<Device>::value.found...}};
  }
  static constexpr row_pointers all = collect(std::make_integer_sequence<int, devices>{});

  struct joined {
    entry_number const* entries[line_count];
    place_row rows[devices];
    report first;
  };
  static constexpr joined value = [] {
    joined result{};
    for (int line = 0; line < line_count; ++line)
      result.entries[line] = all.entries[table.holders[line]][table.own[line]];
    int entered = 0;
    for (int device = 0; device < devices; ++device) {
      result.rows[device] = {all.passes[device],
                             all.inputs[device],
                             static_cast<entry_number>(Order::rows.of[device]->count)};
      entered += all.found[device]->entered;
      if (result.first)
        result.first = all.found[device]->first;
    }
    if (result.first && entered != pass_indices(extents))
      result.first = find_missing({extents, table.holders, result.entries});
    return result;
  }();
  static constexpr place_map map{extents, table.holders, value.entries};
};

//! The times of the passes, some of them per constant.
template <class Order, class Cost>
struct static_simulation {
  using places = static_places<Order>;
  static constexpr int devices = places::devices;
  static constexpr entry_number room = part_passes / devices + 2; // a composite pass needs two

  struct row_times {
    double starts[room];
    double ends[room];
  };
  struct times {
    entry_number first[devices];
    entry_number next[devices];
    double free_from[devices];
    row_times rows[devices];
    bool moved;
    bool done;
  };
  [[nodiscard]] static constexpr times run(times const* before, timed_part const* earlier) {
    times own{};
    double* starts[devices]{};
    double* ends[devices]{};
    int waits_for_device[devices]{};
    entry_number waits_for[devices]{};
    for (int device = 0; device < devices; ++device) {
      starts[device] = own.rows[device].starts;
      ends[device] = own.rows[device].ends;
      if (before == nullptr)
        continue;
      own.first[device] = own.next[device] = before->next[device];
      own.free_from[device] = before->free_from[device];
    }
    simulation state{places::map,
                     places::value.rows,
                     {own.first, starts, ends, earlier},
                     starts,
                     ends,
                     own.next,
                     own.free_from,
                     waits_for_device,
                     waits_for,
                     places::extents.chunks,
                     Cost::value.latency(),
                     room};
    advance(state, Cost::value);
    own.done = true;
    for (int device = 0; device < devices; ++device) {
      own.moved = own.moved || own.next[device] != own.first[device];
      own.done = own.done && own.next[device] == places::value.rows[device].count;
    }
    return own;
  }

  struct time_pointers {
    double const* starts[devices];
    double const* ends[devices];
  };
  [[nodiscard]] static constexpr time_pointers pointers_to(times const& part) {
    time_pointers result{};
    for (int device = 0; device < devices; ++device) {
      result.starts[device] = part.rows[device].starts;
      result.ends[device] = part.rows[device].ends;
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

  struct part_pointers {
    times const* values[parts];
    timed_part const* views[parts];
  };
  template <int... Number>
  [[nodiscard]] static constexpr part_pointers collect(std::integer_sequence<int, Number...>) {
    return {{&part<Number>::value...}, {&part<Number>::view...}};
  }
  static constexpr part_pointers all = collect(std::make_integer_sequence<int, parts>{});

  //! The verdict on the times of one part.
  [[nodiscard]] static constexpr report check(int number) {
    times const& part = *all.values[number];
    for (int device = 0; device < devices; ++device) {
      report const verdict =
        check_times(places::map,
                    places::value.rows[device],
                    *all.views[number],
                    Cost::value.latency(),
                    device,
                    part.next[device],
                    number > 0 ? all.values[number - 1]->free_from[device] : 0);
      if (!verdict)
        return verdict;
    }
    return {};
  }
  template <int Number>
  static constexpr report checked = check(Number);
  struct report_list {
    report of[parts];
  };
  template <int... Number>
  [[nodiscard]] static constexpr report first_of(std::integer_sequence<int, Number...>) {
    report_list const list{{checked<Number>...}};
    report first;
    for (report const& verdict : list.of)
      if (!verdict && (first || verdict.device < first.device))
        first = verdict;
    return first;
  }
  //! The verdict on all times.
  [[nodiscard]] static constexpr report verdict() {
    if constexpr (part<parts - 1>::value.done) {
      return first_of(std::make_integer_sequence<int, parts>{});
    } else {
      times const& last = part<parts - 1>::value;
      int device = 0;
      while (last.next[device] == places::value.rows[device].count)
        ++device;
      entry_number const entry = last.next[device];
      return {rule::waits_for_ever,
              device,
              static_cast<int>(entry),
              places::value.rows[device].passes[entry],
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
    checked = check_memory(Order::rows.of[Device]->passes,
                           static_cast<entry_number>(Order::rows.of[Device]->count),
                           Device,
                           MemoryLimit);
  struct report_list {
    report of[devices];
  };
  template <int... Device>
  [[nodiscard]] static constexpr report first_of(std::integer_sequence<int, Device...>) {
    report_list const list{{checked<Device>...}};
    for (report const& verdict : list.of)
      if (!verdict)
        return verdict;
    return {};
  }
  static constexpr report value = first_of(std::make_integer_sequence<int, devices>{});
};

//! Order and times in the flat arrays of a `timetable_view`.
template <class Order, class Cost>
struct static_arrays {
  using simulation_of = static_simulation<Order, Cost>;
  static constexpr int devices = Order::extents.devices;
  static constexpr int total = Order::total;

  struct flat_passes {
    pass values[total];
    int offsets[devices + 1];
  };
  static constexpr flat_passes order = [] {
    flat_passes result{};
    int at = 0;
    for (int device = 0; device < devices; ++device) {
      pass const* const row = Order::rows.of[device]->passes;
      int const count = Order::rows.of[device]->count;
      for (int entry = 0; entry < count; ++entry)
        result.values[at + entry] = row[entry];
      at += count;
      result.offsets[device + 1] = at;
    }
    return result;
  }();

  struct flat_times {
    double values[total];
  };
  //! @param which the pointers to starts or to ends of a part
  [[nodiscard]] static constexpr flat_times join(double const* const* timed_part::*which) {
    flat_times result{};
    for (int device = 0; device < devices; ++device) {
      int at = order.offsets[device];
      for (int number = 0; number < simulation_of::parts; ++number) {
        auto const& part = *simulation_of::all.values[number];
        double const* const values = (simulation_of::all.views[number]->*which)[device];
        int const count = static_cast<int>(part.next[device] - part.first[device]);
        for (int i = 0; i < count; ++i)
          result.values[at + i] = values[i];
        at += count;
      }
      for (; at < order.offsets[device + 1]; ++at)
        result.values[at] = never;
    }
    return result;
  }
  static constexpr flat_times starts = join(&timed_part::starts);
  static constexpr flat_times ends = join(&timed_part::ends);
};

} // namespace detail
} // namespace pipelining::inline v0_1
