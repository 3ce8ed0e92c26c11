// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How good a timetable is. Header for span, makespan, bubble and peak activations.

#include <pipe/core/pass.hpp>
#include <pipe/core/ratio.hpp>
#include <pipe/timetable/timetable.hpp>

#include <span>

namespace pipelining::inline v0_1 {

//! @brief When the first pass of a device starts.
[[nodiscard]] constexpr double first_start(timetable_view table, int device) noexcept {
  return table.row_size(device) == 0 ? 0 : table.starts[table.offsets[device]];
}

//! @brief When the last pass of a device ends.
[[nodiscard]] constexpr double last_end(timetable_view table, int device) noexcept {
  return table.row_size(device) == 0 ? 0 : table.ends[table.offsets[device + 1] - 1];
}

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
  for (int device = 0; device < table.extents.devices; ++device) {
    double const length = last_end(table, device) - first_start(table, device);
    if (length > longest)
      longest = length;
  }
  return longest;
}

//! @brief The time from the first start on any device to the last end on any device.
[[nodiscard]] constexpr double makespan(timetable_view table) noexcept {
  double first = first_start(table, 0);
  double last = last_end(table, 0);
  for (int device = 1; device < table.extents.devices; ++device) {
    if (first_start(table, device) < first)
      first = first_start(table, device);
    if (last_end(table, device) > last)
      last = last_end(table, device);
  }
  return last - first;
}

//! @brief The share of the span in which the device with the longest span is idle: 1 - busy / span,
//! where busy is the
//!        mean over devices.
[[nodiscard]] constexpr double bubble_rate(timetable_view table) noexcept {
  double sum = 0;
  for (int device = 0; device < table.extents.devices; ++device)
    sum += busy(table, device);
  double const span = span_of(table);
  return span > 0 ? 1 - sum / table.extents.devices / span : 0;
}

//! @brief The most chunks of activations that a device holds at once. A forward pass takes one, at
//! its start;
//!        `backward` or `backward_weight` gives it back, at its end.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr int peak_activation_chunks(timetable_view table, int device) noexcept {
  int live = 0;
  int peak = 0;
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
    if (table.passes[i].kind == pass_kind::forward) {
      ++live;
      // What the first half of a composite pass frees is held until both halves have ended.
      bool const beside_last = table.passes[i].overlapped && i > table.offsets[device] &&
                               frees_activation(table.passes[i - 1].kind);
      int const held = live + (beside_last ? 1 : 0);
      if (held > peak)
        peak = held;
    } else if (frees_activation(table.passes[i].kind)) {
      --live;
    }
  }
  return peak;
}

//! @brief Peak activations of one device in whole microbatches of one stage, for chunks of equal
//! length.
[[nodiscard]] constexpr ratio peak_activations(timetable_view table, int device) noexcept {
  return {peak_activation_chunks(table, device), table.extents.chunks};
}

//! @brief Peak activations of the device that holds the most.
[[nodiscard]] constexpr ratio peak_activations(timetable_view table) noexcept {
  ratio most;
  for (int device = 0; device < table.extents.devices; ++device) {
    ratio const here = peak_activations(table, device);
    if (here > most)
      most = here;
  }
  return most;
}

//! @brief Peak activations of one device in whole microbatches of one stage, for chunks of unequal
//! length.
//! @param shares the share of each chunk in the tokens of its sequence, [C], with sum 1.
[[nodiscard]] constexpr double
peak_activations(timetable_view table, int device, std::span<double const> shares) noexcept {
  double live = 0;
  double peak = 0;
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
    pass const& what = table.passes[i];
    if (what.kind == pass_kind::forward) {
      live += shares[what.chunk];
      bool const beside_last =
        what.overlapped && i > table.offsets[device] && frees_activation(table.passes[i - 1].kind);
      double const held = live + (beside_last ? shares[table.passes[i - 1].chunk] : 0);
      if (held > peak)
        peak = held;
    } else if (frees_activation(what.kind)) {
      live -= shares[what.chunk];
    }
  }
  return peak;
}

} // namespace pipelining::inline v0_1
