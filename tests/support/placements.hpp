// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Schedules whose stages lie on devices in ways of their own.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>

namespace support {

//! @brief The first and the last stage on device 0, with the two ends of a tied weight; the stages
//! between them on the other devices, one each.
struct ends_together {
  [[nodiscard]] constexpr pipelining::shape arrange(int devices, int microbatches) const {
    return {.devices = devices,
            .microbatches = microbatches,
            .where = pipelining::placement::custom,
            .extra_stages = 1};
  }
  [[nodiscard]] constexpr int device_of(pipelining::shape const& extents, int stage, int) const {
    return stage % extents.devices;
  }
  constexpr void
  order(pipelining::shape const& extents, int device, pipelining::row_writer& row) const {
    int const last = extents.devices;
    int const count = extents.microbatches;
    int const ahead = std::min(count, last - device + 1);
    int forward = 0;
    for (; forward < ahead; ++forward)
      row.forward(device, forward);
    if (device > 0) {
      for (int backward = 0; backward < count; ++backward) {
        row.backward(device, backward);
        if (forward < count)
          row.forward(device, forward++);
      }
      return;
    }
    int backward = 0; // of the first stage
    for (int m = 0; m < count; ++m) {
      row.forward(last, m);
      row.backward(last, m);
      if (m < last - 1)
        continue;
      row.backward(0, backward++);
      if (forward < count)
        row.forward(0, forward++);
    }
    for (; backward < count; ++backward)
      row.backward(0, backward);
  }
};

//! @brief Fewer stages than devices: one on device 0, one on all others in turn.
//! @pre 2 devices at least
struct second_in_turn {
  [[nodiscard]] constexpr pipelining::shape arrange(int devices, int microbatches) const {
    return {.devices = devices,
            .microbatches = microbatches,
            .where = pipelining::placement::custom,
            .custom_routes = devices - 1,
            .extra_stages = 2 - devices};
  }
  [[nodiscard]] constexpr int device_of(pipelining::shape const&, int stage, int route) const {
    return stage == 0 ? 0 : 1 + route;
  }
  constexpr void
  order(pipelining::shape const& extents, int device, pipelining::row_writer& row) const {
    int const count = extents.microbatches;
    if (device > 0) {
      for (int m = device - 1; m < count; m += extents.devices - 1) {
        row.forward(1, m);
        row.backward(1, m);
      }
      return;
    }
    int forward = 0;
    for (; forward < std::min(4, count); ++forward)
      row.forward(0, forward);
    for (int backward = 0; backward < count; ++backward) {
      row.backward(0, backward);
      if (forward < count)
        row.forward(0, forward++);
    }
  }
};

} // namespace support
