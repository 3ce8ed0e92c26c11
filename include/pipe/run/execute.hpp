// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The loop that every executor runs. Header for pipelining::detail::execute.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <concepts>
#include <cstddef>
#include <span>

namespace pipelining::inline v0_3::detail {

//! The calls that the loop makes to a device and its transport.
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

//! `run_together(first, items)`: a device that runs the halves of a composite pass as one.
//! @return false where their stages cannot; the loop runs them in turn then.
template <class Device>
concept composing_device = requires(Device& device, int index, std::span<item const> pair) {
  { device.run_together(index, pair) } -> std::same_as<bool>;
};

//! `begins_again()`: a device that can tell whether a validation has found the optimizer's
//! step of the iteration before wrong.
template <class Device>
concept restarting_device = requires(Device& device) {
  { device.begins_again() } -> std::same_as<bool>;
};

//! Runs one item of a device's program, or one whole group of messages. Decides nothing:
//! order, groups, slots and waits are the plan's. Inlined: the loop around it costs less then.
//!
//! @param steps the program. @param first the item, or the first item of the group.
//! @return the item after it.
//! @throws what the device throws.
//! @complexity O(1) per item, no allocation.
template <execution_device Device>
[[gnu::always_inline]] inline int
execute_item(plan_view const& work, std::span<item const> steps, int first, Device& device) {
  int const end = end_of_group(steps, first);
  auto const group =
    steps.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
  for (item const& step : group)
    for (int const wait : work.waits_of(step))
      device.wait_for(wait, step);
  if constexpr (composing_device<Device>)
    if (group.size() > 1 && group.front().what == operation::run &&
        device.run_together(first, group))
      return end;
  if (group.front().what == operation::run)
    for (int i = first; i < end; ++i)
      device.run(i, steps[static_cast<std::size_t>(i)]);
  else
    device.post(first, group);
  return end;
}

//! `ready(next)`: a device that can tell whether the item or group at `next`, or the end of
//! the program, has all that it waits for.
template <class Device>
concept resumable_device = requires(Device& device, int next) {
  { device.ready(next) } -> std::same_as<bool>;
};

//! Goes on with the program of one device; where the iteration must begin again, up to its last
//! validation, and receives what other devices have sent by then.
//!
//! @param next the item to go on with, 0 at first; what comes next then.
//! @return whether the program has ended; false where a resumable device must wait first.
//! @throws what the device throws.
template <execution_device Device>
bool advance(plan_view const& work, int device_number, int& next, Device& device) {
  auto const steps = work.program_of(device_number);
  int const count = static_cast<int>(steps.size());
  int const validated = behind_validation(work, device_number);
  for (;;) {
    if constexpr (resumable_device<Device>)
      if (!device.ready(next))
        return false;
    if (next == count)
      break;
    next = execute_item(work, steps, next, device);
    if constexpr (restarting_device<Device>)
      if (next == validated && device.begins_again()) {
        for (auto i = static_cast<std::size_t>(next); i < steps.size(); ++i)
          if (arrives_early(work, device_number, steps[i]))
            device.post(static_cast<int>(i), steps.subspan(i, 1));
        next = count;
      }
  }
  device.finish();
  return true;
}

//! Runs the program of one device, once, without a pause.
//! @throws what the device throws.
template <execution_device Device>
void execute(plan_view const& work, int device_number, Device& device) {
  static_assert(!resumable_device<Device>, "a resumable device returns early: call advance");
  int next = 0;
  (void)advance(work, device_number, next, device);
}

} // namespace pipelining::inline v0_3::detail
