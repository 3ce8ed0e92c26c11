// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Zero bubble within the bytes of every device. Header for pipelining::ZeroBubbleWithin.

#include <pipe/flow/shape.hpp>
#include <pipe/planner/model/stage_memory.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief `ZeroBubbleAuto` with a limit in bytes for every device, and the bytes of every stage.
//!
//! A device holds as many microbatches as its room has place for, next to what is always there.
//! The order is the one of `ZeroBubbleAuto` where all devices have place for as many. The makespan
//! is never longer than that of 1F1B whose forward passes run ahead as far as the limits of a
//! device and of those before it allow. Run time only.
//! @throws std::invalid_argument (generate) for other numbers of devices or stages, or a device
//! that has no room for one microbatch.
//! @source own derivation, see docs/explanation/zero_bubble_auto.md.
struct ZeroBubbleWithin {
  stage_memory memory;      //!< bytes of the stages, one on each device
  std::vector<double> room; //!< [P] bytes that each device may hold

  //! One stage on each device.
  [[nodiscard]] static shape arrange(int devices, int microbatches) {
    return {.devices = devices, .microbatches = microbatches};
  }
  //! Writes the order of every device. @param rows [P]
  void generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    auto const count = static_cast<std::size_t>(extents.devices);
    auto const fits = [count](std::vector<double> const& list, bool may_be_empty) {
      return list.size() == count || (may_be_empty && list.empty());
    };
    if (!fits(room, false) || !fits(memory.activation, false) || !fits(memory.weight_input, true) ||
        !fits(memory.resident, true))
      throw std::invalid_argument("ZeroBubbleWithin: give room and bytes for each of the " +
                                  std::to_string(count) + " devices");
    std::vector<double> limits;
    std::vector<double> shares;
    for (std::size_t d = 0; d < count; ++d) {
      double const left = room[d] - (memory.resident.empty() ? 0 : memory.resident[d]);
      double const all = memory.activation[d];
      double const most = extents.microbatches;
      if (!(all >= 0) || !(left >= all))
        throw std::invalid_argument("ZeroBubbleWithin: device " + std::to_string(d) +
                                    " has no room for one microbatch");
      limits.push_back(all > 0 ? std::min(most, left / all) : most);
      shares.push_back(memory.weight_input.empty() || !(all > 0) ? 1
                                                                 : memory.weight_input[d] / all);
      if (!(shares.back() >= 0 && shares.back() <= 1))
        throw std::invalid_argument("ZeroBubbleWithin: what waits for backward_weight is a part of "
                                    "the activation, but not on device " +
                                    std::to_string(d));
    }
    detail::write_zero_bubble(
      {extents.devices, extents.microbatches, limits.data(), shares.data(), 0, nullptr},
      cost,
      [](pass const&) { return false; },
      rows);
  }
};

} // namespace pipelining::inline v0_3
