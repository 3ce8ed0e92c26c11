// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A schedule as data of the interactive page. Used by <pipe/view/html.hpp>.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shades.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training_kinds.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/describe.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/figures.hpp>
#include <pipe/view/html/links.hpp>
#include <pipe/view/html/sliders.hpp>
#include <pipe/view/html/timeline.hpp>
#include <pipe/view/json.hpp>
#include <pipe/view/timetable_caption.hpp>
#include <pipe/view/trace.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! A text of the data: what would end the script is escaped.
template <text_sink Sink>
void append_html_text(Sink& out, std::string_view text) {
  std::string quoted;
  append_quoted(quoted, text);
  for (char const& letter : quoted) {
    if (letter == '<')
      append(out, "\\u003c");
    else
      out.append(std::string_view(&letter, 1));
  }
}

template <text_sink Sink, class List>
void append_list(Sink& out, std::string_view name, List const& values) {
  append(out, "\"", name, "\":[");
  bool first = true;
  for (auto const& value : values) {
    append(out, first ? "" : ",", value);
    first = false;
  }
  append(out, "]");
}

//! What each entry waits for, and from which entry to which memory is held: a class, the entry, or
//! ~entry for what arrives at its end, and how many entries later those stand that end it.
template <text_sink Sink>
void append_links(Sink& out, timetable_view const& table) {
  table_links const links(table);
  append(out, ",\n\"needs\":[");
  bool first = true;
  for (std::vector<entry_need> const& needs : links.needs()) {
    append(out, first ? "[" : ",[");
    for (std::size_t k = 0; k < needs.size(); ++k) {
      append(out, k == 0 ? "" : ",");
      if (needs[k].between == nullptr)
        append(out, needs[k].entry);
      else
        append(out,
               "[",
               needs[k].entry,
               needs[k].between == &group_times::reduce ? ",\"reduce\"]" : ",\"broadcast\"]");
    }
    append(out, "]");
    first = false;
  }
  append(out, "],\n\"holds\":[");
  first = true;
  for (slot_hold const& hold : links.holds()) {
    append(out, first ? "[" : ",[", hold.pool, ",", hold.arrives ? ~hold.from : hold.from);
    for (int const end : hold.until)
      append(out, ",", end - hold.from);
    append(out, "]");
    first = false;
  }
  append(out, "]");
}

//! The kinds of a flow: their words, and how they are drawn.
template <text_sink Sink>
void append_kinds(Sink& out, flow const& declared) {
  append(out, "\"kinds\":[");
  int const count = std::max(declared.kind_count, kinds_of_training.kind_count);
  for (int number = 0; number < count; ++number) {
    auto const kind = static_cast<pass_kind>(number);
    append(out, number == 0 ? "" : ",");
    if (!declared[kind].exists()) {
      append(out, "0");
      continue;
    }
    colour const plain = plain_colour(declared[kind]);
    append(out, "{\"word\":");
    append_html_text(out, word(declared, kind));
    append(out, ",\"legend\":");
    append_html_text(out, legend_word(declared[kind]));
    append(out, ",\"colour\":[", plain.red, ",", plain.green, ",", plain.blue, "]");
    append(out, declared[kind].on == engine::network ? ",\"by_stage\":true}" : "}");
  }
  append(out, "]");
}

//! The measured times by entry of the table, from 0 on.
template <text_sink Sink>
void append_measured(Sink& out, html_timeline const& line) {
  timetable_view const& table = line.table;
  auto const indices = static_cast<std::size_t>(pass_indices(table.over));
  std::vector<measured_pass const*> found(indices);
  double first = line.measured.empty() ? 0 : line.measured.front().start;
  for (measured_pass const& ran : line.measured) {
    if (!contains(table.over, ran.what))
      throw std::invalid_argument("write_html: a measured pass is not of the timetable: " +
                                  describe(ran.what, table.over));
    found[static_cast<std::size_t>(pass_index(table.over, ran.what))] = &ran;
    first = std::min(first, ran.start);
  }
  for (bool const ends : {false, true}) {
    append(out, ends ? "],\"ends\":[" : ",\n\"measured\":{\"starts\":[");
    for (int i = 0; i < table.size(); ++i) {
      auto const* const ran =
        found[static_cast<std::size_t>(pass_index(table.over, table.passes[i]))];
      if (ran == nullptr)
        throw std::invalid_argument("write_html: a pass of the timetable was not measured: " +
                                    describe(table.passes[i], table.over));
      append(out, i == 0 ? "" : ",", ((ends ? ran->end : ran->start) - first) * line.measured_unit);
    }
  }
  append(out, "]}");
}

//! "V-Half: 4 devices, 8 microbatches, 8 stages, 2 chunks".
[[nodiscard]] inline std::string html_heading(html_timeline const& line) {
  shape const& extents = line.shown.over.extents;
  std::string text(line.about.schedule);
  auto const count = [&text](int number, std::string_view one, std::string_view many) {
    append(text, text.back() == ':' ? " " : ", ", number, " ", number == 1 ? one : many);
  };
  append(text, ":");
  count(extents.devices, "device", "devices");
  count(extents.microbatches, "microbatch", "microbatches");
  count(stages(extents), "stage", "stages");
  if (extents.chunks > 1)
    count(extents.chunks, "chunk", "chunks");
  for (std::size_t chunk = 0; chunk < line.about.chunk_lengths.size(); ++chunk)
    append(text, chunk == 0 ? " of tokens " : ", ", line.about.chunk_lengths[chunk]);
  return text;
}

//! The extents, and what colours and figures follow from beside the passes.
template <text_sink Sink>
void append_extents(Sink& out, html_timeline const& line) {
  timetable_view const& shown = line.shown;
  shape const& extents = shown.over.extents;
  std::vector<int> const locals = local_stages(shown);
  append(out, ",\"devices\":", extents.devices, ",\"microbatches\":", extents.microbatches);
  append(out, ",\"chunks\":", extents.chunks, ",\"stages_per_device\":", device_share(shown));
  append(out, ",");
  append_list(out, "locals", locals);
  append(out, ",\"local_count\":", most_local_stages(extents, locals));
  if (extents.where == placement::bidirectional) {
    append(out, ",\"directions\":[");
    for (int unit = 0; unit < extents.microbatches; ++unit)
      append(out, unit == 0 ? "" : ",", enters_at_end(extents, unit) ? 1 : 0);
    append(out, "]");
  }
  if (!line.about.chunk_shares.empty()) {
    append(out, ",");
    append_list(out, "shares", line.about.chunk_shares);
  }
  append(out, ",\n\"engines\":[\"passes\"");
  for (int engine = 1; engine < shown.over.declared->engines; ++engine)
    append(out, ",\"", engine_row_name(shown, engine * extents.devices), "\"");
  append(out, "]");
}

//! Every entry: its kind, or ~kind where it completes a pair; stage, microbatch and chunk; the
//! number of its time.
template <text_sink Sink>
void append_rows(Sink& out, html_timeline const& line) {
  append(out, ",\n\"rows\":[");
  for (int row = 0; row < line.shown.rows(); ++row) {
    append(out, row == 0 ? "\n[" : ",\n[");
    for (int i = line.shown.offsets[row]; i < line.shown.offsets[row + 1]; ++i) {
      pass const& what = line.shown.passes[i];
      int const kind = index_of(what.kind);
      append(out, i == line.shown.offsets[row] ? "" : ",", what.overlapped ? ~kind : kind);
      append(out, ",", what.stage, ",", what.microbatch, ",", what.chunk);
      append(out, ",", line.time_of[static_cast<std::size_t>(i)]);
    }
    append(out, "]");
  }
  append(out, "]");
}

template <text_sink Sink>
void append_timeline(Sink& out, html_timeline const& line, uniform_cost const& page) {
  timetable_view const& table = line.table;
  uniform_cost const& cost = line.about.cost;
  append(out, "{\"name\":");
  append_html_text(out, line.about.schedule);
  append(out, ",\"heading\":");
  append_html_text(out, html_heading(line));
  append_extents(out, line);
  append(out, ",\n");
  append_kinds(out, *table.over.declared);
  append_times(out, line, page);
  append(out, ",\n\"between\":{");
  for (page_slider const& each : other_sliders)
    append(
      out, &each == other_sliders ? "\"" : ",\"", each.key, "\":", slider_ratio(each, page, cost));
  append(out, "}");
  if (table.links != nullptr) {
    auto const pairs =
      static_cast<std::size_t>(table.over.extents.devices * table.over.extents.devices);
    append(out, ",\n");
    append_list(out, "links", std::span(table.links, pairs));
  }
  if (!line.slot_sizes.empty()) {
    append(out, ",\n");
    append_list(out, "slot_sizes", line.slot_sizes);
  }
  if (!line.measured.empty())
    append_measured(out, line);
  append_rows(out, line);
  append_links(out, table);
  append(out, "}");
}

} // namespace pipelining::inline v0_3::detail
