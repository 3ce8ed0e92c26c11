// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B with split backward passes, as far as devices have room.

#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/simulate.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace support {

//! @brief 1F1B whose forward passes run ahead as far as the room of a device and of those before
//! it.
//! @param limits [P] microbatches that each device may hold
pipelining::dynamic_timetable capped_1f1b(pipelining::pipeline_size size,
                                          std::vector<int> const& limits,
                                          pipelining::cost_model auto const& cost) {
  using pipelining::pass_kind, pipelining::row_writer;
  auto const [devices, microbatches] = size;
  pipelining::device_orders orders{
    {.extents = {.devices = devices, .microbatches = microbatches}}, {}, {0}};
  int ahead = microbatches;
  for (int device = 0; device < devices; ++device) {
    ahead = std::min({ahead, limits[static_cast<std::size_t>(device)], devices - device});
    for (int i = 0; i < microbatches + ahead - 1; ++i) {
      if (i < microbatches)
        orders.passes.push_back(row_writer::make(pass_kind::forward, device, i));
      if (int const back = i - ahead + 1; back >= 0)
        for (pass_kind const kind : {pass_kind::backward_input, pass_kind::backward_weight})
          orders.passes.push_back(row_writer::make(kind, device, back));
    }
    orders.offsets.push_back(static_cast<int>(orders.passes.size()));
  }
  return pipelining::simulate(std::move(orders), cost);
}

} // namespace support
