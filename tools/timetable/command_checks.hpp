// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which options of a command line go together.

#include <string_view>
#include <vector>

#include "command_line.hpp"

namespace examples {

//! Checks what was read against each other, and completes costs by what else was given.
//! @param given the names of the options that stand on the command line
//! @throws usage_error
void check(command& result, std::vector<std::string_view> const& given);

} // namespace examples
