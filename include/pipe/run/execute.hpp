// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The loop that every executor runs. Header for pipelining::execute.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <concepts>
#include <cstddef>
#include <span>

namespace pipelining::inline v0_1 {

//! @brief What the loop asks of a device and its transport.
//!
//! `wait_for(item, stream)` orders what comes next on the stream after an item of this device; it
//! may block or not. `run(index, item)` runs or enqueues a pass. `post(first, items)` posts the
//! messages of one group together. `finish()` returns when everything has completed.
template <class Device>
concept execution_device =
  requires(Device& device, int index, item const& step, std::span<item const> group) {
  device.wait_for(index, step);
  device.run(index, step);
  device.post(index, group);
  device.finish();
};

//! @brief Runs the program of one device, once. Decides nothing: order, groups, slots and waits are
//! the plan's.
//!
//! @throws what the device throws.
//! @complexity O(1) per item, no allocation.
template <execution_device Device>
void execute(plan_view const& work, int device_number, Device& device) {
  std::span<item const> const steps = work.program_of(device_number);
  for (std::size_t i = 0; i < steps.size();) {
    std::size_t end = i + 1;
    if (steps[i].what != operation::run)
      while (end < steps.size() && steps[end].what != operation::run &&
             steps[end].group == steps[i].group)
        ++end;
    for (std::size_t k = i; k < end; ++k)
      for (int const wait : work.waits_of(steps[k]))
        device.wait_for(wait, steps[k]);
    if (steps[i].what == operation::run)
      device.run(static_cast<int>(i), steps[i]);
    else
      device.post(static_cast<int>(i), steps.subspan(i, end - i));
    i = end;
  }
  device.finish();
}

} // namespace pipelining::inline v0_1
