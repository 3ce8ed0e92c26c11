// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A timetable as functions look at it: per device the passes in order, with start and end.
//! Header for pipelining::timetable_view.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace pipelining::inline v0_3 {

//! @brief The start of a pass that waits for ever.
inline constexpr double never = -1;

//! @brief What every function that looks at a timetable takes: pointers to flat arrays, row after
//! row.
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
    nullptr;            //!< [rows + 1], row r has the entries offsets[r] ... offsets[r + 1] - 1
  group_times groups{}; //!< times between a group and other stages
  double const* links = nullptr; //!< times of messages [P x P]; null: all take `latency`

  //! Engines of all devices, each with an order of its own.
  [[nodiscard]] constexpr int rows() const noexcept { return row_count(over); }
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

} // namespace pipelining::inline v0_3
