// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief An order that was found as a C++ type.

#include "tools/timetable/library.hpp"

namespace examples {

//! Appends the order as a schedule type for its devices and microbatches, in their namespace.
//! @pre a placement with a name, and microbatches of as many chunks: others are not searched for
void append_order_type(std::string& out, pp::dynamic_timetable const& table);

} // namespace examples
