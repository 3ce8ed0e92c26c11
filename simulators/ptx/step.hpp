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
//! @brief Completes one bulk copy of the block's queue, the oldest or a random one.
void complete_bulk_copy(block& b);
//! @brief Finishes what the block's threads have left in flight, with a report.
void end_block(block& b);
//! @brief Stops if the instruction touches a register that a wgmma in flight owns.
void check_busy(warp& w, instruction const& i);
//! @brief Where a warp waits, for deadlock reports.
std::string waiting_text(warp const& w);

} // namespace ptx
