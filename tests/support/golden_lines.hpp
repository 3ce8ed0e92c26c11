// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Reads the text files under tests/golden. Header for golden_lines, golden_row and
//! row_text.

#include <pipe/flow/pass.hpp>
#include <pipe/timetable/timetable.hpp>

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace support {

//! @brief The lines of a file that are not comments.
//! @throws std::runtime_error when the file has no such line; a golden test must not pass on
//! nothing.
inline std::vector<std::string> golden_lines(std::string const& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#')
      lines.push_back(line);
  if (lines.empty())
    throw std::runtime_error("golden file " + path + " is missing or empty");
  return lines;
}

//! @brief A device's passes as golden files write them: "0F0 1F2+0B1 0W0", with chunks "0F0.1".
inline std::string
row_text(pipelining::timetable_view table, int device, bool with_chunks = false) {
  std::string text;
  for (pipelining::pass const& what : table.row(device)) {
    if (!text.empty())
      text += what.overlapped ? '+' : ' ';
    text += std::to_string(what.stage) + table.over.declared->letter(what.kind) +
            std::to_string(what.microbatch);
    if (with_chunks)
      text += "." + std::to_string(what.chunk);
  }
  return text;
}

} // namespace support
