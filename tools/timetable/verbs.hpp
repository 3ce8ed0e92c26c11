// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The timetable tool, and its verbs that need no types of their own: tables of blocks,
//! gaps, systems, papers and all schedules.

#include <span>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "options.hpp"

namespace examples {

//! Follows the command line after the word "blocks" and prints tables in Markdown, JSON, a picture,
//! or the blocks as C++ types.
//! @throws std::exception with one line for the user.
void blocks(std::span<char const* const> words);

//! Its options.
[[nodiscard]] std::vector<offered_option> blocks_options(verbs one);

//! Follows the command line after the word "gaps" and prints a table in Markdown.
//! @throws std::exception with one line for the user.
void gaps(std::span<char const* const> words);

//! Follows the command line after the word "systems", which is that of `timetable choose`, and
//! prints a table in Markdown.
//! @throws std::exception with one line for the user.
void systems(std::span<char const* const> words);

//! Follows the words after "reproduce": the name of a table.
//! @throws usage_error for another name
void reproduce(std::span<char const* const> words);

//! Its options.
[[nodiscard]] std::vector<offered_option> reproduce_options(verbs one);

//! The names of the tables.
[[nodiscard]] word_list published_tables();

//! A table of bubbles and peaks: by the published form, and of our timetables.
std::string closed_forms();

//! One line for every schedule, in the order of --list; those that cannot be made say why. Where no
//! memory limit is given, schedules that need one have that of 1F1B.
[[nodiscard]] std::string compare(command const& asked);

//! Follows the words after the name of the program, and says on stderr why it cannot.
//! @return the status of the program, unless it ends by itself
int timetable(std::span<char const* const> words);

} // namespace examples
