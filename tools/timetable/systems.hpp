// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable systems`: every schedule for one model at one size, side by side.

#include <span>

namespace examples {

//! Follows the command line after the word "systems", which is that of `timetable choose`, and
//! prints a table in Markdown.
//! @throws std::exception with one line for the user.
void systems(std::span<char const* const> words);

} // namespace examples
