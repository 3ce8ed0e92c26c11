// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timed passes as comma-separated values, written and read. Header for
//! pipelining::write_csv and read_csv.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/shades.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/sort_stably.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <locale>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

inline constexpr std::string_view csv_heading = "device,kind,stage,microbatch,chunk,start,end\n";

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
//! in the flow, or its word where it has none. Passes of other engines stand after the passes of
//! all devices.
//! @complexity O(n) for n passes.
template <text_sink Sink>
void write_csv(Sink& out, timetable_view table) {
  out.append(detail::csv_heading);
  for (int row = 0; row < table.rows(); ++row) {
    for (int i = table.offsets[row]; i < table.offsets[row + 1]; ++i) {
      pass const& what = table.passes[i];
      append(out, row % table.over.extents.devices, ",");
      detail::append_csv_text(out, detail::sign(*table.over.declared, what.kind).c_str());
      append(out, ",", what.stage, ",", what.microbatch, ",", what.chunk, ",");
      append(out, table.starts[i], ",", table.ends[i], "\n");
    }
  }
}

namespace detail {

//! A line of the file.
struct csv_pass {
  pass what{};
  int device = 0;
  double start = 0;
  double end = 0;
};

//! Takes fields off the text of a file.
struct csv_fields {
  std::string_view rest;
  char const* place; //!< in sentences, before the number of a line
  int line;          //!< before the next

  [[noreturn]] void fail(std::string const& what) const {
    throw std::invalid_argument(place + std::to_string(line) + " " + what);
  }
  //! The text up to a comma or, of the last field, to the end of the line.
  [[nodiscard]] std::string field(char end) {
    std::string result;
    bool const quoted = rest.starts_with('"');
    std::size_t at = quoted ? 1 : 0;
    for (; at < rest.size(); ++at) {
      if (quoted ? rest[at] == '"' && !rest.substr(++at).starts_with('"')
                 : rest[at] == ',' || rest[at] == '\n')
        break;
      result += rest.substr(at, 1);
    }
    if (at >= rest.size() || rest[at] != end)
      fail("does not have seven fields: it goes on, or ends, after " + quote(result));
    rest.remove_prefix(at + 1);
    return result;
  }
  [[nodiscard]] double time(char end) {
    std::string const text = field(end);
    std::istringstream stream(text); // libc++ has no std::from_chars for it before its version 20
    stream.imbue(std::locale::classic());
    double value = 0;
    if (!(stream >> value) || stream.peek() != std::istringstream::traits_type::eof())
      fail("has " + quote(text) + " where a number is wanted");
    return value;
  }
  //! A number of a pass.
  [[nodiscard]] std::uint16_t number() {
    double const value = time(',');
    if (!(value >= 0 && value <= 65535) || value != static_cast<int>(value))
      fail("has a number that is none from 0 to 65535");
    return static_cast<std::uint16_t>(value);
  }
  [[nodiscard]] pass_kind kind(flow const& declared) {
    std::string const text = field(',');
    for (int kind = 0; kind < declared.kind_count; ++kind)
      if (auto const known = static_cast<pass_kind>(kind);
          declared[known].exists() && text == sign(declared, known).c_str())
        return known;
    fail("names the kind " + quote(text) + ", which the flow does not have");
  }
};

//! Finds a placement for the passes: one with a name, else a table of as few ways as possible.
inline void place_passes(pipeline& over, std::vector<csv_pass> const& all) {
  shape& extents = over.extents;
  auto const count = static_cast<std::size_t>(extents.stages());
  auto const place = [&](csv_pass const& one) {
    return static_cast<std::size_t>(one.what.microbatch) * count + one.what.stage;
  };
  std::vector<int> devices(count * static_cast<std::size_t>(extents.microbatches), -1);
  for (csv_pass const& one : all)
    devices[place(one)] = one.device;
  if (std::find(devices.begin(), devices.end(), -1) != devices.end())
    throw std::invalid_argument(
      "timetable file: a microbatch has no pass on one of the stages 0 to " +
      std::to_string(count - 1));
  auto const fits = [&] {
    return std::all_of(all.begin(), all.end(), [&](csv_pass const& one) {
      return device_of(over.view(), one.what) == one.device;
    });
  };
  for (placement const where : {placement::looped, placement::wave, placement::bidirectional}) {
    extents.where = where;
    bool const has_ways = where != placement::bidirectional || extents.microbatches > 1;
    if (extents.extra_stages == 0 && has_ways && fits())
      return;
  }
  extents.where = placement::custom;
  for (int& ways = extents.custom_routes; ways <= extents.microbatches; ++ways) {
    check_extents(extents, over.declared.rows);
    over.holders.assign(devices.begin(), devices.begin() + std::ptrdiff_t{ways} * extents.stages());
    if (fits())
      return;
  }
  throw std::invalid_argument(
    "timetable file: a stage has passes of one microbatch on two devices");
}

//! The pipeline that passes are of.
[[nodiscard]] inline pipeline pipeline_of_passes(std::vector<csv_pass> const& all,
                                                 flow const& declared) {
  pipeline over{.extents = {}, .declared = declared};
  shape& extents = over.extents;
  if (all.empty())
    throw std::invalid_argument("timetable file: there is no pass");
  int stage_count = 0;
  std::vector<int> chunks;
  for (csv_pass const& one : all) {
    extents.devices = std::max(extents.devices, one.device + 1);
    stage_count = std::max(stage_count, one.what.stage + 1);
    chunks.resize(std::max(chunks.size(), std::size_t{one.what.microbatch} + 1));
    int& count = chunks[one.what.microbatch];
    count = std::max(count, one.what.chunk + 1);
    extents.chunks = std::max(extents.chunks, count);
  }
  if (chunks.size() > all.size() / static_cast<std::size_t>(stage_count))
    throw std::invalid_argument(
      "timetable file: there are fewer passes than stages times microbatches");
  extents.microbatches = static_cast<int>(chunks.size());
  extents.where = placement::custom;
  extents.stages_per_device = std::max(1, stage_count / extents.devices);
  extents.extra_stages = stage_count - extents.devices * extents.stages_per_device;
  check_extents(extents, declared.rows);
  if (std::count(chunks.begin(), chunks.end(), extents.chunks) != extents.microbatches) {
    over.first_units.assign(1, 0);
    for (int const count : chunks)
      over.first_units.push_back(over.first_units.back() + count);
  }
  place_passes(over, all);
  return over;
}

//! The timetable of lines after the heading.
[[nodiscard]] inline dynamic_timetable
read_rows(std::string_view text, flow const& declared, char const* place, int line) {
  std::vector<csv_pass> all;
  for (csv_fields fields{text.substr(csv_heading.size()), place, line}; !fields.rest.empty();) {
    ++fields.line;
    csv_pass& one = all.emplace_back();
    one.device = fields.number();
    one.what.kind = fields.kind(declared);
    one.what.stage = fields.number();
    one.what.microbatch = fields.number();
    one.what.chunk = fields.number();
    one.start = fields.time(',');
    one.end = fields.time('\n');
  }
  dynamic_timetable result{.over = pipeline_of_passes(all, declared)};
  result.offsets.assign(static_cast<std::size_t>(result.over.view().row_count()) + 1, 0);
  auto const row = [&](csv_pass const& one) { return result.over.view().row_of(one.what); };
  sort_stably(all, [&](auto const& a, auto const& b) { return row(a) < row(b); });
  for (csv_pass const* before = nullptr; csv_pass & one : all) {
    one.what.overlapped = before != nullptr && row(*before) == row(one) &&
                          row(one) < result.over.extents.devices && one.start < one.end &&
                          before->start == one.start && before->end == one.end &&
                          !before->what.overlapped;
    before = &one;
    result.passes.push_back(one.what);
    result.starts.push_back(one.start);
    result.ends.push_back(one.end);
    ++result.offsets[static_cast<std::size_t>(row(one)) + 1];
  }
  std::partial_sum(result.offsets.begin(), result.offsets.end(), result.offsets.begin());
  return result;
}

} // namespace detail

//! @brief Reads what `write_csv` has written.
//!
//! The largest numbers of the passes are the extents. The places of stages in the file are the
//! placement: one with a name, else a table. Two passes of the compute engine that take the same
//! time from the same start are the halves of a composite pass. Latency, times of links and edges
//! of a graph are not in a file: they are taken as in a chain whose messages take no time. `verify`
//! says whether the timetable keeps the rules.
//! @param declared the flow of the passes
//! @throws std::invalid_argument with the line and the reason, or for passes of no pipeline.
//! @complexity O(n K + n R) for n passes, K kinds and R ways of microbatches.
[[nodiscard]] inline dynamic_timetable read_csv(std::string_view text,
                                                flow const& declared = training) {
  if (!text.starts_with(detail::csv_heading))
    throw std::invalid_argument("CSV: line 1 is not the heading that write_csv writes");
  return detail::read_rows(text, declared, "CSV: line ", 1);
}

} // namespace pipelining::inline v0_3
