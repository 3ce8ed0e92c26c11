// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable choose --search`: cut, places of devices and order searched together.

#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <span>

#include "choose.hpp"

namespace examples {

//! The order of a candidate, for a search to start from.
struct choose_start {
  std::size_t candidate = 0; //!< its number
  pipelining::device_orders orders;
};

//! Searches from these orders and adds what it finds where that is better than they are. Says on
//! stderr what it is at.
void add_searched(choose_command const& asked,
                  std::span<choose_start const> starts,
                  candidates& found);

} // namespace examples
