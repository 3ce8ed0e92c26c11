// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tables: of schedules as text, Markdown, CSV and JSON, and of published figures next to
//! ours.

#include "library.hpp"

namespace examples {

//! The cells of a row.
using table_line = std::vector<std::string>;

//! The cells of a line of Markdown: "| P, M | ours |".
[[nodiscard]] table_line cells_of(std::string_view line);

//! The first line is the head.
[[nodiscard]] std::string table_of(std::vector<table_line> const& rows);

//! A table, the first line of which is the head, and a line before it; empty: there is none.
struct noted_table {
  std::vector<table_line> rows;
  std::string note{};
};
//! One object: in `rows` an object of each row, by the heads of its columns, with numbers where a
//! cell is one; in `notes` the line before the table.
[[nodiscard]] std::string json_of(noted_table const& table);

//! Adds three cells: published, ours, and ours less published.
void compare(table_line& row, double published, double ours, int digits);

//! Columns of text, two blanks apart: so many to the left, the others to the right. A row with
//! fewer cells than the first one is not padded, and makes no column but the first wider.
[[nodiscard]] std::string aligned(std::vector<table_line> const& rows, std::size_t left);

//! A column of a table of schedules.
struct figure_column {
  char const* head; //!< for people; null: it stands only in files
  char const* key;  //!< in files; null: it stands only where people read
};
//! A figure of a schedule.
struct figure_cell {
  std::string shown; //!< for people
  std::string value; //!< in files
};
//! The figures of a schedule in the order of the columns, or why there are none.
struct figure_row {
  std::string schedule;
  std::vector<figure_cell> cells{};
  std::string problem{};
};

//! A figure that is the same for people and in files, or rounded for people.
[[nodiscard]] figure_cell figure(double value);
[[nodiscard]] figure_cell figure(double value, std::string shown);

//! What people read: the heads, and a line for each schedule.
[[nodiscard]] std::vector<table_line> lines_of(std::span<figure_column const> columns,
                                               std::vector<figure_row> const& rows);
//! The same in Markdown, with the names of schedules as code.
[[nodiscard]] std::string markdown_of(std::span<figure_column const> columns,
                                      std::vector<figure_row> const& rows);
//! One object for each row, after a line break each.
[[nodiscard]] std::string json_of(std::span<figure_column const> columns,
                                  std::vector<figure_row> const& rows);
//! The keys, and a line for each row without a problem.
[[nodiscard]] std::string csv_of(std::span<figure_column const> columns,
                                 std::vector<figure_row> const& rows);

} // namespace examples
