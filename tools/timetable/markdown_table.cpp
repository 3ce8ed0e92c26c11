// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "markdown_table.hpp"

namespace examples {
namespace {

void append_row(std::string& out, table_line const& cells) {
  for (std::string const& cell : cells)
    pp::append(out, "| ", cell, " ");
  out += "|\n";
}

//! A number as it stands, anything else in quotes.
void append_cell(std::string& out, std::string_view cell) {
  if (number_in<double>(cell))
    out += cell;
  else
    pp::append_quoted(out, cell);
}

} // namespace

table_line cells_of(std::string_view line) {
  table_line cells;
  for (line.remove_prefix(2); !line.empty();
       line.remove_prefix(std::min<std::size_t>(2, line.size()))) {
    std::size_t const end = line.find(" |");
    cells.emplace_back(line.substr(0, end));
    line.remove_prefix(end + 1);
  }
  return cells;
}

std::string json_of(noted_table const& table) {
  std::string text = "{\"notes\":[";
  if (!table.note.empty())
    pp::append_quoted(text, table.note);
  text += "],\n\"rows\":[";
  table_line const& head = table.rows.front();
  for (std::size_t row = 1; row < table.rows.size(); ++row) {
    for (std::size_t i = 0; i < head.size(); ++i) {
      text += i > 0 ? "," : row == 1 ? "\n{" : ",\n{";
      pp::append_quoted(text, head[i]);
      text += ":";
      append_cell(text, table.rows[row][i]);
    }
    text += "}";
  }
  return text + "]}\n";
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

figure_cell figure(double value) {
  return {text_of(value), text_of(value)};
}

figure_cell figure(double value, std::string shown) {
  return {std::move(shown), figure(value).value};
}

std::vector<table_line> lines_of(std::span<figure_column const> columns,
                                 std::vector<figure_row> const& rows) {
  std::vector<table_line> lines{{"schedule"}};
  for (figure_column const& column : columns)
    if (column.head != nullptr)
      lines[0].emplace_back(column.head);
  for (figure_row const& row : rows) {
    table_line& line = lines.emplace_back(table_line{row.schedule});
    if (!row.problem.empty())
      line.push_back(row.problem);
    for (std::size_t i = 0; i < row.cells.size(); ++i)
      if (columns[i].head != nullptr)
        line.push_back(row.cells[i].shown);
  }
  return lines;
}

std::string markdown_of(std::span<figure_column const> columns,
                        std::vector<figure_row> const& rows) {
  std::vector<table_line> lines = lines_of(columns, rows);
  for (std::size_t i = 1; i < lines.size(); ++i)
    lines[i].front() = "`" + lines[i].front() + "`";
  return table_of(lines);
}

std::string json_of(std::span<figure_column const> columns, std::vector<figure_row> const& rows) {
  std::string text;
  for (figure_row const& row : rows) {
    pp::append(text, text.empty() ? "" : ",", "\n{\"schedule\":");
    pp::append_quoted(text, row.schedule);
    for (std::size_t i = 0; i < row.cells.size(); ++i)
      if (columns[i].key != nullptr)
        pp::append(text, ",\"", columns[i].key, "\":", row.cells[i].value);
    if (!row.problem.empty()) {
      text += ",\"problem\":";
      pp::append_quoted(text, row.problem);
    }
    text += "}";
  }
  return text;
}

std::string csv_of(std::span<figure_column const> columns, std::vector<figure_row> const& rows) {
  std::string text = "schedule";
  for (figure_column const& column : columns)
    if (column.key != nullptr)
      pp::append(text, ",", column.key);
  text += "\n";
  for (figure_row const& row : rows) {
    if (!row.problem.empty())
      continue;
    text += row.schedule;
    for (std::size_t i = 0; i < row.cells.size(); ++i)
      if (columns[i].key != nullptr)
        pp::append(text, ",", row.cells[i].value);
    text += "\n";
  }
  return text;
}

} // namespace examples
