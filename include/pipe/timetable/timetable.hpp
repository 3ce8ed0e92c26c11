// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A timetable: per device the passes in order, with start and end. Header for
//! pipelining::timetable_view and
//!        pipelining::dynamic_timetable.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief The start of a pass that waits for ever.
inline constexpr double never = -1;

//! @brief What every function that looks at a timetable takes: pointers to flat arrays, device
//! after device.
//!
//! Does not own anything; the arrays live in a `dynamic_timetable` or a `static_timetable`. Cheap
//! to copy.
struct timetable_view {
  shape extents;
  double latency = 0;             //!< time of a message between two devices
  pass const* passes = nullptr;   //!< [offsets[P]]
  double const* starts = nullptr; //!< [offsets[P]], `never` for a pass that waits for ever
  double const* ends = nullptr;   //!< [offsets[P]]
  int const* offsets =
    nullptr; //!< [P + 1], device d has the entries offsets[d] ... offsets[d + 1] - 1

  [[nodiscard]] constexpr int size() const noexcept { return offsets[extents.devices]; }
  [[nodiscard]] constexpr int row_size(int device) const noexcept {
    return offsets[device + 1] - offsets[device];
  }

  //! @brief The passes of one device, in the order in which it runs them.
  [[nodiscard]] constexpr std::span<pass const> row(int device) const noexcept {
    return {passes + offsets[device], static_cast<std::size_t>(row_size(device))};
  }
};

//! @brief The order of passes on every device, not timed yet; `never` stands nowhere in it.
struct device_orders {
  shape extents;
  std::vector<pass> passes;                  //!< device after device
  std::vector<int> offsets;                  //!< [P + 1]
  std::vector<std::uint16_t> custom_devices; //!< the table of a custom placement, else empty
};

//! @brief A timetable whose extents are known at run time. Owns its arrays.
struct dynamic_timetable {
  shape extents;
  double latency = 0;
  std::vector<pass> passes;
  std::vector<double> starts;
  std::vector<double> ends;
  std::vector<int> offsets;
  std::vector<std::uint16_t> custom_devices;

  [[nodiscard]] timetable_view view() const noexcept {
    timetable_view result{
      extents, latency, passes.data(), starts.data(), ends.data(), offsets.data()};
    if (extents.where == placement::custom)
      result.extents.custom_devices = custom_devices.data();
    return result;
  }
  operator timetable_view() const noexcept {
    return view();
  } // NOLINT(google-explicit-constructor): owning to view
};

} // namespace pipelining::inline v0_1
