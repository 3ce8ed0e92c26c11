// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Orders and timetables, owned and seen. Header for pipelining::timetable_view,
//! device_orders and dynamic_timetable.

#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! Times from pass to pass where one of the two stages is of a group; negative: those of
//! messages.
struct group_times {
  double broadcast = -1; //!< from the end of a pass to each stage of a group
  double reduce = -1;    //!< from the end of the last stage of a group to who reads them

  friend constexpr bool operator==(group_times const&, group_times const&) = default;
};

//! The time from the end of a pass of one stage to the start of one of another that reads
//! what it made.
//! @param message from the device of the one to that of the other: 0 where they are the same
[[nodiscard]] constexpr double transfer_time(
  pipeline_view const& over, group_times const& groups, double message, int from, int to) noexcept {
  if (groups.reduce < 0 && groups.broadcast < 0)
    return message;
  double const together = over.in_group(from) ? groups.reduce
                          : over.in_group(to) ? groups.broadcast
                                              : -1;
  return together >= 0 ? together : message;
}

//! The time of a message from one device to another.
//! @param links times [P x P]; null: all take `latency`
[[nodiscard]] constexpr double
message_time(double const* links, int devices, double latency, int from, int to) noexcept {
  return from == to ? 0 : links == nullptr ? latency : links[from * devices + to];
}

//! The start of a pass that waits for ever.
inline constexpr double never = -1;

} // namespace detail

//! @brief A timetable as functions take it: pointers to flat arrays, row after row.
//!
//! A device has a row for each engine of the flow. Rows 0 ... P - 1 are those of the compute
//! engines, in the order of the devices; further engines follow. Does not own anything; the arrays
//! live in a `dynamic_timetable` or a `static_timetable`. Cheap to copy.
struct timetable_view {
  pipeline_view over{};           //!< the pipeline that it is of
  double latency = 0;             //!< time of a message between two devices
  pass const* passes = nullptr;   //!< [offsets[rows]]
  double const* starts = nullptr; //!< [offsets[rows]], `never` for a pass that waits for ever
  double const* ends = nullptr;   //!< [offsets[rows]]
  int const* offsets =
    nullptr; //!< [rows + 1], row r has the entries offsets[r] ... offsets[r + 1] - 1
  detail::group_times groups{};  //!< times between a group and other stages
  double const* links = nullptr; //!< times of messages [P x P]; null: all take `latency`

  //! Engines of all devices, each with an order of its own.
  [[nodiscard]] constexpr int rows() const noexcept { return over.row_count(); }
  //! Passes of all devices.
  [[nodiscard]] constexpr int size() const noexcept { return offsets[rows()]; }
  //! Passes of one row.
  [[nodiscard]] constexpr int row_size(int row) const noexcept {
    return offsets[row + 1] - offsets[row];
  }

  //! @brief The passes of one row, in order. Row d is that of the compute engine of device d.
  [[nodiscard]] constexpr std::span<pass const> row(int row) const noexcept {
    return {passes + offsets[row], static_cast<std::size_t>(row_size(row))};
  }
  //! The time of a message from one device to another.
  [[nodiscard]] constexpr double message_time(int from, int to) const noexcept {
    return detail::message_time(links, over.extents.devices, latency, from, to);
  }
};

//! @brief The device that runs `what` in a timetable.
[[nodiscard]] constexpr int device_of(timetable_view const& table, pass const& what) noexcept {
  return device_of(table.over, what);
}
//! @brief The device that holds `stage` for `microbatch` in a timetable.
[[nodiscard]] constexpr int
device_of(timetable_view const& table, int stage, int microbatch = 0) noexcept {
  return device_of(table.over, stage, microbatch);
}

//! @brief The order of passes on every device, not timed yet; `never` stands nowhere in it.
struct device_orders {
  pipeline over{};            //!< the pipeline that they are of
  std::vector<pass> passes{}; //!< row after row
  std::vector<int> offsets{}; //!< [rows + 1]
};

//! @brief A timetable whose extents are known at run time. Owns its arrays.
struct dynamic_timetable {
  pipeline over{};              //!< the pipeline that it is of
  double latency = 0;           //!< time of a message
  std::vector<pass> passes{};   //!< row after row, each in its order
  std::vector<double> starts{}; //!< of every pass
  std::vector<double> ends{};   //!< of every pass
  std::vector<int> offsets{};   //!< as in the view
  detail::group_times groups{}; //!< times between a group and other stages
  std::vector<double> links{};  //!< times of messages [P x P]; empty: all take `latency`

  [[nodiscard]] timetable_view view() const noexcept {
    return {.over = over,
            .latency = latency,
            .passes = passes.data(),
            .starts = starts.data(),
            .ends = ends.data(),
            .offsets = offsets.data(),
            .groups = groups,
            .links = links.empty() ? nullptr : links.data()};
  }
  // NOLINTNEXTLINE(google-explicit-constructor): owning to view
  operator timetable_view() const noexcept { return view(); }
};

} // namespace pipelining::inline v0_3
