// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How good a timetable is. Header for span, makespan, bubble and peak activations.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/timetable/pool_effect.hpp>
#include <pipe/timetable/timetable.hpp>

#include <compare>
#include <cstdint>
#include <span>

namespace pipelining::inline v0_3 {

//! @brief A fraction kept as it was given; comparisons look at its value, so ratio{2, 4} ==
//! ratio{1, 2}.
//!
//! @pre `denominator` > 0, and both members stay below 2^31 so that the products of a comparison
//! are exact.
struct ratio {
  std::int64_t numerator = 0;   //!< as it was given
  std::int64_t denominator = 1; //!< as it was given, above 0

  friend constexpr bool operator==(ratio a, ratio b) noexcept {
    return a.numerator * b.denominator == b.numerator * a.denominator;
  }
  friend constexpr std::strong_ordering operator<=>(ratio a, ratio b) noexcept {
    return a.numerator * b.denominator <=> b.numerator * a.denominator;
  }
};

//! @brief The nearest double.
[[nodiscard]] constexpr double to_double(ratio r) noexcept {
  return static_cast<double>(r.numerator) / static_cast<double>(r.denominator);
}

namespace detail {

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

//! The most slots of a pool that a device holds at once, in chunks of one stage. A pass
//! takes them at its start and gives them back at its end, as its flow says.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr int
peak_chunks(timetable_view table, int device, slot_class pool) noexcept {
  return detail::peak_of<int>(table, device, pool, [](pass const&) { return 1; });
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
    if (length > longest)
      longest = length;
  }
  return longest;
}

//! @brief The time from the first start on any device to the last end on any device.
[[nodiscard]] constexpr double makespan(timetable_view table) noexcept {
  double first = detail::first_start(table, 0);
  double last = detail::last_end(table, 0);
  for (int device = 1; device < table.over.extents.devices; ++device) {
    if (detail::first_start(table, device) < first)
      first = detail::first_start(table, device);
    if (detail::last_end(table, device) > last)
      last = detail::last_end(table, device);
  }
  return last - first;
}

//! @brief The share of the span in which the device with the longest span is idle: 1 - busy / span,
//! where busy is the
//!        mean over devices.
[[nodiscard]] constexpr double bubble_rate(timetable_view table) noexcept {
  double sum = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    sum += busy(table, device);
  double const span = span_of(table);
  return span > 0 ? 1 - sum / table.over.extents.devices / span : 0;
}

//! @brief The most chunks of activations that a device holds at once. In training, a forward pass
//! takes one and `backward` or `backward_weight` gives it back.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr int peak_activation_chunks(timetable_view table, int device) noexcept {
  return detail::peak_chunks(table, device, slot_class::activation);
}

//! @brief Peak activations of one device in whole microbatches of one stage, for chunks of equal
//! length.
[[nodiscard]] constexpr ratio peak_activations(timetable_view table, int device) noexcept {
  return {peak_activation_chunks(table, device), table.over.extents.chunks};
}

//! @brief Peak activations of the device that holds the most.
[[nodiscard]] constexpr ratio peak_activations(timetable_view table) noexcept {
  ratio most;
  for (int device = 0; device < table.over.extents.devices; ++device) {
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
  return detail::peak_of<double>(table, device, slot_class::activation, [shares](pass const& what) {
    return shares[what.chunk];
  });
}

} // namespace pipelining::inline v0_3
