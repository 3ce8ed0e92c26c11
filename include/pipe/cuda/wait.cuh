// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Waiting for a GPU with a deadline. Header for pipelining::cuda::poll_until.

#include <pipe/config.hpp>
#include <pipe/cuda/error.cuh>
#include <pipe/run/clock.hpp>

#include <chrono>

namespace pipelining::inline v0_3::cuda::detail {

//! Asks until the answer is yes. Never blocks inside the driver, so that a device that hangs
//! cannot hang the host.
//!
//! @tparam Clock has now() and sleep_for(duration).
//! @param left of the time that this wait, and others with it, may take.
//! @param done is asked first, and then again and again; what it throws ends the wait.
//! @param between is called between two questions.
//! @return false when it is too late.
template <class Clock, class Done, class Between>
[[nodiscard]] bool poll_until(rooms::countdown<Clock>& left, Done&& done, Between between) {
  for (int polls = 0; !done(); ++polls) {
    between();
    if (left.is_over())
      return false;
    // Short waits are over in microseconds, long ones do not need a core that spins.
    if (polls > 64)
      Clock::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

} // namespace pipelining::inline v0_3::cuda::detail
