// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The rules that every timetable keeps. Header for pipelining::verify.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/timetable/dependencies.hpp>
#include <pipe/timetable/places.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>

#include <limits>

namespace pipelining::inline v0_1 {

namespace detail {

//! The report on an entry that starts before a pass that it waits for has ended and arrived.
[[nodiscard]] constexpr report starts_too_early(place_map const& map,
                                                place_row const& row,
                                                int device,
                                                entry_number entry) noexcept {
  pass const what = row.passes[entry];
  shape const& extents = map.extents;
  pass_links const links = links_of(pass_extents_of(extents), what);
  int const direction =
    what.microbatch >= first_from_end(extents) ? pass_classes * stages(extents) : 0;
  bool blames_chunk = false;
  if (links.chunk_unit != nothing_before && row.inputs[entry] == links.line + direction) {
    entry_number const neighbour = map.entries[links.line + direction][links.chunk_unit] - 1;
    blames_chunk = neighbour >= (what.overlapped ? entry - 1 : entry);
  }
  int const index = blames_chunk ? links.line * units(extents) + links.chunk_unit
                                 : links.input_line * units(extents) + links.unit;
  return {rule::before_dependency, device, static_cast<int>(entry), what, pass_at(extents, index)};
}

inline constexpr double longest_time = std::numeric_limits<double>::max();

//! Checks times and dependencies of one device, from the first entry of a part to `last`, which is
//! not looked at.
//! @param free_from when the entry before has ended
constexpr report check_times(place_map const& map,
                             place_row const& row,
                             timed_part const& part,
                             double latency,
                             int device,
                             entry_number last,
                             double free_from) noexcept {
  entry_number const base = part.first[device];
  double const* const starts = part.starts[device];
  double const* const ends = part.ends[device];
  for (entry_number i = base; i < last; ++i) {
    pass const what = row.passes[i];
    double const start = starts[i - base];
    double const end = ends[i - base];
    // Asked this way round so that no comparison with a NaN passes for a good one.
    if (!(start >= 0 && end >= start && end <= longest_time))
      return {rule::waits_for_ever, device, static_cast<int>(i), what, {}};
    if (what.overlapped ? i == base || start != starts[i - 1 - base] || end != ends[i - 1 - base]
                        : start < free_from)
      return {
        rule::overlaps, device, static_cast<int>(i), what, i > 0 ? row.passes[i - 1] : pass{}};
    free_from = end;
    int const input = row.inputs[i];
    if (input == nothing_before)
      continue;
    int const source = map.holders[input];
    if (source == device)
      return starts_too_early(map, row, device, i);
    entry_number const wanted =
      map.entries[input][what.microbatch * map.extents.chunks + what.chunk] - 1;
    timed_part const* from = &part;
    while (wanted < from->first[source])
      from = from->before;
    double const arrival = from->ends[source][wanted - from->first[source]];
    if (!(arrival >= 0 && start >= arrival + latency))
      return starts_too_early(map, row, device, i);
  }
  return {};
}

//! Checks that a device never holds more activations than allowed.
constexpr report
check_memory(pass const* row, entry_number count, int device, int memory_limit) noexcept {
  int held = 0;
  for (entry_number i = 0; i < count; ++i) {
    pass const what = row[i];
    if (what.kind == pass_kind::forward) {
      // What the first half of a pair frees is held until both have ended.
      int const still = what.overlapped && frees_activation(row[i - 1].kind) ? 1 : 0;
      if (++held + still > memory_limit)
        return {rule::over_memory, device, static_cast<int>(i), what, {}, held + still};
    } else if (what.kind != pass_kind::backward_input) {
      --held;
    }
  }
  return {};
}

//! `verify` for rows that have been entered.
[[nodiscard]] constexpr report
verify_entered(timetable_view const& table, entered_rows const& entered, int memory_limit) {
  int const devices = table.extents.devices;
  whole_part<double const> const part(table.starts, table.ends, table.offsets, devices);
  report result = entered.first();
  for (int device = 0; device < devices && result; ++device) {
    place_row const& row = entered.rows()[device];
    result = check_times(entered.map(), row, part.view(), table.latency, device, row.count, 0);
    if (result && memory_limit != unlimited)
      result = check_memory(row.passes, row.count, device, memory_limit);
  }
  return result;
}

} // namespace detail

//! @brief Checks every rule of a timetable and returns the first that is broken.
//!
//! The rules: every unit has, on every stage, one forward and either one backward or both of its
//! halves, each on the device that holds the stage; passes of a device do not overlap, but for
//! composite pairs; a pass starts when all that it waits for has ended and, from another device,
//! arrived; no device holds more activations than allowed.
//!
//! @param memory_limit the most chunks of activations that a device may hold.
//! @complexity O(n) time and memory for n passes.
[[nodiscard]] constexpr report verify(timetable_view table, int memory_limit = unlimited) {
  detail::entered_rows const entered(table.extents, table.passes, table.offsets);
  return detail::verify_entered(table, entered, memory_limit);
}

} // namespace pipelining::inline v0_1
