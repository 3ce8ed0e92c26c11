// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Waiting for a stream with a deadline. Header for pipelining::cuda::wait_for_event.

#include <pipe/cuda/handles.cuh>

#include <chrono>

namespace pipelining::inline v0_1 {
namespace cuda {

//! @brief Polls an event until it has happened. Never blocks inside the driver, so that a device
//! that hangs cannot
//!        hang the host.
//!
//! @tparam Clock has now() and sleep_for(duration).
//! @param failed is asked between polls; true ends the wait.
//! @return false when the deadline has passed or `failed` said so.
//! @throws error when the device reports an error.
template <class Clock, class Failed>
[[nodiscard]] bool
wait_for_event(event const& done, std::chrono::nanoseconds deadline, Failed failed) {
  auto const end = Clock::now() + deadline;
  for (int polls = 0;; ++polls) {
    if (done.happened())
      return true;
    if (failed() || Clock::now() >= end)
      return false;
    // Short steps are over in microseconds, long ones do not need a core that spins.
    if (polls > 64)
      Clock::sleep_for(std::chrono::microseconds(20));
  }
}

} // namespace cuda
} // namespace pipelining::inline v0_1
