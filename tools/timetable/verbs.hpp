// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The timetable tool, and its verbs but for `choose`.

#include "markdown_table.hpp"

namespace examples {

//! Follows the words after the name of the program, and says on stderr why it cannot.
//! @return the status of the program, unless it ends by itself
int timetable(std::span<char const* const> words);

//! What the tool can be asked to do.
struct verb {
  verbs which;
  std::string_view wants; //!< the words after it, of the usage
  std::string_view does;
  std::vector<offered_option> (*options)(verbs);
  void (*follow)(std::span<char const* const> words);
  std::string_view named = "";    //!< how `wants` calls a word of a few
  word_list (*names)() = nullptr; //!< these words

  //! What stands on the command line; empty for the timetable of a schedule, whose name does.
  [[nodiscard]] std::string_view word() const {
    return which == verbs::timetable ? "" : name_of(which);
  }
};

//! In the order of --help; the nameless one is the first.
[[nodiscard]] std::span<verb const> all_verbs();

// Verbs. Each follows the words after its own and prints; it throws std::exception with one line
// for the user.

//! One line for every schedule, in the order of --list; those that cannot be made say why. Where no
//! memory limit is given, schedules that need one have that of 1F1B.
void compare(std::span<char const* const> words);

//! An order of one's own for a memory limit, better than every schedule that keeps it: its report
//! and timetable, or a C++ type with its plan. Says on stderr what it is at.
void search(std::span<char const* const> words);

//! Appends an order as a schedule type for its devices and microbatches, in their namespace.
//! @pre a placement with a name, and microbatches of as many chunks: others are not searched for
void append_order_type(std::string& out, pp::dynamic_timetable const& table);

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

//! What shells offer while a command is typed: a script that the shell sources.
void completion(std::span<char const* const> words);
[[nodiscard]] word_list shells();

//! The table of bubbles and peaks: by the published form, and of our timetables.
[[nodiscard]] noted_table closed_forms();

} // namespace examples
