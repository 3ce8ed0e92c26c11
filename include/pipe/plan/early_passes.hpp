// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The steps of an iteration that a device runs before it knows whether the step of the
//! optimizer was right.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! @brief The item after the last validation of a device. The items before it may have to run
//! again. 0 where the device never validates.
//! @complexity O(n) for n items of the device.
[[nodiscard]] constexpr int behind_validation(plan_view const& work, int device) noexcept {
  auto const steps = work.program_of(device);
  for (std::size_t i = steps.size(); validates(work.validation) && i > 0; --i)
    if (steps[i - 1].about == subject::validation)
      return static_cast<int>(i);
  return 0;
}

//! @brief The messages that a device sends to another before it validates.
//! @complexity O(n) for n items of the device.
[[nodiscard]] constexpr int sent_early(plan_view const& work, int from, int to) noexcept {
  int count = 0;
  int const end = behind_validation(work, from);
  for (int i = 0; i < end; ++i) {
    item const& step = work.program_of(from)[static_cast<std::size_t>(i)];
    count += step.what == operation::send && step.peer == to ? 1 : 0;
  }
  return count;
}

//! @brief True for a message to a device that comes even where the iteration begins again: its
//! sender has not validated yet when it sends it.
//! @complexity O(n) for n items of the sender.
[[nodiscard]] constexpr bool
arrives_early(plan_view const& work, int device, item const& step) noexcept {
  return step.what == operation::receive && step.sequence < sent_early(work, step.peer, device);
}

} // namespace pipelining::inline v0_3::detail
