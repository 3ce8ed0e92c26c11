// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The rules that every timetable keeps. Header for pipelining::verify.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/resolve.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/peaks.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/workers.hpp>

#include <limits>

namespace pipelining::inline v0_3 {

namespace detail {

//! The `pass_index` of what an entry waits for and starts too early for, before it has ended and
//! arrived: of those passes the first that stands after it in its own row, else the first that is
//! late or that nobody makes. `nothing_before` where all are there.
[[nodiscard]] constexpr int
blamed_for(entered_rows const& map, timetable_view const& table, int row, int entry) noexcept {
  pass const what = table.passes[entry];
  int const device = row % map.over.extents.devices;
  int const behind = what.overlapped ? entry - 1 : entry;
  dependency_list const needed(map.over, what);
  int blamed = nothing_before;
  bool in_row = false;
  for (int k = needed.count - 1; k >= 0; --k) {
    dependency const from = needed[k];
    int const maker = map.maker_of(from);
    bool const stands_behind = maker >= behind && maker < table.offsets[row + 1];
    double const ended = maker == nothing_before ? never : table.ends[maker];
    double const arrives = ended + map.transfer(table, from, device, what.stage);
    if (stands_behind || (!in_row && !(ended >= 0 && table.starts[entry] >= arrives)))
      blamed = k;
    in_row = in_row || stands_behind;
  }
  return blamed == nothing_before ? blamed : needed.index(blamed);
}

//! No limit on the activations of a device.
inline constexpr int unlimited = 0x7fffffff;
inline constexpr double longest_time = std::numeric_limits<double>::max();

//! Checks times and dependencies of one row.
constexpr report
check_times(entered_rows const& map, timetable_view const& table, int row) noexcept {
  int const device = row % map.over.extents.devices;
  int const first = table.offsets[row];
  pass const* const passes = table.passes;
  int const* const inputs = map.inputs;
  double const* const starts = table.starts;
  double const* const ends = table.ends;
  double free_from = 0;
  for (int i = first; i < table.offsets[row + 1]; ++i) {
    pass const what = passes[i];
    double const start = starts[i];
    double const end = ends[i];
    // Asked this way round so that no comparison with a NaN passes for a good one.
    if (!(start >= 0 && end >= start && end <= longest_time))
      return {report::rule::waits_for_ever, device, i - first, what, {}};
    if (what.overlapped ? i == first || start != starts[i - 1] || end != ends[i - 1]
                        : start < free_from)
      return {report::rule::overlaps, device, i - first, what, i > first ? passes[i - 1] : pass{}};
    free_from = end;
    int const input = inputs[i];
    bool there = input == nothing_before; // the rest stands before it in its own row
    if (int const maker =
          input < 0 ? nothing_before : map.places.data[input][map.over.unit_of(what)];
        maker != nothing_before)
      there = ends[maker] >= 0 &&
              start >= ends[maker] + table.message_time(map.holders.data[input], device);
    if (int const blamed = there ? nothing_before : blamed_for(map, table, row, i);
        blamed != nothing_before)
      return {report::rule::before_dependency, device, i - first, what, pass_at(map.over, blamed)};
  }
  return {};
}

//! True when the stages of which a unit reads a datum have made it, not only another of its row.
//! @param found the kinds of every unit of every stage
[[nodiscard]] constexpr bool reads_what_is_made(pipeline_view const& over,
                                                data_users const& users,
                                                flow_set const* found,
                                                int at) {
  flow const& declared = *over.declared;
  int const unit_count = over.units();
  for (int kind = 0; kind < declared.kind_count; ++kind)
    for (int i = 0; holds(found[at], kind) && i < declared.kinds[kind].effect_count; ++i) {
      effect const& one = declared.kinds[kind].effects[i];
      if (one.stage == of_stage::own || users.fill_row(declared, one.of))
        continue;
      pass const what = pass_at(over, at);
      for (int k = 0; k < neighbours(over, what, step_to(one.stage)); ++k) {
        stage_neighbour const from = neighbour(over, what, step_to(one.stage), k);
        int const maker = from.stage * unit_count + at % unit_count + from.chunk - what.chunk;
        if ((found[maker] & users.of[one.of].makers) == 0)
          return false;
      }
    }
  return true;
}

//! Every unit has kinds of passes that go together.
constexpr report check_sets(entered_rows const& map) {
  pipeline_view const& over = map.over;
  int const count = over.extents.stages() * over.units();
  owned<flow_set> const found(count, 0);
  for (int entry = 0; entry < map.offsets[over.row_count()]; ++entry) {
    pass const what = map.passes[entry];
    flow_set& kinds = found[what.stage * over.units() + over.unit_of(what)];
    kinds |= only(index_of(what.kind));
  }
  flow_set good = 0; // that of the unit before, as a rule
  data_users const users(*over.declared);
  for (int i = 0; i < count; ++i) {
    bool const still = goes_forward_only(over, i / over.units());
    bool const fits = still || found[i] == good || uses_all_data(users, found[i]);
    if (!fits || (over.declared->reads_in_groups && !reads_what_is_made(over, users, found, i))) {
      pass const what = pass_at(over, i);
      return {report::rule::wrong_kinds, device_of(over, what), 0, what, {}};
    }
    good = still ? good : found[i];
  }
  return {};
}

//! Every pass stands where what it needs of its stage is there.
constexpr report check_needs(entered_rows const& map) {
  for (int device = 0; device < map.over.extents.devices; ++device) {
    needed_data there(map.over);
    int const first = map.offsets[device];
    for (int i = first; i < map.offsets[device + 1]; ++i)
      if (pass const what = map.passes[i]; !there.enter(what))
        return {report::rule::not_there, device, i - first, what, {}};
  }
  return {};
}

//! The first error in the order of all rows, whatever the times are.
[[nodiscard]] constexpr report check_order(entered_rows const& map) {
  report result = map.found.first;
  if (result && map.found.entered != wanted_lines(map.over))
    result = find_missing(map);
  if (result && map.over.declared->has_choices)
    result = check_sets(map);
  if (result && map.over.declared->has_needs)
    result = check_needs(map);
  return result;
}

//! Checks that no device holds more activations than the limit.
[[nodiscard]] constexpr report check_memory(timetable_view const& table, int memory_limit) {
  report result;
  if (memory_limit == unlimited)
    return result;
  pool_effect const memory(*table.over.declared, slot_class::activation);
  for (int device = 0; device < table.over.extents.devices && result; ++device) {
    int held = 0;
    walk_device(table, device, [&](row_walk const& at) {
      for (int i = at.first; i < at.last; ++i) {
        held += memory.change(table.over, table.passes[i], at.running);
        if (result && held > memory_limit)
          result = {report::rule::over_memory,
                    device,
                    i - table.offsets[at.row],
                    table.passes[i],
                    {},
                    held};
      }
    });
  }
  return result;
}

//! The first error in the times of all rows.
template <worker_group Workers>
[[nodiscard]] constexpr report
check_all_times(timetable_view const& table, entered_rows const& entered, Workers const& by) {
  worker_parts const parts(table.rows(), by.count());
  owned<report> const found(parts.count, {});
  by.run(parts.count, [&](int part) {
    for (int row = parts.first(part); row < parts.first(part + 1) && found[part]; ++row)
      found[part] = check_times(entered, table, row);
  });
  int part = 0;
  while (part + 1 < parts.count && found[part])
    ++part;
  return found[part];
}

//! `verify` for rows that have been entered.
template <worker_group Workers = one_worker>
[[nodiscard]] constexpr report verify_entered(timetable_view const& table,
                                              entered_rows const& entered,
                                              int memory_limit,
                                              Workers const& by = {}) {
  report result = check_order(entered);
  if (result)
    result = check_all_times(table, entered, by);
  return result ? check_memory(table, memory_limit) : result;
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
//! @param by who does it; see `thread_workers`.
//! @complexity O(n) time and memory for n passes.
template <detail::worker_group Workers = detail::one_worker>
[[nodiscard]] constexpr report
verify(timetable_view table, int memory_limit = detail::unlimited, Workers const& by = {}) {
  detail::entered_rows const entered(table.over, table.passes, table.offsets, by);
  return detail::verify_entered(table, entered, memory_limit, by);
}

} // namespace pipelining::inline v0_3
