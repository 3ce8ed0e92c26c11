// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A timetable as JSON. Header for pipelining::write_json,
//! read_json and append_quoted.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/json_cursor.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/shades.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/csv.hpp>
#include <pipe/view/figures.hpp>

#include <algorithm>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief Appends a text in double quotes, with what JSON forbids inside escaped, and a
//! question mark for each byte that is not UTF-8.
void append_quoted(text_sink auto& out, std::string_view text) {
  out.append(detail::json_text(text));
}

namespace detail {

//! The rows of one engine of all devices, [P].
void write_json_rows(text_sink auto& out, timetable_view table, int first) {
  append_numbered(out, table.over.extents.devices, [&](int device) {
    int const row = first + device;
    append(out, "\n");
    append_numbered(out, table.row_size(row), [&](int place) {
      int const i = table.offsets[row] + place;
      pass const& what = table.passes[i];
      append(out, "\n{\"kind\":", json_text(sign(*table.over.declared, what.kind).c_str()));
      append(out, ",\"stage\":", what.stage, ",\"microbatch\":", what.microbatch);
      append(out, ",\"chunk\":", what.chunk, ",\"start\":", table.starts[i]);
      append(out, ",\"end\":", table.ends[i], "}");
    });
  });
}

} // namespace detail

//! @brief Writes one object: `schedule`, the extents, `cost`, `chunk_shares`, `makespan`, `span`,
//! `bubble_rate` on the span, `makespan_bubble_rate`, `least_makespan` and `least_span` where they
//! are known, `peak_activations` and `peak_weight_inputs` per device in whole microbatches of one
//! stage, and `passes` per device. Passes of other engines stand after them in the same form, where
//! there are any: `copy_out`, `copy_in` and `network`.
//! @complexity O(n) for n passes.
void write_json(text_sink auto& out, timetable_view table, timetable_caption const& about) {
  shape const& extents = table.over.extents;
  append(out, "{\"schedule\":", detail::json_text(about.schedule));
  append(out, ",\n\"devices\":", extents.devices, ",\"stages\":", extents.stages());
  append(out, ",\"microbatches\":", extents.microbatches, ",\"chunks\":", extents.chunks);
  append(out, ",\n\"cost\":{\"forward\":", about.cost.forward);
  append(out, ",\"backward_input\":", about.cost.backward_input);
  append(out, ",\"backward_weight\":", about.cost.backward_weight);
  append(out, ",\"communication\":", about.cost.communication);
  if (about.cost.all_reduce > 0)
    append(out, ",\"all_reduce\":", about.cost.all_reduce);
  append(out, "},\n\"chunk_shares\":");
  detail::append_numbered(
    out, extents.chunks, [&](int chunk) { append(out, detail::chunk_share(table, about, chunk)); });
  append(out, ",\n\"makespan\":", makespan(table), ",\"span\":", span_of(table));
  append(out, ",\"bubble_rate\":", bubble_rate(table));
  append(out, ",\"makespan_bubble_rate\":", makespan_bubble_rate(table));
  if (about.least_makespan > 0) {
    append(out, ",\n\"least_makespan\":", about.least_makespan);
    append(out, ",\"least_span\":", about.least_span);
  }
  append(out, ",\n\"peak_activations\":");
  detail::append_numbered(
    out, extents.devices, [&](int device) { append(out, peak_activations(table, device, about)); });
  append(out, ",\n\"peak_weight_inputs\":");
  detail::append_numbered(out, extents.devices, [&](int device) {
    append(out, peak_weight_inputs(table, device, about));
  });
  append(out, ",\n\"passes\":");
  detail::write_json_rows(out, table, 0);
  for (int row = extents.devices; row < table.rows(); row += extents.devices) {
    if (table.offsets[row] == table.offsets[row + extents.devices])
      continue;
    std::string name = detail::engine_row_name(table, row);
    std::replace(name.begin(), name.end(), ' ', '_');
    append(out, ",\n\"", name, "\":");
    detail::write_json_rows(out, table, row);
  }
  append(out, "}\n");
}

namespace detail {

//! Appends the members of a pass, in any order, as a line of CSV.
inline void append_json_pass(std::string& rows, json_cursor<std::invalid_argument>& at) {
  std::string fields[6];
  at.object([&](std::string const& name) {
    constexpr std::string_view names[] = {"kind", "stage", "microbatch", "chunk", "start", "end"};
    auto const field = std::find(std::begin(names), std::end(names), name) - std::begin(names);
    if (field == std::ssize(names))
      at.fail("a pass has no member " + quote(name));
    fields[field] = field == 0 ? at.text() : std::string(at.raw());
  });
  append_csv_text(rows, fields[0]);
  for (std::string const& field : std::span(fields).subspan(1))
    append(rows, ",", field);
  append(rows, "\n");
}

} // namespace detail

//! @brief Reads the passes of what `write_json` has written, as `read_csv` does.
//! @throws std::invalid_argument as read_csv, with the text or the number of a pass.
//! @complexity as read_csv.
[[nodiscard]] inline dynamic_timetable read_json(std::string_view text,
                                                 flow const& declared = training) {
  std::string rows(detail::csv_heading);
  detail::json_cursor<std::invalid_argument> at(text, "JSON: ");
  at.object([&](std::string const&) {
    int device = 0; // a list for each
    if (at.peek() != '[')
      (void)at.raw();
    else
      at.list([&] {
        if (at.peek() != '[')
          return (void)at.raw();
        at.list([&] {
          append(rows, device, ",");
          detail::append_json_pass(rows, at);
        });
        ++device;
      });
  });
  at.end();
  return detail::read_rows(rows, declared, "JSON: pass ", 0);
}

} // namespace pipelining::inline v0_3
