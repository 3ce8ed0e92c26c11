// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where the passes of a timetable stand, and what each waits for. What `simulate` and
//! `verify` share.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/workers.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! The number of an entry in its row. Unsigned, so that the number before the first is one that no
//! row reaches.
using entry_number = std::uint32_t;
inline constexpr entry_number no_entry = ~entry_number{0};

//! Where what a line is for a unit is made: one more than the entry, and above bit 30 the engine
//! row of the device that holds the line; 0 where nobody makes it.
using place_code = std::uint32_t;
inline constexpr place_code place_bits = 30;
inline constexpr place_code entry_mask = (place_code{1} << place_bits) - 1;

//! No line, or no such unit.
inline constexpr int nothing_before = -1;
//! Several lines, or one whose maker stands in another place than most.
inline constexpr int several_before = -2;

//! The times between devices that a timetable says it has.
struct message_times {
  double latency;
  group_times groups{};
  double const* links = nullptr; //!< [P x P]; null: all take `latency`
};

//! A line whose maker on another device a pass waits for, in its own unit. `nothing_before` where
//! all that it waits for stands before it in its own row; else `several_before`, and its
//! dependencies say them.
using input_line = std::int32_t;

//! One row of a timetable without times.
struct place_row {
  pass const* passes;
  input_line* inputs; //!< what each pass waits for outside of its row
  entry_number count;
};

//! The errors of rows by themselves.
struct row_findings {
  report first;
  int entered = 0; //!< wanted lines that passes of these rows make, where nothing is wrong

  constexpr void add(row_findings const& next) noexcept {
    if (first)
      first = next.first;
    entered += next.entered;
  }
};

//! The place that every pass of a timetable has, by line and unit, and what each waits for.
struct entered_rows {
  pipeline_view over;
  owned<int> holders;        //!< [lines], the device of each
  owned<place_code> cells;   //!< [lines][units]
  owned<place_code*> places; //!< [lines] of [units]
  owned<input_line> inputs;  //!< of all passes
  owned<place_row> rows;     //!< [rows]
  row_findings found{};

  //! @param offsets [rows + 1], row after row
  //! @param by who enters them; a device writes places of its own
  template <worker_group Workers = one_worker>
  constexpr entered_rows(pipeline_view const& of,
                         pass const* passes,
                         int const* offsets,
                         Workers const& by = {});

  //! The time of a message from the device that holds a line.
  [[nodiscard]] constexpr double
  across(message_times const& times, int line, int device) const noexcept {
    return message_time(
      times.links, over.extents.devices, times.latency, holders.data[line], device);
  }
  //! The time from the end of what a pass waits for to the pass. @param device, stage of the pass
  [[nodiscard]] constexpr double transfer(message_times const& times,
                                          dependency const& from,
                                          int device,
                                          int stage) const noexcept {
    return from.own ? 0
                    : transfer_time(
                        over, times.groups, across(times, from.line, device), from.stage, stage);
  }
};

//! True when an overlapped entry is the second half of a composite pass.
[[nodiscard]] constexpr bool completes_pair(pass const* row, entry_number entry) noexcept {
  return entry > 0 && !row[entry - 1].overlapped;
}

//! The report on an entry that cannot stand where it stands.
//! @param taken the row of the flow that another pass has made already, or none
[[nodiscard]] constexpr report
misplaced(entered_rows const& map, int number, entry_number entry, int taken) {
  pass const* const row = map.rows[number].passes;
  pass const what = row[entry];
  int const device = number % map.over.extents.devices;
  report found{report::rule::repeated_pass, device, static_cast<int>(entry), what, what};
  if (taken != kind_links::none && taken != map.over.links_of(what).made[0]) {
    found.other.kind = namer_of(map.over, taken, what.stage);
  } else if (map.over.row_of(what) != number) {
    found.broken = report::rule::wrong_device;
    found.other = {};
  } else if (what.overlapped && !completes_pair(row, entry)) {
    found.broken = report::rule::lone_half;
    found.other = {};
  }
  return found;
}

//! The links of a kind on a stage, as distances between lines, for loops over many passes: a cache
//! line each.
struct alignas(64) entry_links {
  static constexpr int none = -0x7fffffff; // no distance is that large

  int made = none; //!< from the line of row 0 of the stage; none where there is no such kind
  int also[2] = {none, none};
  int input = none; //!< likewise, of another stage; of a graph, whether there is one
  int own[kind_links::most_own] = {none, none, none, none};
  std::int16_t chunk_step = 0; //!< 0 where sequences are whole
  std::int8_t wanted = 0;      //!< how many wanted rows it makes
  bool runs_here = false;      //!< on the engine of the row
};

//! The links of all kinds, on a first, a last, an only and any other stage.
struct entry_rules {
  entry_links of[flow::most_kinds][4]; //!< [kind][1 with a stage before + 2 with a stage after]

  constexpr entry_rules(pipeline_view const& over, int engine_row) {
    flow const& declared = *over.declared;
    int const stage_count = over.extents.stages();
    bool const chunked = over.extents.chunks > 1 || over.first_units != nullptr;
    for (int kind = 0; kind < declared.kind_count; ++kind) {
      if (!declared.kinds[kind].exists() ||
          (declared.kinds[kind].in_groups && over.edges == nullptr))
        continue;
      for (int where = 0; where < 4; ++where) {
        kind_links const& links = declared.links[kind][where / 2];
        entry_links& result = of[kind][where];
        result.runs_here =
          declared.engine_row[static_cast<int>(declared.kinds[kind].on)] == engine_row;
        result.chunk_step = static_cast<std::int16_t>(chunked ? links.chunk_step : 0);
        result.made = links.made[0] * stage_count;
        for (int k = 0; k < 3; ++k)
          result.wanted = static_cast<std::int8_t>(
            result.wanted +
            (links.made[k] != kind_links::none && declared.wanted[links.made[k]] ? 1 : 0));
        for (int k = 0; k < 2; ++k)
          if (links.made[k + 1] != kind_links::none)
            result.also[k] = links.made[k + 1] * stage_count;
        for (int k = 0; k < kind_links::most_own; ++k)
          if (links.own[k] != kind_links::none)
            result.own[k] = links.own[k] * stage_count;
        bool const there = links.input_step == group_step ? over.edges != nullptr
                           : links.input_step < 0         ? where % 2 == 1
                                                          : where / 2 == 1;
        if (links.input != kind_links::none && there)
          result.input = links.input * stage_count + links.input_step;
      }
    }
  }
};

//! Where a pass stands, from which its links and its unit follow.
struct entry_place {
  bool known;         //!< false where there is no such pass
  int where;          //!< of entry_rules
  int first;          //!< unit of its microbatch
  int count;          //!< chunks of its microbatch
  bool still = false; //!< of a graph, whether the stage only goes forward
};

//! The place of a pass where stages are no chain, or microbatches differ in chunks.
//! @param in_chain its place in a chain of microbatches that are alike
[[nodiscard]] constexpr entry_place
place_beyond_chains(pipeline_view const& over, pass const& what, entry_place in_chain) noexcept {
  entry_place found = in_chain;
  if (found.known && over.edges != nullptr) {
    kind_of_pass const& kind = (*over.declared)[what.kind];
    found.known = kind.exists() && kind.in_groups == over.in_group(what.stage);
    found.where = position_in_graph(over, what);
    found.still = goes_forward_only(over, what.stage);
  }
  if (found.known && over.first_units != nullptr) {
    found.first = over.first_units[what.microbatch];
    found.count = over.first_units[what.microbatch + 1] - found.first;
  }
  return found;
}

//! Enters a pass for what it makes besides its first line.
//! @param lines of row 0 of the flow, from the stage of the pass on
//! @return the distance of a line that another pass has made already, or none
constexpr int
enter_also(entry_links const& links, place_code* const* lines, int unit, place_code code) noexcept {
  int taken = entry_links::none;
  for (int k = 0; k < 2 && links.also[k] != entry_links::none; ++k) {
    place_code& at = lines[links.also[k]][unit];
    if (at == 0)
      at = code;
    else
      taken = links.also[k];
  }
  return taken;
}

//! One row of the map while its passes are entered, in their order.
struct row_entrance {
  entered_rows const& map;
  entry_rules const& rules;
  place_row row;
  int number;                   //!< of the row
  place_code* const* places_of; //!< those of the map, to write
  input_line* inputs;           //!< those of the row, to write
  int const* holders;           // copies, since what is written might change the others
  shape extents;
  int device, last_stage, one_way;
  bool one_route;
  bool plain;      //!< stages are a chain, all microbatches have as many chunks
  bool chain;      //!< stages are a chain
  place_code here; //!< entries of this row have codes from here on, those after it greater ones

  constexpr row_entrance(entered_rows const& into, entry_rules const& by, int at)
      : map(into), rules(by), row(into.rows[at]), number(at), places_of(into.places),
        inputs(row.inputs), holders(into.holders), extents(into.over.extents),
        device(at % extents.devices), last_stage(extents.stages() - 1),
        one_way(into.over.declared->rows * (last_stage + 1)), one_route(extents.routes() == 1),
        plain(map.over.edges == nullptr && map.over.first_units == nullptr),
        chain(map.over.edges == nullptr),
        here((static_cast<place_code>(at / extents.devices) << place_bits) + 1) {}

  //! The place of a pass.
  [[nodiscard]] constexpr entry_place place_of(pass const& what) const noexcept {
    int const stage = what.stage;
    int const where = (stage > 0 ? 1 : 0) + (stage < last_stage ? 2 : 0);
    bool const known = static_cast<int>(what.kind) < flow::most_kinds && stage <= last_stage &&
                       what.microbatch < extents.microbatches;
    entry_place const place{known, where, what.microbatch * extents.chunks, extents.chunks};
    return plain ? place : place_beyond_chains(map.over, what, place);
  }

  //! Whether what an entry waits for does not stand before it in the row.
  //! @param behind entries of the row that it may wait for
  [[nodiscard]] constexpr bool lacks(int line, int unit, place_code behind) const noexcept {
    return places_of[line][unit] - here >= behind; // those before it have codes from here on
  }
  //! Finds what an entry waits for.
  //! @param base the line of row 0 of the flow on its stage
  constexpr void find_waits(entry_number i,
                            entry_links const& links,
                            int base,
                            entry_place const& place,
                            pass const& what) const noexcept {
    int const unit = place.first + what.chunk;
    place_code const behind = what.overlapped ? i - 1 : i; // a pair does not feed itself
    input_line input = links.input == entry_links::none ? nothing_before : several_before;
    if (int const line = base + links.input; chain && input == several_before)
      input = holders[line] != device     ? line
              : lacks(line, unit, behind) ? several_before
                                          : nothing_before;
    for (int k = 0; k < kind_links::most_own && links.own[k] != entry_links::none; ++k)
      if (lacks(base + links.own[k], unit, behind))
        input = several_before;
    if (links.chunk_step != 0) {
      int const other = what.chunk + links.chunk_step;
      if (other >= 0 && other < place.count &&
          lacks(base + links.made, place.first + other, behind))
        input = several_before;
    }
    inputs[i] = input;
  }

  //! Enters the lines that an entry makes. Counts those that are wanted.
  //! @return the distance of a line that it cannot make, or none
  constexpr int enter(entry_number i,
                      entry_links const& links,
                      int base,
                      entry_place const& place,
                      pass const& what,
                      int& entered) const noexcept {
    int const line = base + links.made;
    place_code& at = places_of[line][place.first + what.chunk];
    if (holders[line] != device || !links.runs_here || at != 0 ||
        (what.overlapped && !completes_pair(row.passes, i)))
      return links.made;
    at = here + i;
    entered += place.still ? 1 : links.wanted; // what others read, or all
    return links.also[0] == entry_links::none
             ? entry_links::none
             : enter_also(links, places_of + base, place.first + what.chunk, at);
  }
};

//! Enters the passes of one row into the map and finds what they wait for. A pass that does not
//! exist waits for nothing.
constexpr row_findings enter_row(row_entrance const into) {
  row_findings found{};
  place_row const& row = into.row;
  int entered = 0;
  for (entry_number i = 0; i < row.count; ++i) {
    pass const what = row.passes[i];
    entry_place const place = into.place_of(what);
    entry_links const& links =
      into.rules.of[place.known ? static_cast<int>(what.kind) : 0][place.where];
    if (!place.known || what.chunk >= place.count || links.made == entry_links::none ||
        (place.still && !is_wanted(into.map.over, what.kind, what.stage))) {
      into.inputs[i] = nothing_before;
      if (found.first)
        found.first = {report::rule::unknown_pass, into.device, static_cast<int>(i), what, {}};
      continue;
    }
    int const base = into.one_route
                       ? what.stage
                       : what.stage + into.extents.route_of(what.microbatch) * into.one_way;
    int const taken = into.enter(i, links, base, place, what, entered);
    if (taken == entry_links::none)
      into.find_waits(i, links, base, place, what);
    else
      into.inputs[i] = several_before; // another row may write the places of its stage
    if (taken != entry_links::none && found.first)
      found.first = misplaced(into.map, into.number, i, taken / (into.last_stage + 1));
  }
  found.entered = entered;
  return found;
}

//! How many wanted lines there are.
[[nodiscard]] constexpr int wanted_lines(pipeline_view const& over) noexcept {
  int count = 0;
  for (int stage = 0; stage < over.extents.stages(); ++stage)
    for (int row = 0; row < over.declared->rows; ++row)
      count += wants(over, row, stage) ? 1 : 0;
  return count * over.units();
}

//! The first pass that no row has, once every row is in the map.
[[nodiscard]] constexpr report find_missing(entered_rows const& map) noexcept {
  pipeline_view const& over = map.over;
  int const one_way = over.declared->rows * over.extents.stages();
  for (int line = 0; line < one_way; ++line)
    for (int unit = 0; unit < over.units(); ++unit) {
      if (!wants(over, line / over.extents.stages(), line % over.extents.stages()))
        break;
      pass const what = pass_at(over, line * over.units() + unit);
      if (map.places[line + over.extents.route_of(what.microbatch) * one_way][unit] == 0)
        return {report::rule::missing_pass, device_of(over, what), 0, what, {}};
    }
  return {};
}

template <worker_group Workers>
constexpr entered_rows::entered_rows(pipeline_view const& of,
                                     pass const* passes,
                                     int const* offsets,
                                     Workers const& by)
    : over(of), holders(of.lines()), cells(std::int64_t{of.lines()} * of.units(), 0),
      places(of.lines()), inputs(offsets[of.row_count()]), rows(of.row_count()) {
  for (int line = 0; line < over.lines(); ++line) {
    holders[line] = holder_of(over, line);
    places[line] = cells + static_cast<std::ptrdiff_t>(line) * over.units();
  }
  int const devices = over.extents.devices;
  owned<row_findings> const of_rows(over.row_count(), {});
  worker_parts const parts(devices, by.count());
  by.run(parts.count, [&](int part) {
    for (int engine_row = 0; engine_row < over.declared->engines; ++engine_row) {
      entry_rules const rules(over, engine_row);
      for (int device = parts.first(part); device < parts.first(part + 1); ++device) {
        int const row = engine_row * devices + device;
        int const first = offsets[row];
        rows[row] = {
          passes + first, inputs + first, static_cast<entry_number>(offsets[row + 1] - first)};
        of_rows[row] = enter_row(row_entrance(*this, rules, row));
      }
    }
  });
  for (int row = 0; row < over.row_count(); ++row)
    found.add(of_rows[row]);
}

} // namespace pipelining::inline v0_3::detail
