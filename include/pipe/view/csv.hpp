// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timed passes as comma-separated values. Header for pipelining::write_csv.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>

#include <string_view>

namespace pipelining::inline v0_3 {

namespace detail {

//! A text as a field: in quotes where it has commas, quotes or ends of lines.
//! @source RFC 4180
template <text_sink Sink>
void append_csv_text(Sink& out, std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    out.append(text);
    return;
  }
  append(out, "\"");
  for (char const& letter : text)
    append(out, letter == '"' ? "\"" : "", std::string_view(&letter, 1));
  append(out, "\"");
}

} // namespace detail

//! @brief Writes one line per pass, device after device, under the heading
//!        `device,kind,stage,microbatch,chunk,start,end`. The kind is its letter
//! in the flow, or its word where it has none. What other engines do stands behind the passes of
//! all devices.
//! @complexity O(n) for n passes.
template <text_sink Sink>
void write_csv(Sink& out, timetable_view table) {
  out.append(std::string_view("device,kind,stage,microbatch,chunk,start,end\n"));
  for (int row = 0; row < table.rows(); ++row) {
    for (int i = table.offsets[row]; i < table.offsets[row + 1]; ++i) {
      pass const& what = table.passes[i];
      append(out, row % table.over.extents.devices, ",");
      detail::append_csv_text(out, sign(*table.over.declared, what.kind).c_str());
      append(out, ",", what.stage, ",", what.microbatch, ",", what.chunk, ",");
      append(out, table.starts[i], ",", table.ends[i], "\n");
    }
  }
}

} // namespace pipelining::inline v0_3
