// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables as an interactive page of one file. Header for pipelining::write_html.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/io/append.hpp>
#include <pipe/io/html_control.hpp>
#include <pipe/io/html_model.hpp>
#include <pipe/io/html_view.hpp>
#include <pipe/io/json.hpp>
#include <pipe/io/shades.hpp>
#include <pipe/io/timetable_details.hpp>
#include <pipe/io/trace.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/describe.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pipelining::inline v0_2 {

//! @brief One schedule of a page: its order, its costs and, where it has run, when its passes ran.
struct html_timeline {
  timetable_view table;    //!< its order; the page times it again. Not owned
  timetable_details about; //!< name, mean costs, shares of chunks. Not owned
  //! The times of each kind on every stage and chunk, [S C], in the unit of the costs.
  std::vector<double> forward = {};
  std::vector<double> backward_input = {};      //!< [S C]
  std::vector<double> backward_weight = {};     //!< [S C]
  std::span<measured_pass const> measured = {}; //!< every pass once, in any order, or none
  double measured_unit = 1; //!< units of planned time of one unit of measured time
  //! The size of a slot of each of the first eight classes of a plan, in the order of `slot_class`:
  //! activation, received_input, output, received_gradient, input_gradient, weight_input, sequence,
  //! sequence_gradient. Empty: 1 each, so that curves count slots.
  std::vector<double> slot_sizes = {};
};

//! @brief A schedule of a page, with the times that a cost model gives.
//! @param cost what `table` was timed with; a fused backward must take the sum of its halves.
//! @complexity O(S C).
template <cost_model Cost>
[[nodiscard]] html_timeline
make_html_timeline(timetable_view table, timetable_details const& about, Cost const& cost) {
  html_timeline result{table, about};
  for (auto const& [kind, times] : {std::pair{pass_kind::forward, &result.forward},
                                    std::pair{pass_kind::backward_input, &result.backward_input},
                                    std::pair{pass_kind::backward_weight, &result.backward_weight}})
    for (int stage = 0; stage < stages(table.extents); ++stage)
      for (int chunk = 0; chunk < table.extents.chunks; ++chunk)
        times->push_back(double{cost.duration(
          {kind, false, static_cast<std::uint16_t>(stage), 0, static_cast<std::uint16_t>(chunk)})});
  return result;
}

//! @brief What a page says beside its schedules.
struct html_options {
  std::string_view title;     //!< of the page
  std::string_view unit = ""; //!< of time, printed at the axis
  bool bytes = false;         //!< sizes of slots are bytes; else they are relative to each other
};

namespace detail {

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

//! The factors of a kind against the times of the page; one number where all are equal.
template <text_sink Sink>
void append_factors(Sink& out,
                    std::string_view name,
                    std::vector<double> const& times,
                    double unit) {
  std::vector<double> factors;
  for (double const time : times)
    factors.push_back(unit > 0 ? time / unit : 1);
  if (std::all_of(factors.begin(), factors.end(), [&](double f) { return f == factors[0]; }))
    append(out, "\"", name, "\":", factors.empty() ? 1.0 : factors[0]);
  else
    append_list(out, name, factors);
}

//! The measured times by entry of the table, from 0 on.
template <text_sink Sink>
void append_measured(Sink& out, html_timeline const& line) {
  timetable_view const& table = line.table;
  auto const indices = static_cast<std::size_t>(pass_indices(table.over()));
  std::vector<measured_pass const*> found(indices);
  double first = line.measured.empty() ? 0 : line.measured.front().start;
  for (measured_pass const& ran : line.measured) {
    if (!contains(table.over(), ran.what))
      throw std::invalid_argument("write_html: a measured pass is not of the timetable: " +
                                  describe(ran.what, table.extents.chunks > 1));
    found[static_cast<std::size_t>(pass_index(table.over(), ran.what))] = &ran;
    first = std::min(first, ran.start);
  }
  for (bool const ends : {false, true}) {
    append(out, ends ? "],\"ends\":[" : "\"measured\":{\"starts\":[");
    for (int i = 0; i < table.size(); ++i) {
      auto const* const ran =
        found[static_cast<std::size_t>(pass_index(table.over(), table.passes[i]))];
      if (ran == nullptr)
        throw std::invalid_argument("write_html: a pass of the timetable was not measured: " +
                                    describe(table.passes[i], table.extents.chunks > 1));
      append(out, i == 0 ? "" : ",", ((ends ? ran->end : ran->start) - first) * line.measured_unit);
    }
  }
  append(out, "]},\n");
}

//! "V-Half: 4 devices, 8 microbatches, 8 stages, 2 chunks".
[[nodiscard]] inline std::string html_heading(html_timeline const& line) {
  shape const& extents = line.table.extents;
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

template <text_sink Sink>
void append_timeline(Sink& out, html_timeline const& line, uniform_cost const& unit) {
  timetable_view const& table = line.table;
  shape const& extents = table.extents;
  std::vector<int> const locals = local_stages(table);
  int stage_edges = 0;
  append(out, "{\"name\":");
  append_html_text(out, line.about.schedule);
  append(out, ",\"heading\":");
  append_html_text(out, html_heading(line));
  append(out, ",\"devices\":", extents.devices, ",\"stages\":", stages(extents));
  append(out, ",\"microbatches\":", extents.microbatches, ",\"chunks\":", extents.chunks);
  for (int stage = 0; table.edges != nullptr && stage < stages(extents); ++stage)
    for (int k = 0; k < neighbours(table.over(), stage, -1); ++k) {
      append(out, stage_edges == 0 ? ",\"edges\":[[" : ",[");
      append(out, neighbour(table.over(), stage, -1, k).stage, ",", stage, "]");
      ++stage_edges;
    }
  append(out, stage_edges == 0 ? "" : "]", ",\"bidirectional\":");
  append(out, extents.where == placement::bidirectional ? "true" : "false", ",");
  append_list(out, "locals", locals);
  append(out, ",\"local_count\":", most_local_stages(extents, locals), ",\"shares\":[");
  for (int chunk = 0; chunk < extents.chunks; ++chunk)
    append(out, chunk == 0 ? "" : ",", chunk_share(table, line.about, chunk));
  append(out, "],\n\"factors\":{");
  append_factors(out, "F", line.forward, unit.forward);
  append(out, ",");
  append_factors(out, "I", line.backward_input, unit.backward_input);
  append(out, ",");
  append_factors(out, "W", line.backward_weight, unit.backward_weight);
  append(out, "},\"pair_time\":", line.about.cost.overlapped_pair, ",\n");
  if (!line.slot_sizes.empty()) {
    append_list(out, "slot_sizes", line.slot_sizes);
    append(out, ",\n");
  }
  if (!line.measured.empty())
    append_measured(out, line);
  append(out, "\"rows\":[");
  for (int device = 0; device < extents.devices; ++device) {
    append(out, device == 0 ? "\n[" : ",\n[");
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
      pass const& what = table.passes[i];
      if (what.kind > pass_kind::backward_weight)
        throw std::invalid_argument(
          "write_html: a page knows forward, backward and its halves, not " +
          std::string(word(what.kind)));
      append(out, i == table.offsets[device] ? "" : ",");
      append(out, static_cast<int>(what.kind) + (what.overlapped ? 4 : 0), ",", what.stage, ",");
      append(out, what.microbatch, ",", what.chunk);
    }
    append(out, "]");
  }
  append(out, "]}");
}

} // namespace detail

//! @brief Writes a page of one file, without anything from elsewhere, that browsers open from the
//! disk: the schedules one below the other on one time axis, with zoom and pan, what each pass
//! waits for and is needed by, messages, the critical path, the buffers in use on every device,
//! planned and measured times, and sliders that time the fixed orders anew for other costs.
//!
//! Sliders start at the costs of the first schedule; those of the others keep their ratio to them.
//! The buffers are those of a plan made from the times on the page, by class.
//!
//! @pre every timeline has the times of all its stages and chunks, from `make_html_timeline`.
//! @throws std::invalid_argument where there is no schedule, the sizes are not eight, or measured
//! passes are not those of the timetable.
//! @complexity O(n) for n passes; a browser draws some ten thousand passes at once with ease.
template <text_sink Sink>
void write_html(Sink& out,
                std::span<html_timeline const> timelines,
                html_options const& options = {}) {
  if (timelines.empty())
    throw std::invalid_argument("write_html: a page needs at least one timetable");
  for (html_timeline const& line : timelines)
    if (!line.slot_sizes.empty() && line.slot_sizes.size() != 8)
      throw std::invalid_argument("write_html: slot_sizes has one size for each of eight classes");
  uniform_cost const& unit = timelines.front().about.cost;
  append(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>");
  for (char const& letter : options.title) {
    if (letter == '<' || letter == '&')
      append(out, letter == '<' ? "&lt;" : "&amp;");
    else
      out.append(std::string_view(&letter, 1));
  }
  append(out, "</title>\n", detail::html_head);
  append(out, "<script type=\"application/json\" id=\"data\">\n{\"title\":");
  detail::append_html_text(out, options.title);
  append(out, ",\"unit\":");
  detail::append_html_text(out, options.unit);
  append(out, ",\n\"cost\":{\"F\":", unit.forward, ",\"I\":", unit.backward_input);
  append(out, ",\"W\":", unit.backward_weight, ",\"latency\":", unit.communication, "},");
  append(out, "\n\"bytes\":", options.bytes ? "true" : "false", ",\"colours\":[");
  for (pass_kind const kind : {pass_kind::forward,
                               pass_kind::backward,
                               pass_kind::backward_input,
                               pass_kind::backward_weight}) {
    colour const plain = plain_colour(kind);
    append(out, kind == pass_kind::forward ? "[" : ",[");
    append(out, plain.red, ",", plain.green, ",", plain.blue, "]");
  }
  append(out, "],\n\"schedules\":[");
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    append(out, i == 0 ? "\n" : ",\n");
    detail::append_timeline(out, timelines[i], unit);
  }
  append(out, "]}\n</script>\n<script>\n\"use strict\";");
  append(out, detail::html_model, detail::html_view, detail::html_control);
  append(out, "</script>\n</body>\n</html>\n");
}

} // namespace pipelining::inline v0_2
