// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A timetable as a picture. Header for pipelining::write_svg.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/quote.hpp>
#include <pipe/flow/shades.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/figures.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief How large a picture may become.
struct svg_options {
  double most_width = 1800; //!< of the plot only, in pixels; half more where that shows numbers
  int most_tooltips = 5000; //!< passes beyond which cells say nothing under the mouse
};

//! @brief Appends text with letters that XML reserves escaped, without letters that it does not
//! know: control characters, U+FFFE and U+FFFF. Bytes that are not UTF-8 become question marks.
void append_xml(text_sink auto& out, std::string_view text) {
  while (!text.empty()) {
    std::string_view const letter = detail::take_letter(text);
    if (letter == "&")
      append(out, "&amp;");
    else if (letter == "<")
      append(out, "&lt;");
    else if (letter == ">")
      append(out, "&gt;");
    else if (letter == "\"")
      append(out, "&quot;");
    else if (letter >= " " && letter != "\xef\xbf\xbe" && letter != "\xef\xbf\xbf")
      out.append(letter);
  }
}

namespace detail {

//! Height of a row of copies or of the network, over the height of a row of passes.
inline constexpr double copy_share = 0.5;

//! Where everything of a picture goes, in pixels.
struct svg_layout {
  timetable_view table;
  std::vector<int> locals;
  int local_count = 1;
  double first = 0; //!< the time of the left edge
  double scale = 1; //!< pixels per unit of time
  double left = 0;
  double top = 74;
  double row = 34; //!< height of a row and the gap below it
  std::vector<int>
    copying{}; //!< engines with work next to the passes of some device: thinner rows below
  double gap = 4;
  double plot_width = 0;
  double width = 0;
  double height = 0;
  double font = 0; //!< of the numbers in cells; 0 for none
  double digits = 1;
  bool tooltips = false;

  [[nodiscard]] double x(double time) const { return left + (time - first) * scale; }
  //! From one device to the next.
  [[nodiscard]] double block() const {
    return row * (1 + copy_share * static_cast<double>(copying.size()));
  }
  [[nodiscard]] double y(int device) const { return top + device * block(); }
  [[nodiscard]] double bottom() const { return y(table.over.extents.devices); }
  [[nodiscard]] double bar_left() const { return left + plot_width + 18; }
};

//! A row of passes, of copies or of the network.
struct svg_row {
  double y;
  double height;
  int begin; //!< its entries
  int end;
};

inline constexpr double bar_width = 64;
inline constexpr double smallest_font = 7.5;

//! The width that digits need at a size of one pixel, with a margin on both sides.
[[nodiscard]] inline double fitting_font(double cell, double digits) {
  return (cell - 3) / (0.6 * digits);
}

//! One size for all numbers: the size for the narrowest cells that can hold one legibly.
[[nodiscard]] inline double cell_font(svg_layout const& layout) {
  double const most = std::min(13.0, (layout.row - layout.gap) * 0.62);
  double narrowest = 0;
  for (int i = 0; i < layout.table.size(); ++i) {
    double const cell = (layout.table.ends[i] - layout.table.starts[i]) * layout.scale;
    bool const holds = fitting_font(cell, layout.digits) >= smallest_font;
    if (holds && (narrowest == 0 || cell < narrowest))
      narrowest = cell;
  }
  double const font = std::min(most, fitting_font(narrowest, layout.digits));
  return font < smallest_font ? 0 : font;
}

[[nodiscard]] inline double row_height(int devices) {
  return devices <= 8    ? 34
         : devices <= 16 ? 28
         : devices <= 32 ? 22
                         : std::max(3.0, 704.0 / devices);
}

//! Room for a number in the shortest pass, within the bounds of the width; where that is too wide
//! by less than half, legible numbers go first.
[[nodiscard]] inline double
pixels_per_time(timetable_view table, double digits, svg_options const& options) {
  double const shortest = shortest_time(table);
  double const all = makespan(table);
  if (all < 1e-290) // below that, pixels per time overflow
    return 1;
  constexpr double least_width = 220;
  double const roomy = std::max(26.0, 13 * 0.6 * digits + 6) / shortest;
  double const scale = std::min(std::max(roomy, least_width / all), options.most_width / all);
  double const legible = (smallest_font * 0.6 * digits + 3.01) / shortest;
  return scale < legible && legible * all <= 1.5 * options.most_width ? legible : scale;
}

[[nodiscard]] inline svg_layout make_layout(timetable_view table, svg_options const& options) {
  svg_layout layout{table, local_stages(table)};
  layout.local_count = most_local_stages(table.over.extents, layout.locals);
  layout.row = row_height(table.over.extents.devices);
  layout.gap = std::min(4.0, layout.row * 0.12);
  for (int number = 1; number < table.over.declared->engines; ++number) {
    int const first = number * table.over.extents.devices;
    if (table.offsets[first + table.over.extents.devices] > table.offsets[first])
      layout.copying.push_back(number);
  }
  layout.tooltips = table.size() <= options.most_tooltips;
  layout.digits = 1;
  for (int last = table.over.extents.microbatches - 1; last >= 10; last /= 10)
    ++layout.digits;
  layout.left = 84;
  layout.first = first_start(table);
  layout.scale = pixels_per_time(table, layout.digits, options);
  layout.plot_width = makespan(table) * layout.scale;
  layout.width = std::max(720.0, layout.bar_left() + bar_width + 100);
  layout.height = layout.bottom() + 92;
  layout.font = cell_font(layout);
  return layout;
}

//! ` x="..."`, rounded to a hundredth of a pixel, for `append`.
struct attribute {
  std::string_view name;
  double value;
  void append_to(text_sink auto& out) const {
    append(out, " ", name, "=\"", rounded{value, 2}, "\"");
  }
};
void append_rectangle(text_sink auto& out, double x, double y, double width, double height) {
  append(out, "<rect", attribute{"x", x}, attribute{"y", y});
  append(out, attribute{"width", width}, attribute{"height", height});
}
//! Opens a text at a place; the caller appends the words and the end.
void begin_text(text_sink auto& out, double x, double y, double size, std::string_view more = "") {
  append(
    out, "<text", attribute{"x", x}, attribute{"y", y}, attribute{"font-size", size}, more, ">");
}

//! The colour of a pass: its kind, darker on later stages of its device and on later chunks.
[[nodiscard]] inline colour pass_colour(svg_layout const& layout, pass const& what) {
  int const local = local_stage(layout.table.over.extents, layout.locals, what);
  pipeline_view const& over = layout.table.over;
  return shade(
    (*over.declared)[what.kind], local, layout.local_count, what.chunk, over.extents.chunks);
}

void write_cell(text_sink auto& out, svg_layout const& layout, svg_row const& row, int entry) {
  timetable_view const& table = layout.table;
  pass const& what = table.passes[entry];
  bool const second = what.overlapped;
  bool const first = entry + 1 < row.end && table.passes[entry + 1].overlapped;
  double const height = first || second ? row.height / 2 : row.height;
  double const x = layout.x(table.starts[entry]);
  double const width = layout.x(table.ends[entry]) - x;
  if (width <= 0)
    return;
  double const y = row.y + (second ? height : 0);
  double const line = width > 6 ? 0.8 : width * 0.12; // of the white line between cells
  colour const fill = pass_colour(layout, what);
  append_rectangle(out, x + line / 2, y, width - line, first ? height - line : height);
  append(out, " fill=\"", hexadecimal(fill).data(), "\"");
  if (layout.tooltips) {
    append(out, "><title>");
    append_xml(out, describe(what, table.over));
    append(out, ": ", significant{table.starts[entry], 7}, " to ");
    append(out, significant{table.ends[entry], 7}, "</title></rect>");
  } else {
    append(out, "/>");
  }
  double const font = std::min(layout.font, height * 0.85);
  if (font < smallest_font || fitting_font(width, layout.digits) < font - 0.01)
    return;
  begin_text(out,
             x + width / 2,
             y + height / 2 + font * 0.36,
             font,
             text_is_light_on(fill) ? " fill=\"#fff\"" : "");
  append(out, number_of_cell(*layout.table.over.declared, what), "</text>");
}

//! A grey row with its cells, and a name before it.
void write_row(text_sink auto& out,
               svg_layout const& layout,
               svg_row const& row,
               std::string const& name,
               double font) {
  append_rectangle(out, layout.left, row.y, layout.plot_width, row.height);
  append(out, " fill=\"#ececec\"/>\n");
  if (!name.empty()) {
    begin_text(
      out, layout.left - 10, row.y + row.height / 2 + font * 0.36, font, " text-anchor=\"end\"");
    append(out, name, "</text>\n");
  }
  append(out, "<g text-anchor=\"middle\">\n");
  for (int i = row.begin; i < row.end; ++i)
    write_cell(out, layout, row, i);
  append(out, "\n</g>\n");
}

void write_rows(text_sink auto& out, svg_layout const& layout) {
  timetable_view const& table = layout.table;
  int const devices = table.over.extents.devices;
  double const font = std::clamp(layout.row * 0.8, 8.0, 13.0);
  int const every = layout.row >= 9 ? 1 : static_cast<int>(std::ceil(9 / layout.row));
  for (int device = 0; device < devices; ++device) {
    double y = layout.y(device);
    std::string name;
    if (device % every == 0)
      append(name, "device ", device);
    double height = layout.row - layout.gap;
    write_row(
      out, layout, {y, height, table.offsets[device], table.offsets[device + 1]}, name, font);
    y += layout.row;
    height = copy_share * layout.row - layout.gap;
    for (int const number : layout.copying) {
      int const row = number * devices + device;
      name = layout.row >= 20 ? engine_row_name(table, row) : "";
      write_row(
        out, layout, {y, height, table.offsets[row], table.offsets[row + 1]}, name, font - 2);
      y += copy_share * layout.row;
    }
  }
}

//! 1, 2 or 5 times a power of ten, so that marks stand at least 60 pixels apart.
[[nodiscard]] inline double axis_step(double scale) {
  double const least = 60 / scale;
  double const power = std::pow(10.0, std::floor(std::log10(least)));
  for (double const factor : {1.0, 2.0, 5.0})
    if (factor * power >= least)
      return factor * power;
  return 10 * power;
}

void write_axis(text_sink auto& out, svg_layout const& layout) {
  double const y = layout.bottom() + 4;
  double const step = axis_step(layout.scale);
  double const length = layout.plot_width / layout.scale;
  append(out, "<g text-anchor=\"middle\" fill=\"#555\">\n");
  for (int mark = 0; mark * step <= length * (1 + 1e-9); ++mark) {
    double const x = layout.left + mark * step * layout.scale;
    append_rectangle(out, x - 0.5, y, 1, 5);
    append(out, "/>");
    begin_text(out, x, y + 18, 12);
    append(out, rounded{mark * step, 9}, "</text>\n");
  }
  append(out, "</g>\n");
  begin_text(out, layout.left - 10, y + 18, 12, " text-anchor=\"end\" fill=\"#555\"");
  append(out, "time</text>\n");
}

//! A bar and a number after every row: the peak activations of the device, and where backward
//! passes are split, lighter after them, its peak weight inputs.
void write_peaks(text_sink auto& out, svg_layout const& layout, timetable_caption const& about) {
  int const devices = layout.table.over.extents.devices;
  double most = 0;
  bool split = false;
  for (int device = 0; device < devices; ++device) {
    double const inputs = peak_weight_inputs(layout.table, device, about);
    most = std::max(most, peak_activations(layout.table, device, about) + inputs);
    split = split || inputs > 0;
  }
  begin_text(out, layout.bar_left(), layout.top - 8, 12, " fill=\"#555\"");
  append(out, split ? "peaks: kept + for weights</text>\n" : "peak activations</text>\n");
  for (int device = 0; device < devices; ++device) {
    double const peak = peak_activations(layout.table, device, about);
    double const inputs = peak_weight_inputs(layout.table, device, about);
    double const scale = most > 0 ? bar_width / most : 0;
    double const height = layout.row - layout.gap;
    double const y = layout.y(device) + height * 0.2;
    append_rectangle(out, layout.bar_left(), y, scale * peak, height * 0.6);
    append(out, " fill=\"#9a9a9a\"/>");
    if (inputs > 0) {
      append_rectangle(out, layout.bar_left() + scale * peak, y, scale * inputs, height * 0.6);
      append(out, " fill=\"#cfcfcf\"/>");
    }
    if (layout.row >= 12) {
      begin_text(out,
                 layout.bar_left() + scale * (peak + inputs) + 5,
                 layout.y(device) + height / 2 + 4.3,
                 std::min(12.0, layout.row * 0.8));
      append(out, rounded{peak, 2});
      if (split)
        append(out, " + ", rounded{inputs, 2});
      append(out, "</text>");
    }
    append(out, "\n");
  }
}

void write_heading(text_sink auto& out, svg_layout const& layout, timetable_caption const& about) {
  begin_text(out, 20, 28, 18, " font-weight=\"bold\"");
  append_xml(out, about.schedule);
  append_counts(out, layout.table.over.extents, false);
  append(out, "</text>\n");
  timetable_figures const found = figures_of(layout.table, about);
  begin_text(out, 20, 50, 13.5, " fill=\"#333\"");
  append_bubbles(out, found, 1);
  append(out, "; ");
  append_peaks(out, layout.table, found, 2);
  append(out, "; makespan ", rounded{found.makespan, 3}, "</text>\n");
}

//! For every kind in use a strip of its shades and its name; then the meaning of the shades.
void write_legend(text_sink auto& out, svg_layout const& layout, timetable_caption const& about) {
  shape const& extents = layout.table.over.extents;
  double const y = layout.bottom() + 40;
  double x = 20;
  int const shades = std::min(layout.local_count * extents.chunks, 16);
  double const swatch = shades == 1 ? 18 : shades <= 4 ? 14 : 56.0 / shades;
  for (pass_kind const number : kinds_in_use(layout.table)) {
    kind_of_pass const& kind = (*layout.table.over.declared)[number];
    for (int i = 0; i < shades; ++i) {
      int const at = shades == 1 ? 0 : i * (layout.local_count * extents.chunks - 1) / (shades - 1);
      colour const fill =
        shade(kind, at / extents.chunks, layout.local_count, at % extents.chunks, extents.chunks);
      append_rectangle(out, x, y, swatch, 16);
      append(out, " fill=\"", hexadecimal(fill).data(), "\"/>");
      x += swatch;
    }
    begin_text(out, x + 6, y + 12.5, 13);
    std::string_view const name = legend_word(kind);
    append_xml(out, name);
    append(out, "</text>\n");
    x += 24 + 7.0 * static_cast<double>(name.size());
  }
  begin_text(out, 20, y + 38, 12.5, " fill=\"#555\"");
  append(out, "numbers: microbatches");
  if (layout.table.over.declared->engine_row[static_cast<int>(engine::network)] > 0)
    append(out, ", of the network stages");
  if (layout.local_count > 1)
    append(out,
           extents.where == placement::bidirectional ? "; dark: those that enter at the last device"
                                                     : "; darker: later stages of a device");
  if (extents.chunks > 1)
    append(out, "; shades: chunks of a sequence, first to last from light to dark");
  append(out, "; times: forward ", significant{about.cost.forward});
  append(out, ", backward ", significant{about.cost.backward_input});
  append(out, " + ", significant{about.cost.backward_weight});
  append(out, ", message ", significant{about.cost.communication});
  if (about.cost.all_reduce > 0)
    append(out, ", all-reduce ", significant{about.cost.all_reduce});
  for (std::size_t chunk = 0; chunk < about.chunk_lengths.size(); ++chunk)
    append(out, chunk == 0 ? "; tokens of chunks: " : ", ", about.chunk_lengths[chunk]);
  append(out, "</text>\n");
}

} // namespace detail

//! @brief Writes a picture: devices as rows, time to the right, kinds by colour, microbatches as
//! numbers in cells where they are legible, shades for chunks and for the stages of a device,
//! overlapped pairs as halves of a cell, peak activations after each row, legend and figures.
//!
//! Well-formed SVG 1.1 without scripts or style sheets, so that slides and converters take it.
//! @complexity O(n) for n passes.
void write_svg(text_sink auto& out,
               timetable_view table,
               timetable_caption const& about,
               svg_options const& options = {}) {
  detail::svg_layout const layout = detail::make_layout(table, options);
  double const width = std::ceil(layout.width);
  double const height = std::ceil(layout.height);
  append(out, "<svg xmlns=\"http://www.w3.org/2000/svg\"", detail::attribute{"width", width});
  append(out, detail::attribute{"height", height}, " viewBox=\"0 0 ", detail::rounded{width, 0});
  append(out, " ", detail::rounded{height, 0});
  append(out, "\" font-family=\"Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif\">\n");
  append(out, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
  detail::write_heading(out, layout, about);
  detail::write_rows(out, layout);
  detail::write_axis(out, layout);
  detail::write_peaks(out, layout, about);
  detail::write_legend(out, layout, about);
  append(out, "</svg>\n");
}

} // namespace pipelining::inline v0_3
