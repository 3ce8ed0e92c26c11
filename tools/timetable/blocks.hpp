// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable blocks`: what building blocks of every length give for their memory.

#include <span>
#include <vector>

#include "options.hpp"

namespace examples {

//! Follows the command line after the word "blocks" and prints tables in Markdown, JSON, a picture,
//! or the blocks as C++ types.
//! @throws std::exception with one line for the user.
void blocks(std::span<char const* const> words);

//! Its options.
[[nodiscard]] std::vector<offered_option> blocks_options(verbs one);

} // namespace examples
