// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief All schedules at one size and cost, in one table.

#include <string>

#include "command_line.hpp"

namespace examples {

//! One line for every schedule, in the order of --list; those that cannot be made say why. Where no
//! memory limit is given, schedules that need one have that of 1F1B.
[[nodiscard]] std::string compare(command const& asked);

} // namespace examples
