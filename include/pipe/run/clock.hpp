// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The clock of runners that poll. Header for pipelining::polling_clock.

#include <chrono>
#include <thread>

namespace pipelining::inline v0_1 {

//! @brief The steady clock of the machine, and a sleep between polls. Tests give runners a clock of
//! their own.
struct polling_clock : std::chrono::steady_clock {
  static void sleep_for(std::chrono::nanoseconds length) { std::this_thread::sleep_for(length); }
};

} // namespace pipelining::inline v0_1
