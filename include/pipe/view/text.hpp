// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A timetable for the terminal, one row per device, in bands one below the other where its
//! names need more room. Header for pipelining::write_text.

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
  int columns = 0;       //!< of the whole time
  int band = 0;          //!< columns of a band
  bool names = true;     //!< cells have numbers; false: only letters
  std::size_t label = 0; //!< width of the names of devices
};

//! True when the letter of a kind says enough: the flow gives it, or no other kind has it.
[[nodiscard]] constexpr bool says_enough(flow const& declared, pass_kind kind) noexcept {
  bool alone = true;
  for (int other = 0; other < declared.kind_count; ++other)
    alone = alone && (other == index_of(kind) || !declared.kinds[other].exists() ||
                      declared.letter(static_cast<pass_kind>(other)) != declared.letter(kind));
  return declared[kind].letter != '\0' || alone;
}

//! "F3", "F3.1" with chunks; the other case on every second stage of a device.
//! @param in_full the word in place of the letter, where another kind has the same letter
[[nodiscard]] inline std::string
cell_name(text_grid const& grid, pass const& what, bool with_chunk, bool in_full) {
  flow const& declared = *grid.table.over.declared;
  std::string name(1, declared.letter(what.kind));
  if (in_full && !says_enough(declared, what.kind))
    name = declared.word(what.kind);
  if (local_stage(grid.table.over.extents, grid.locals, what) % 2 == 1)
    name[0] = static_cast<char>(name[0] ^ ('a' - 'A')); // the other case
  append_number(name, number_of_cell(declared, what));
  if (with_chunk && declared[what.kind].on != engine::network)
    append(name, ".", what.chunk);
  return name;
}

//! The longest name of the entry that fits into a cell.
[[nodiscard]] inline std::string cell_text(text_grid const& grid, int entry, std::size_t width) {
  pass const& what = grid.table.passes[entry];
  bool const pair = entry + 1 < grid.table.size() && grid.table.passes[entry + 1].overlapped;
  bool const chunks = grid.table.over.extents.chunks > 1;
  for (int detail = grid.names ? 3 : 0; detail > 0; --detail) {
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

//! Columns [from, to) of one cell: name, dashes up to its end, and a space before the next cell
//! where there are names and room.
void write_cell(
  text_sink auto& out, text_grid const& grid, int entry, int columns, int from, int to) {
  auto const width = static_cast<std::size_t>(columns);
  std::string text = cell_text(grid, entry, width);
  bool gap = grid.names && text.size() < width;
  text.resize(gap ? width - 1 : width, '-');
  gap = gap && to == columns;
  text = text.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
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

//! Columns [left, right) of a row.
void write_text_row(text_sink auto& out, text_grid const& grid, int row, int left, int right) {
  timetable_view const& table = grid.table;
  int column = 0;
  auto const idle_until = [&](int end) {
    int const shown = std::min(end, right) - std::max(column, left);
    out.append(std::string(static_cast<std::size_t>(std::max(0, shown)), '.'));
    column = std::max(column, end);
  };
  for (int i = table.offsets[row]; i < table.offsets[row + 1]; ++i) {
    int const end = column_of(grid, table.ends[i]);
    if (table.passes[i].overlapped || end <= column)
      continue;
    idle_until(column_of(grid, table.starts[i]));
    int const from = std::max(left - column, 0);
    int const to = std::min(end, right) - column;
    if (from < to)
      write_cell(out, grid, i, end - column, from, to);
    column = end;
  }
  idle_until(grid.columns);
}

//! Columns that the longest name of a cell takes, with a space after it.
[[nodiscard]] inline std::size_t widest_cell(timetable_view table) {
  std::string name = "F";
  append_number(name, table.over.extents.microbatches - 1);
  if (table.over.extents.chunks > 1)
    append(name, ".", table.over.extents.chunks - 1);
  return name.size() + 1;
}

//! Rows with passes.
[[nodiscard]] inline int shown_rows(timetable_view table) {
  int count = table.over.extents.devices;
  for (int row = count; row < table.rows(); ++row)
    count += table.row_size(row) > 0 ? 1 : 0;
  return count;
}

//! Sets columns per unit of time: every name readable in one band where that fits, else in as many
//! bands as fit on a screen. Else only letters: a whole number of columns for the shortest pass, or
//! whatever fills the width.
inline void scale_to(text_grid& grid, double room) {
  constexpr double most_lines = 48;
  double const shortest = shortest_time(grid.table);
  double const all = makespan(grid.table);
  grid.band = static_cast<int>(room);
  if (shortest == 0 || all < 1e-290) { // below that, columns per time overflow
    grid.scale = all > room ? room / all : 1;
    return;
  }
  double const whole = std::floor(room * shortest / all);
  auto const wanted = static_cast<double>(widest_cell(grid.table));
  double const cells = all / shortest;
  double const bands = std::ceil(cells / std::floor(room / wanted) - 1e-9);
  if (whole >= wanted - 1) {
    grid.scale = std::min(whole, wanted) / shortest;
  } else if (bands * (shown_rows(grid.table) + 2) <= most_lines) {
    grid.scale = wanted / shortest;
    grid.band = static_cast<int>(std::ceil(cells / bands - 1e-9) * wanted);
  } else {
    grid.names = false;
    grid.scale = whole >= 1 ? whole / shortest : room / all;
  }
}

[[nodiscard]] inline text_grid make_text_grid(timetable_view table, text_options options) {
  text_grid grid{table, options, local_stages(table)};
  std::string last = "device ";
  append_number(last, table.over.extents.devices - 1);
  grid.label = last.size();
  double const room = std::max(options.width, 40) - static_cast<double>(last.size()) - 12;
  scale_to(grid, room);
  grid.first = first_start(table);
  grid.columns = static_cast<int>(std::ceil(makespan(table) * grid.scale - 1e-6));
  return grid;
}

void write_text_heading(text_sink auto& out,
                        timetable_view table,
                        timetable_caption const& about,
                        timetable_figures const& found,
                        int width) {
  shape const& extents = table.over.extents;
  append(out, about.schedule, ": devices ", extents.devices, ", stages ", extents.stages());
  append(out, ", microbatches ", extents.microbatches, ", chunks ", extents.chunks, "\n");
  append(out, "cost: forward ", significant{about.cost.forward});
  append(out, ", backward_input ", significant{about.cost.backward_input});
  append(out, ", backward_weight ", significant{about.cost.backward_weight});
  append(out, ", communication ", significant{about.cost.communication});
  if (about.cost.all_reduce > 0)
    append(out, ", all_reduce ", significant{about.cost.all_reduce});
  append(out, "\n");
  for (std::size_t chunk = 0; chunk < about.chunk_lengths.size(); ++chunk)
    append(out, chunk == 0 ? "tokens of chunks: " : ", ", about.chunk_lengths[chunk]);
  append(out, about.chunk_lengths.empty() ? "" : "; costs are means over them\n");
  append(out, "makespan ", rounded{found.makespan, 6}, ", span ", rounded{found.span, 6}, ", ");
  append_bubbles(out, found, 2);
  append(out, "\n");
  std::string peaks;
  append_peaks(peaks, table, found, 4);
  if (std::size_t const at = peaks.find(", weight inputs");
      peaks.size() > static_cast<std::size_t>(width) && at != peaks.npos)
    peaks.replace(at, 2, ",\n");
  append(out, peaks, "\n");
  if (about.least_makespan > 0) {
    auto const bound = [&out](char const* what, double least, double own) {
      append(out, what, rounded{least, 6}, " (gap ");
      append(out, rounded{std::max(0.0, 100 * (own / least - 1)), 2}, " %)");
    };
    append(out, "no order of this placement and memory beats");
    bound(" makespan ", about.least_makespan, found.makespan);
    bound(" or span ", about.least_span, found.span);
    append(out, "\n");
  }
  append(out, "\n");
}

void write_text_legend(text_sink auto& out, text_grid const& grid) {
  for (pass_kind const kind : kinds_in_use(grid.table)) {
    flow const& declared = *grid.table.over.declared;
    char const name[] = {declared.letter(kind), '\0'};
    append(out, name, " ", declared.word(kind), ", ");
  }
  append(out, ". idle, - goes on");
  bool const pairs = std::any_of(grid.table.passes,
                                 grid.table.passes + grid.table.size(),
                                 [](pass const& each) { return each.overlapped; });
  if (pairs)
    append(out, grid.names ? ", + at once" : ", & two at once");
  append(out, "\n");
  if (!grid.names)
    append(out, "a letter for the pass at the middle of its column; a wider text has numbers");
  else
    append(out, "numbers: microbatch", grid.table.over.extents.chunks > 1 ? ".chunk" : "");
  if (grid.names && grid.table.over.declared->engine_row[static_cast<int>(engine::network)] > 0)
    append(out, ", of the network stage");
  if (int const most = most_local_stages(grid.table.over.extents, grid.locals); most > 1)
    append(out,
           grid.table.over.extents.where == placement::bidirectional
             ? "; lower case: microbatches that enter at the last device"
           : most == 2 ? "; lower case: the second stage of a device"
                       : "; lower case: every second stage of a device");
  append(out, "\n");
}

//! One band of the grid, with peaks after its rows where it is the last one.
//! @param split whether the peaks have weight inputs
void write_text_band(text_sink auto& out,
                     text_grid const& grid,
                     timetable_caption const& about,
                     int left,
                     bool split) {
  timetable_view const& table = grid.table;
  int const right = std::min(left + grid.band, grid.columns);
  bool const last = right == grid.columns;
  auto const write_name = [&](std::string name) {
    name.resize(grid.label, ' ');
    append(out, name, " |");
  };
  std::string heading(grid.label + 2, ' ');
  if (grid.columns > grid.band)
    append(heading, "time ", rounded{left / grid.scale, 3});
  if (last) {
    std::size_t const end = grid.label + 2 + static_cast<std::size_t>(right - left);
    heading.resize(std::max(heading.size(), end), ' ');
    heading += split ? " peak + weight inputs" : " peak";
  }
  append(out, heading, "\n");
  for (int device = 0; device < table.over.extents.devices; ++device) {
    std::string name = "device ";
    append_number(name, device);
    write_name(name);
    write_text_row(out, grid, device, left, right);
    append(out, last ? "| " : "|");
    if (last)
      append(out, rounded{peak_activations(table, device, about), 4});
    if (last && split)
      append(out, " + ", rounded{peak_weight_inputs(table, device, about), 4});
    append(out, "\n");
    for (int row = device + table.over.extents.devices; row < table.rows();
         row += table.over.extents.devices)
      if (table.row_size(row) > 0) {
        write_name(engine_row_name(table, row));
        write_text_row(out, grid, row, left, right);
        append(out, "|\n");
      }
  }
  append(out, "\n");
}

} // namespace detail

//! @brief Writes the figures of a timetable and a grid with one row per device, time to the right,
//! peak activations at the end of each row and, where backward passes are split, after them peak
//! weight inputs. Below it a row for each engine that copies. Where the names of passes need more
//! than the width, the grid goes on in bands below, up to a screen of them; then only letters are
//! left, scaled to the width.
//! @complexity O(b n + P width) for n passes and b bands.
void write_text(text_sink auto& out,
                timetable_view table,
                timetable_caption const& about,
                text_options options = {}) {
  detail::text_grid const grid = detail::make_text_grid(table, options);
  timetable_figures const found = figures_of(table, about);
  detail::write_text_heading(out, table, about, found, options.width);
  int left = 0;
  do {
    detail::write_text_band(out, grid, about, left, found.peak_weight_inputs > 0);
    left += grid.band;
  } while (left < grid.columns);
  detail::write_text_legend(out, grid);
}

} // namespace pipelining::inline v0_3
