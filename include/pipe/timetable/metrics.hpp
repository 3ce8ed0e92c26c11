// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Figures of a timetable: times, bubbles, iterations in a row, and the order of sums.
//! Header for pipelining::makespan, bubble_rate, post_validated_period and sums_in_order.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/peaks.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The entry that makes each row of data, by `pass_index`; -1 where a timetable has none.
[[nodiscard]] inline std::vector<int> entries_of(timetable_view const& table) {
  std::vector<int> entries(static_cast<std::size_t>(table.over.pass_indices()), -1);
  for (int i = 0; i < table.size(); ++i)
    for (int const row : table.over.links_of(table.passes[i]).made)
      if (row != kind_links::none)
        entries[static_cast<std::size_t>(pass_index(table.over, table.passes[i], row))] = i;
  return entries;
}

//! The entries that each entry waits for. @complexity O(n) for n entries, O(n P) with groups
[[nodiscard]] inline std::vector<std::vector<int>> makers_of(timetable_view const& table) {
  std::vector<int> const entries = entries_of(table);
  std::vector<std::vector<int>> makers(static_cast<std::size_t>(table.size()));
  for (std::size_t i = 0; i < makers.size(); ++i) {
    dependency_list const needed(table.over, table.passes[i]);
    for (int k = 0; k < needed.count; ++k)
      if (int const maker = entries[static_cast<std::size_t>(needed.index(k))]; maker >= 0)
        makers[i].push_back(maker);
  }
  return makers;
}

//! When the first pass of a device starts.
[[nodiscard]] constexpr double first_start(timetable_view table, int device) noexcept {
  return table.row_size(device) == 0 ? 0 : table.starts[table.offsets[device]];
}

//! When the last pass of a device ends, on whichever engine.
[[nodiscard]] constexpr double last_end(timetable_view table, int device) noexcept {
  double last = 0;
  for (int row = device; row < table.rows(); row += table.over.extents.devices)
    if (table.row_size(row) > 0 && table.ends[table.offsets[row + 1] - 1] > last)
      last = table.ends[table.offsets[row + 1] - 1];
  return last;
}

//! When the first pass of any device starts.
[[nodiscard]] constexpr double first_start(timetable_view table) noexcept {
  double first = first_start(table, 0);
  for (int device = 1; device < table.over.extents.devices; ++device)
    first = first_start(table, device) < first ? first_start(table, device) : first;
  return first;
}

//! When the last pass of any device ends.
[[nodiscard]] constexpr double last_end(timetable_view table) noexcept {
  double last = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    last = last_end(table, device) > last ? last_end(table, device) : last;
  return last;
}

} // namespace detail

//! @brief The time that a device spends in passes; a composite pass counts once.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr double busy(timetable_view table, int device) noexcept {
  double sum = 0;
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i)
    if (!table.passes[i].overlapped)
      sum += table.ends[i] - table.starts[i];
  return sum;
}

//! @brief The longest time that any device is between its first start and its last end. The papers'
//! denominator of the
//!        bubble rate; it presumes no global barrier between iterations.
[[nodiscard]] constexpr double span_of(timetable_view table) noexcept {
  double longest = 0;
  for (int device = 0; device < table.over.extents.devices; ++device) {
    double const length = detail::last_end(table, device) - detail::first_start(table, device);
    longest = length > longest ? length : longest;
  }
  return longest;
}

//! @brief The time from the first start on any device to the last end on any device.
[[nodiscard]] constexpr double makespan(timetable_view table) noexcept {
  return detail::last_end(table) - detail::first_start(table);
}

namespace detail {

//! The share of a time in which devices are idle, as a mean over them.
[[nodiscard]] constexpr double idle_share(timetable_view table, double of) noexcept {
  double sum = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    sum += busy(table, device);
  return of > 0 ? 1 - sum / table.over.extents.devices / of : 0;
}

} // namespace detail

//! @brief The share of the span in which the device with the longest span is idle: 1 - busy / span,
//! where busy is the
//!        mean over devices.
[[nodiscard]] constexpr double bubble_rate(timetable_view table) noexcept {
  return detail::idle_share(table, span_of(table));
}

namespace detail {

//! When a device begins the first pass that cannot run again, on whichever engine.
[[nodiscard]] constexpr double first_final_start(timetable_view table, int device) noexcept {
  double first = last_end(table, device);
  for (int row = device; row < table.rows(); row += table.over.extents.devices)
    for (int i = table.offsets[row]; i < table.offsets[row + 1]; ++i)
      if (table.starts[i] < first && !may_run_again(table.over, device, table.passes[i]))
        first = table.starts[i];
  return first;
}

} // namespace detail

//! @brief The time from the start of one iteration to that of the next, where every device begins
//! the next one when it has ended this one, and has the totals of all devices before the first pass
//! that cannot run again. With a barrier between iterations it is the makespan.
//!
//! No less than the span of the timetable: a device is busy with one iteration at a time. No less
//! than from a device's first such pass to the last end on any device: then the totals are
//! complete. Where every iteration has the times of the table, these bounds are met. n iterations
//! take (n - 1) periods and a makespan. Messages with totals take no time.
//! @complexity O(n S) for n passes.
//! @source own derivation
[[nodiscard]] constexpr double post_validated_period(timetable_view table) noexcept {
  double period = span_of(table);
  double const complete = detail::last_end(table);
  for (int device = 0; device < table.over.extents.devices; ++device)
    if (double const wait = complete - detail::first_final_start(table, device); wait > period)
      period = wait;
  return period;
}

namespace detail {

//! Whether one stage does.
[[nodiscard]] constexpr bool sums_in_order(timetable_view table, int stage) noexcept {
  pass const* last = nullptr;
  int last_row = 0;
  int visits = 0; // of whole weights, each with a sum of its own
  int added = 0;  // in this visit
  for (int row = 0; row < table.rows(); ++row)
    for (pass const& what : table.row(row)) {
      if (what.stage != stage)
        continue;
      if ((*table.over.declared)[what.kind].calls == stage_call::collect_gradients) {
        ++visits;
        added = 0;
      }
      if (!table.over.declared->adds_gradients(what.kind))
        continue;
      bool const follows =
        last == nullptr ||
        (row == last_row && (what.microbatch > last->microbatch ||
                             (what.microbatch == last->microbatch && what.chunk < last->chunk)));
      if (!follows || (++added > 1 && visits > 1))
        return false;
      last = &what;
      last_row = row;
    }
  return true;
}

} // namespace detail

//! @brief Whether every stage adds up its weight gradients in the order of a plain loop:
//! microbatches from the first to the last, and of each the chunks from the last to the first.
//!
//! Then gradients have the bits of that loop, and of every other such timetable. Otherwise they
//! differ by rounding: where a schedule goes back from the last microbatch, where a stage has
//! copies on several devices, each with a sum of its own, and where sharded weights are visited
//! more than once for several microbatches.
//!
//! @complexity O(n S) for n passes.
[[nodiscard]] constexpr bool sums_in_order(timetable_view table) noexcept {
  for (int stage = 0; stage < table.over.extents.stages(); ++stage)
    if (!detail::sums_in_order(table, stage))
      return false;
  return true;
}

} // namespace pipelining::inline v0_3
