// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The circle in which passes of a timetable wait for each other. Header for
//! pipelining::describe of a timetable's verdict.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! A pass that never starts, and one that it waits for, as entries of the timetable.
struct stuck_pass {
  int entry; //!< the first of its row that never starts, or the other half of its pair
  int row;   //!< of `entry`
  int other; //!< waited for
  int to;    //!< the row of `other`
};

//! Waits of the first pass of each row that never starts, a list for each row.
[[nodiscard]] inline std::vector<std::vector<stuck_pass>> stuck_passes(timetable_view table) {
  pipeline_view const& over = table.over;
  entered_rows const entered(over, table.passes, table.offsets);
  std::vector<std::vector<stuck_pass>> result(static_cast<std::size_t>(table.rows()));
  for (int row = 0; row < table.rows(); ++row) {
    int const end = table.offsets[row + 1];
    int head = table.offsets[row];
    while (head < end && table.starts[head] >= 0)
      ++head;
    for (int entry = head; entry < end && (entry == head || table.passes[entry].overlapped);
         ++entry) {
      pass const& what = table.passes[entry];
      dependency_list const needed = dependencies(over, what);
      for (int k = 0; k < needed.count; ++k) {
        dependency const from = needed[k];
        place_code const at = entered.map().places[from.line][from.unit];
        int const to = entered.map().holders[from.line] +
                       static_cast<int>(at >> place_bits) * over.extents.devices;
        int const other = table.offsets[to] + static_cast<int>(at & entry_mask) - 1;
        if (at != 0 && !(table.starts[other] >= 0))
          result[static_cast<std::size_t>(row)].push_back({entry, row, other, to});
      }
    }
  }
  return result;
}

//! The shortest circle of rows, each of which waits for the next; empty where there is none.
//! @complexity O(rows^2)
[[nodiscard]] inline std::vector<stuck_pass> shortest_circle(timetable_view table) {
  std::vector<std::vector<stuck_pass>> const waits = stuck_passes(table);
  std::vector<stuck_pass> shortest;
  for (int first = 0; first < table.rows(); ++first) {
    std::vector<stuck_pass const*> came(waits.size()); // over which wait a row was reached
    std::vector<int> reached{first};
    for (std::size_t i = 0; i < reached.size() && came[static_cast<std::size_t>(first)] == nullptr;
         ++i)
      for (stuck_pass const& each : waits[static_cast<std::size_t>(reached[i])])
        if (stuck_pass const*& of = came[static_cast<std::size_t>(each.to)]; of == nullptr) {
          of = &each;
          reached.push_back(each.to);
        }
    std::vector<stuck_pass> circle;
    for (int row = first; came[static_cast<std::size_t>(first)] != nullptr;) {
      circle.insert(circle.begin(), *came[static_cast<std::size_t>(row)]);
      row = circle.front().row;
      if (row == first)
        break;
    }
    if (!circle.empty() && (shortest.empty() || circle.size() < shortest.size()))
      shortest = circle;
  }
  return shortest;
}

} // namespace detail

//! @brief A verdict as one sentence that names the rule, the device and the passes; for passes that
//! wait for ever, the shortest circle of them.
[[nodiscard]] inline std::string describe(report const& verdict, timetable_view table) {
  std::vector<detail::stuck_pass> circle;
  if (verdict.broken == report::rule::waits_for_ever)
    circle = detail::shortest_circle(table);
  if (circle.empty())
    return describe(verdict, table.over);
  auto const name = [&](int row, int entry) {
    return "device " + std::to_string(row % table.over.extents.devices) + ", entry " +
           std::to_string(entry - table.offsets[row]) + ": " +
           describe(table.passes[entry], table.over);
  };
  std::string text = std::string("timetable: ") + detail::sentence(verdict.broken);
  for (detail::stuck_pass const& each : circle) {
    text += &each == &circle.front() ? " (" : "; ";
    text += name(each.row, each.entry) + ", waits for " + name(each.to, each.other);
  }
  return text + ")";
}

} // namespace pipelining::inline v0_3
