// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which options of a command line go together.

#include "command_line.hpp"
#include "options.hpp"

namespace examples {

//! Checks what was read against each other, and completes costs by what else was given.
//! @throws usage_error
void check(command& result, read_words const& read);

} // namespace examples
