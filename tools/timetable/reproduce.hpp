// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable reproduce`: figures of papers beside those of this library.

#include <span>
#include <vector>

#include "options.hpp"

namespace examples {

//! Follows the words after "reproduce": the name of a table.
//! @throws usage_error for another name
void reproduce(std::span<char const* const> words);

//! Its options.
[[nodiscard]] std::vector<offered_option> reproduce_options(verbs one);

//! The names of the tables.
[[nodiscard]] word_list published_tables();

} // namespace examples
