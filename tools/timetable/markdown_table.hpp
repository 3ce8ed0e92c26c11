// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tables in Markdown, of published figures beside ours.

#include <string>
#include <vector>

namespace examples {

//! The cells of a row.
using table_line = std::vector<std::string>;

//! The first line is the head.
std::string table_of(std::vector<table_line> const& rows);

//! Adds three cells: published, ours, and ours less published.
void compare(table_line& row, double published, double ours, int digits);

} // namespace examples
