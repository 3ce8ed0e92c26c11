// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The timetable tool, and its verbs but for `choose`.

#include <span>
#include <string>
#include <vector>

#include "options.hpp"

namespace examples {

//! Follows the words after the name of the program, and says on stderr why it cannot.
//! @return the status of the program, unless it ends by itself
int timetable(std::span<char const* const> words);

// Verbs. Each follows the words after its own and prints; it throws std::exception with one line
// for the user.

//! One line for every schedule, in the order of --list; those that cannot be made say why. Where no
//! memory limit is given, schedules that need one have that of 1F1B.
void compare(std::span<char const* const> words);

//! An order of one's own for a memory limit, better than every schedule that keeps it: its report
//! and timetable, or a C++ type with its plan. Says on stderr what it is at.
void search(std::span<char const* const> words);

//! How far schedules are from the best order of a small pipeline.
void gaps(std::span<char const* const> words);

//! All schedules for the model of `timetable choose`, whose command line it has.
void systems(std::span<char const* const> words);

//! The least bubbles of building blocks: tables, JSON, a picture, or the blocks as C++ types.
void blocks(std::span<char const* const> words);
[[nodiscard]] std::vector<offered_option> blocks_options(verbs one);

//! A table of published figures next to ours, by its name.
void reproduce(std::span<char const* const> words);
[[nodiscard]] std::vector<offered_option> reproduce_options(verbs one);
[[nodiscard]] word_list published_tables();

//! The table of bubbles and peaks: by the published form, and of our timetables.
[[nodiscard]] std::string closed_forms();

} // namespace examples
