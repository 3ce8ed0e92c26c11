// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief mbarrier objects, for the instructions and copies that arrive at them.

#include "machine.hpp"

namespace ptx {

//! @brief The barrier at a shared address.
//! @throws stop if the address is bad or holds no initialised barrier
mbarrier& mbarrier_at(warp& w, instruction const& i, int lane, u64 address);
//! @brief `count` arrivals by a thread, with release.
void arrive_at(warp& w, instruction const& i, int lane, mbarrier& b, u32 count);
//! @brief Ends the phase if nothing is pending.
void step(run_state& run, mbarrier& b);

} // namespace ptx
