// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief What the scheduler calls.

#include "machine.hpp"

namespace ptx {

//! @brief Runs a warp until it blocks, yields, ends or has executed `quantum` instructions.
//! @return true if only the quantum ended its turn
bool run_warp(warp& w, u64 quantum);
//! @brief Completes barriers that exited threads no longer hold up.
void recheck_barriers(block& b);
//! @brief Where a warp waits, for deadlock reports.
std::string waiting_text(warp const& w);

} // namespace ptx
