// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "markdown_table.hpp"

#include <pipe/view/append.hpp>

#include <cmath>
#include <cstddef>

#include "tools/support/decimals.hpp"

namespace examples {
namespace {

void append_row(std::string& out, table_line const& cells) {
  for (std::string const& cell : cells)
    pipelining::append(out, "| ", cell, " ");
  out += "|\n";
}

} // namespace

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

} // namespace examples
