// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief `timetable reproduce`: figures of papers beside those of this library.

#include <span>
#include <string>

namespace examples {

//! Follows the words after "reproduce": the name of a table.
//! @throws usage_error for another name
void reproduce(std::span<char const* const> words);

//! The names of the tables, for --help.
[[nodiscard]] std::string describe_tables();

} // namespace examples
