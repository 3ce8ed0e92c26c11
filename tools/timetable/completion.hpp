// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable completion`: what shells offer while a command is typed.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"

namespace examples {

//! The words that may follow a verb.
struct verb_words {
  std::string_view verb; //!< empty: the name of a schedule stands in its place
  std::string_view does;
  word_list names; //!< words that are no options; in place of a verb: all schedules
  std::vector<offered_option> options;
};

//! The shells that `completion_for` knows.
[[nodiscard]] word_list shells();

//! A script that the shell sources.
//! @param all the verbs; the first is the nameless one
//! @throws usage_error for another shell
[[nodiscard]] std::string completion_for(std::string_view shell, std::span<verb_words const> all);

} // namespace examples
