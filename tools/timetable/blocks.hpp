// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable blocks`: what building blocks of every length give for their memory.

namespace examples {

//! Follows the command line behind the word "blocks" and prints tables in Markdown, a picture, or
//! the blocks as C++ types.
//! @throws std::exception with one line for the user.
void blocks(int count, char const* const* words);

} // namespace examples
