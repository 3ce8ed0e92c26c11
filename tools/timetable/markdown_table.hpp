// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tables in Markdown and JSON, of published figures next to ours.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

//! The cells of a row.
using table_line = std::vector<std::string>;

//! The first line is the head.
std::string table_of(std::vector<table_line> const& rows);

//! The lines of a text with a table of `table_of`, as one JSON object: in `rows` an object of each
//! row, by the heads of its columns, with numbers where a cell is one; in `notes` the other lines.
std::string json_of_tables(std::string_view text);

//! Adds three cells: published, ours, and ours less published.
void compare(table_line& row, double published, double ours, int digits);

//! Columns of text, two blanks apart: so many to the left, the others to the right. A row with
//! fewer cells than the first one is not padded, and makes no column but the first wider.
std::string aligned(std::vector<table_line> const& rows, std::size_t left);

} // namespace examples
