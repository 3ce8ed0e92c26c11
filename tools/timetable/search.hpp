// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable search`: an order of one's own for a memory limit, better than every schedule
//! that keeps it.

#include <pipe/timetable/timetable.hpp>

#include <string>

#include "command_line.hpp"
#include "make.hpp"

namespace examples {

//! What a search has found.
struct searched {
  made_table made;
  std::string report; //!< for people
  std::string call;   //!< the words it follows from, where moves bound it
};

//! Searches on all placements. Says on stderr what it is at.
//! @throws usage_error where nothing keeps the limit
[[nodiscard]] searched search(command const& asked);

//! The order as a C++ type, with its plan.
[[nodiscard]] std::string search_header(searched const& found);

//! Appends the order as a schedule type for its devices and microbatches, in their namespace.
//! @pre a placement with a name, and microbatches of as many chunks: others are not searched for
void append_order_type(std::string& out, pipelining::dynamic_timetable const& table);

} // namespace examples
