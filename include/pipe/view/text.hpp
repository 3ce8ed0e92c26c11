// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A timetable for the terminal, one row per device. Header for pipelining::write_text.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/figures.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief How wide a text may be and whether the terminal understands colours.
struct text_options {
  int width = 100;     //!< columns of the terminal; narrower than 40 is taken as 40
  bool colour = false; //!< whether the terminal shows colours
};

namespace detail {

//! The parts of a text that are the same for all of its rows.
struct text_grid {
  timetable_view table;
  text_options options;
  std::vector<int> locals;
  double first = 0;      //!< the time of the left edge
  double scale = 1;      //!< columns per unit of time
  int columns = 0;       //!< width of the grid
  std::size_t label = 0; //!< width of the names of devices
};

//! True when the letter of a kind says enough: the flow gives it, or no other kind has it.
[[nodiscard]] constexpr bool says_enough(flow const& declared, pass_kind kind) noexcept {
  bool alone = true;
  for (int other = 0; other < declared.kind_count; ++other)
    alone = alone && (other == index_of(kind) || !declared.kinds[other].exists() ||
                      letter(declared, static_cast<pass_kind>(other)) != letter(declared, kind));
  return declared[kind].letter != '\0' || alone;
}

//! "F3", "F3.1" with chunks; the other case on every second stage of a device.
//! @param in_full the word in place of the letter, where another kind has the same letter
[[nodiscard]] inline std::string
cell_name(text_grid const& grid, pass const& what, bool with_chunk, bool in_full) {
  flow const& declared = *grid.table.over.declared;
  std::string name(1, letter(declared, what.kind));
  if (in_full && !says_enough(declared, what.kind))
    name = word(declared, what.kind);
  if (local_stage(grid.table.over.extents, grid.locals, what) % 2 == 1)
    name[0] = static_cast<char>(name[0] ^ ('a' - 'A')); // the other case
  append_number(name, number_of_cell(declared, what));
  if (with_chunk && declared[what.kind].on != engine::network)
    append(name, ".", what.chunk);
  return name;
}

//! The longest name of the entry that fits into a cell; "" when not even the letter does.
[[nodiscard]] inline std::string cell_text(text_grid const& grid, int entry, std::size_t width) {
  pass const& what = grid.table.passes[entry];
  bool const pair = entry + 1 < grid.table.size() && grid.table.passes[entry + 1].overlapped;
  bool const chunks = grid.table.over.extents.chunks > 1;
  for (int detail = 3; detail > 0; --detail) {
    bool const with_chunk = chunks && detail >= 2;
    std::string name = cell_name(grid, what, with_chunk, detail == 3);
    if (pair)
      name += "+" + cell_name(grid, grid.table.passes[entry + 1], with_chunk, detail == 3);
    if (name.size() <= width)
      return name;
  }
  return pair ? "&" : cell_name(grid, what, false, false).substr(0, 1);
}

//! Kinds with one role have one colour.
[[nodiscard]] constexpr int hue_of(role is) noexcept {
  switch (is) {
  case role::backward: return 1;
  case role::input: return 2;
  case role::weights: return 3;
  case role::copy:
  case role::mark: return 4;
  default: return 0;
  }
}

//! One cell: name, dashes up to its end, and a space before the next cell where there is room.
void write_cell(text_sink auto& out, text_grid const& grid, int entry, int columns) {
  auto const width = static_cast<std::size_t>(columns);
  std::string text = cell_text(grid, entry, width);
  bool const gap = text.size() < width;
  text.resize(gap ? width - 1 : width, '-');
  if (grid.options.colour) {
    // Two shades of blue, orange, yellow, green and grey of the 256 colours of terminals.
    constexpr char const* shades[5][2] = {
      {"117", "74"}, {"216", "173"}, {"222", "179"}, {"115", "72"}, {"250", "245"}};
    pass const& what = grid.table.passes[entry];
    int const shade = local_stage(grid.table.over.extents, grid.locals, what) % 2;
    append(out,
           "\x1b[38;5;16;48;5;",
           shades[hue_of((*grid.table.over.declared)[what.kind].is)][shade],
           "m");
    append(out, text, "\x1b[0m", gap ? " " : "");
  } else {
    append(out, text, gap ? " " : "");
  }
}

//! A column belongs to the pass that runs at its middle.
[[nodiscard]] inline int column_of(text_grid const& grid, double time) {
  double const column = std::ceil((time - grid.first) * grid.scale - 0.5);
  return std::clamp(static_cast<int>(column), 0, grid.columns);
}

void write_text_row(text_sink auto& out, text_grid const& grid, int row) {
  timetable_view const& table = grid.table;
  int column = 0;
  for (int i = table.offsets[row]; i < table.offsets[row + 1]; ++i) {
    int const begin = column_of(grid, table.starts[i]);
    int const end = column_of(grid, table.ends[i]);
    if (table.passes[i].overlapped || end <= column)
      continue;
    out.append(std::string(static_cast<std::size_t>(std::max(0, begin - column)), '.'));
    column = std::max(begin, column);
    write_cell(out, grid, i, end - column);
    column = end;
  }
  out.append(std::string(static_cast<std::size_t>(grid.columns - column), '.'));
}

//! Columns that the longest name of a cell takes, with a space after it.
[[nodiscard]] inline std::size_t widest_cell(timetable_view table) {
  std::string name = "F";
  append_number(name, table.over.extents.microbatches - 1);
  if (table.over.extents.chunks > 1)
    append(name, ".", table.over.extents.chunks - 1);
  return name.size() + 1;
}

//! Columns per unit of time: every name readable where that fits, else a whole number of columns
//! for the shortest pass, else whatever fills the width.
[[nodiscard]] inline double columns_per_time(timetable_view table, double room) {
  double const shortest = shortest_time(table);
  double const all = makespan(table);
  if (shortest == 0 || all < 1e-290) // below that, columns per time overflow
    return 1;
  double const whole = std::floor(room * shortest / all);
  auto const wanted = static_cast<double>(widest_cell(table));
  return whole >= 1 ? std::min(whole, wanted) / shortest : room / all;
}

[[nodiscard]] inline text_grid make_text_grid(timetable_view table, text_options options) {
  text_grid grid{table, options, local_stages(table)};
  std::string last = "device ";
  append_number(last, table.over.extents.devices - 1);
  grid.label = last.size();
  double const room = std::max(options.width, 40) - static_cast<double>(last.size()) - 12;
  grid.scale = columns_per_time(table, room);
  grid.first = first_start(table);
  grid.columns = static_cast<int>(std::ceil(makespan(table) * grid.scale - 1e-6));
  return grid;
}

void write_text_heading(text_sink auto& out, timetable_view table, timetable_caption const& about) {
  shape const& extents = table.over.extents;
  append(out, about.schedule, ": devices ", extents.devices, ", stages ", stages(extents));
  append(out, ", microbatches ", extents.microbatches, ", chunks ", extents.chunks, "\n");
  append_time(out, "cost: forward ", about.cost.forward);
  append_time(out, ", backward_input ", about.cost.backward_input);
  append_time(out, ", backward_weight ", about.cost.backward_weight);
  append_time(out, ", communication ", about.cost.communication);
  if (about.cost.all_reduce > 0)
    append_time(out, ", all_reduce ", about.cost.all_reduce);
  append(out, "\n");
  for (std::size_t chunk = 0; chunk < about.chunk_lengths.size(); ++chunk)
    append(out, chunk == 0 ? "tokens of chunks: " : ", ", about.chunk_lengths[chunk]);
  append(out, about.chunk_lengths.empty() ? "" : "; costs are means over them\n");
  append(out, "makespan ");
  append_rounded(out, makespan(table), 6);
  append(out, ", span ");
  append_rounded(out, span_of(table), 6);
  timetable_figures const found = figures_of(table, about);
  append(out, ", ");
  append_bubbles(out, found, 2);
  append(out, "\n");
  append_peaks(out, table, found, 4);
  append(out, "\n");
  if (about.least_makespan > 0) {
    append(out, "no order of this placement and memory beats makespan ");
    append_rounded(out, about.least_makespan, 6);
    append(out, " (gap ");
    append_rounded(out, std::max(0.0, 100 * (makespan(table) / about.least_makespan - 1)), 2);
    append(out, " %) or span ");
    append_rounded(out, about.least_span, 6);
    append(out, " (gap ");
    append_rounded(out, std::max(0.0, 100 * (span_of(table) / about.least_span - 1)), 2);
    append(out, " %)\n");
  }
  append(out, "\n");
}

void write_text_legend(text_sink auto& out, text_grid const& grid) {
  for (pass_kind const kind : kinds_in_use(grid.table)) {
    flow const& declared = *grid.table.over.declared;
    char const name[] = {letter(declared, kind), '\0'};
    append(out, name, " ", word(declared, kind), ", ");
  }
  append(out, grid.table.over.extents.chunks > 1 ? "microbatch.chunk" : "microbatch");
  if (grid.table.over.declared->engine_row[static_cast<int>(engine::network)] > 0)
    append(out, ", of the network stage");
  append(out, ", . idle");
  if (most_local_stages(grid.table.over.extents, grid.locals) > 1)
    append(out,
           grid.table.over.extents.where == placement::bidirectional
             ? "; lower case: microbatches that enter at the last device"
             : "; lower case: every second stage of a device");
  append(out, "\n");
}

} // namespace detail

//! @brief Writes the figures of a timetable and a grid with one row per device, time to the right,
//! scaled to the width, peak activations at the end of each row and, where backward passes are
//! split, after them peak weight inputs. Below it a row for each engine that copies.
//! @complexity O(n + P width) for n passes.
void write_text(text_sink auto& out,
                timetable_view table,
                timetable_caption const& about,
                text_options options = {}) {
  detail::text_grid const grid = detail::make_text_grid(table, options);
  detail::write_text_heading(out, table, about);
  double inputs = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    inputs = std::max(inputs, peak_weight_inputs(table, device, about));
  bool const split = inputs > 0;
  append(out, std::string(grid.label + 2 + static_cast<std::size_t>(grid.columns), ' '));
  append(out, split ? " peak + weight inputs\n" : " peak\n");
  for (int device = 0; device < table.over.extents.devices; ++device) {
    std::string name = "device ";
    append_number(name, device);
    name.resize(grid.label, ' ');
    append(out, name, " |");
    detail::write_text_row(out, grid, device);
    append(out, "| ");
    append_rounded(out, peak_activations(table, device, about), 4);
    if (split) {
      append(out, " + ");
      append_rounded(out, peak_weight_inputs(table, device, about), 4);
    }
    append(out, "\n");
    for (int row = device + table.over.extents.devices; row < table.rows();
         row += table.over.extents.devices)
      if (table.row_size(row) > 0) {
        name = detail::engine_row_name(table, row);
        name.resize(grid.label, ' ');
        append(out, name, " |");
        detail::write_text_row(out, grid, row);
        append(out, "|\n");
      }
  }
  append(out, "\n");
  detail::write_text_legend(out, grid);
}

} // namespace pipelining::inline v0_3
