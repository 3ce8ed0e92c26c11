// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable gaps`: how far every schedule is from the best order of a small pipeline.

#include <span>

namespace examples {

//! Follows the command line after the word "gaps" and prints a table in Markdown.
//! @throws std::exception with one line for the user.
void gaps(std::span<char const* const> words);

} // namespace examples
