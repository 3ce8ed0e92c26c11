// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "markdown_table.hpp"

#include <pipe/view/append.hpp>
#include <pipe/view/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "options.hpp"
#include "tools/support/decimals.hpp"

namespace examples {
namespace {

void append_row(std::string& out, table_line const& cells) {
  for (std::string const& cell : cells)
    pipelining::append(out, "| ", cell, " ");
  out += "|\n";
}

//! The cells of a line of a table.
std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (line.remove_prefix(2); !line.empty();
       line.remove_prefix(std::min<std::size_t>(2, line.size()))) {
    std::size_t const end = line.find(" |");
    cells.push_back(line.substr(0, end));
    line.remove_prefix(end + 1);
  }
  return cells;
}

//! A number as it stands, anything else in quotes.
void append_cell(std::string& out, std::string_view cell) {
  if (number_in<double>(cell))
    out += cell;
  else
    pipelining::append_quoted(out, cell);
}

} // namespace

std::string json_of_tables(std::string_view text) {
  std::vector<std::string_view> head;
  std::string rows;
  std::string notes;
  while (!text.empty()) {
    std::string_view const line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() + 1);
    if (line.empty() || line.starts_with("| ---"))
      continue;
    if (line.front() != '|') {
      notes += notes.empty() ? "" : ",";
      pipelining::append_quoted(notes, line);
    } else if (head.empty()) {
      head = cells_of(line);
    } else {
      std::vector<std::string_view> const cells = cells_of(line);
      for (std::size_t i = 0; i < cells.size(); ++i) {
        rows += i > 0 ? "," : rows.empty() ? "\n{" : ",\n{";
        pipelining::append_quoted(rows, head[i]);
        rows += ":";
        append_cell(rows, cells[i]);
      }
      rows += "}";
    }
  }
  return "{\"notes\":[" + notes + "],\n\"rows\":[" + rows + "]}\n";
}

std::string table_of(std::vector<table_line> const& rows) {
  std::string out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    append_row(out, rows[i]);
    if (i == 0)
      append_row(out, table_line(rows[0].size(), "---"));
  }
  return out;
}

void compare(table_line& row, double published, double ours, int digits) {
  double const scale = std::pow(10, digits);
  row.push_back(decimals(published, digits));
  row.push_back(decimals(ours, digits));
  row.push_back(decimals(std::round(ours * scale) / scale - published, digits));
}

std::string aligned(std::vector<table_line> const& rows, std::size_t left) {
  std::vector<std::size_t> widths(rows.front().size());
  for (table_line const& row : rows)
    for (std::size_t i = 0; i < row.size() && (i == 0 || row.size() == widths.size()); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (table_line const& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string const gap(widths[i] - std::min(widths[i], row[i].size()), ' ');
      bool const whole = row.size() == widths.size();
      text += i > 0 ? "  " : "";
      text += i < left ? row[i] + (row.size() > 1 ? gap : "") : (whole ? gap : "") + row[i];
    }
    text += "\n";
  }
  return text;
}

} // namespace examples
