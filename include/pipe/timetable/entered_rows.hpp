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
#include <pipe/flow/resolve.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/workers.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! No line, or no such unit; of a place, nobody makes it.
inline constexpr int nothing_before = -1;
//! Several lines, or one whose maker stands in another place than most.
inline constexpr int several_before = -2;

//! The errors of rows by themselves.
struct row_findings {
  report first;
  int entered = 0; //!< wanted lines that passes of these rows make, where nothing is wrong
};

//! The place that every pass of a timetable has, by line and unit, and what each waits for. An
//! entry is a number in the arrays of all rows.
struct entered_rows {
  pipeline_view over;
  pass const* passes; //!< row after row
  int const* offsets; //!< [rows + 1]
  owned<int> holders; //!< [lines], the device of each
  owned<int> cells;   //!< [lines][units]
  owned<int*> places; //!< [lines] of [units], the entry that makes what a line is for a unit
  //! For each pass, a line whose maker on another device it waits for, in its own unit.
  //! `nothing_before` where all that it waits for stands before it in its own row; else
  //! `several_before`, and its dependencies say them.
  owned<int> inputs;
  row_findings found{};

  //! @param begins offsets [rows + 1], row after row
  //! @param by who enters them; a device writes places of its own
  template <worker_group Workers = one_worker>
  constexpr entered_rows(pipeline_view const& of,
                         pass const* listed,
                         int const* begins,
                         Workers const& by = {});

  //! The entry that a pass waits for, or `nothing_before`.
  [[nodiscard]] constexpr int maker_of(dependency const& from) const noexcept {
    return places.data[from.line][from.unit];
  }
  //! The time from the end of what a pass waits for to the pass. @param device, stage of the pass
  [[nodiscard]] constexpr double transfer(timetable_view const& table,
                                          dependency const& from,
                                          int device,
                                          int stage) const noexcept {
    if (from.own)
      return 0;
    double const message = table.message_time(holders.data[from.line], device);
    return transfer_time(over, table.groups, message, from.stage, stage);
  }
};

//! Where a pass stands, from which its links and its unit follow.
struct entry_place {
  bool known;         //!< false where there is no such pass
  int where;          //!< has_before + has_after
  int first;          //!< unit of its microbatch
  int count;          //!< chunks of its microbatch
  bool still = false; //!< of a graph, whether the stage only goes forward
  kind_links const* links = nullptr;
  int base = 0; //!< the line of row 0 of the flow on its stage
};

//! The place of a pass where stages are no chain, or microbatches differ in chunks.
//! @param in_chain its place in a chain of microbatches that are alike
[[nodiscard]] constexpr entry_place
place_beyond_chains(pipeline_view const& over, pass const& what, entry_place in_chain) noexcept {
  entry_place found = in_chain;
  if (found.known && over.edges != nullptr) {
    kind_of_pass const& kind = (*over.declared)[what.kind];
    found.known = kind.in_groups == over.in_group(what.stage);
    found.where = position_in_graph(over, what);
    found.still = goes_forward_only(over, what.stage);
  }
  if (found.known && over.first_units != nullptr) {
    found.first = over.first_units[what.microbatch];
    found.count = over.first_units[what.microbatch + 1] - found.first;
  }
  return found;
}

//! One row of the map while its passes are entered, in their order.
struct row_entrance {
  entered_rows const& map;
  int number; //!< of the row
  pipeline_view over = map.over;
  flow const& declared = *over.declared;
  pass const* passes = map.passes;
  int first = map.offsets[number]; //!< entry
  int* const* places = map.places; //!< copies, since what is written might change the others
  int* inputs = map.inputs;
  int const* holders = map.holders;
  int device = number % over.extents.devices;
  int engine_row = number / over.extents.devices;
  int stage_count = over.extents.stages();
  flow_set kinds = 0;     //!< that there are, on stages like these
  flow_set runs_here = 0; //!< those on the engine of the row
  bool one_route = over.extents.routes() == 1;
  bool chain = over.edges == nullptr;                //!< of stages
  bool plain = chain && over.first_units == nullptr; //!< all microbatches have as many chunks

  constexpr row_entrance(entered_rows const& into, int at) : map(into), number(at) {
    for (int kind = 0; kind < declared.kind_count; ++kind)
      if (kind_of_pass const& one = declared.kinds[kind];
          one.exists() && (!chain || !one.in_groups)) {
        kinds |= only(kind);
        runs_here |= declared.engine_row[static_cast<int>(one.on)] == engine_row ? only(kind) : 0;
      }
  }

  //! The place of a pass.
  [[nodiscard]] constexpr entry_place place_of(pass const& what) const noexcept {
    int const stage = what.stage;
    int const where = (stage > 0 ? 1 : 0) + (stage + 1 < stage_count ? 2 : 0);
    bool const known = static_cast<int>(what.kind) < flow::most_kinds && stage < stage_count &&
                       what.microbatch < over.extents.microbatches &&
                       holds(kinds, index_of(what.kind));
    int const chunks = over.extents.chunks;
    entry_place const place{known, where, what.microbatch * chunks, chunks};
    return plain ? place : place_beyond_chains(over, what, place);
  }
  //! True when an overlapped entry is the second half of a composite pass.
  [[nodiscard]] constexpr bool completes_pair(int entry) const noexcept {
    return entry > first && !passes[entry - 1].overlapped;
  }

  //! Whether what an entry waits for does not stand before it in the row.
  //! @param before entries of the row that it may wait for
  [[nodiscard]] constexpr bool lacks(int line, int unit, unsigned before) const noexcept {
    return static_cast<unsigned>(places[line][unit] - first) >= before; // nobody is a large number
  }
  //! Finds what an entry waits for.
  constexpr void find_waits(int entry, entry_place const& place, pass const& what) const noexcept {
    kind_links const& links = *place.links;
    int const base = place.base;
    int const unit = place.first + what.chunk;
    // A pair does not feed itself.
    auto const before = static_cast<unsigned>(entry - first - (what.overlapped ? 1 : 0));
    bool const there = links.input_step == group_step ? !chain
                       : links.input_step < 0         ? (place.where & has_before) != 0
                                                      : (place.where & has_after) != 0;
    int input = links.input != kind_links::none && there ? several_before : nothing_before;
    if (int const line = base + links.input * stage_count + links.input_step;
        chain && input == several_before)
      input = holders[line] != device     ? line
              : lacks(line, unit, before) ? several_before
                                          : nothing_before;
    for (int k = 0; k < kind_links::most_own && links.own[k] != kind_links::none; ++k)
      if (lacks(base + links.own[k] * stage_count, unit, before))
        input = several_before;
    if (links.chunk_step != 0 && place.count > 1) {
      int const other = what.chunk + links.chunk_step;
      if (other >= 0 && other < place.count &&
          lacks(base + links.made[0] * stage_count, place.first + other, before))
        input = several_before;
    }
    inputs[entry] = input;
  }

  //! Enters the lines that an entry makes. Counts those that are wanted.
  //! @return the row of the flow of a line that it cannot make, or none
  constexpr int
  enter(int entry, entry_place const& place, pass const& what, int& entered) const noexcept {
    kind_links const& links = *place.links;
    int const unit = place.first + what.chunk;
    int& at = places[place.base + links.made[0] * stage_count][unit];
    if (holders[place.base] != device || !holds(runs_here, index_of(what.kind)) || at >= 0 ||
        (what.overlapped && !completes_pair(entry)))
      return links.made[0];
    at = entry;
    entered += place.still ? 1 : links.wanted; // what others read, or all
    int taken = kind_links::none;
    for (int k = 1; k < 3 && links.made[k] != kind_links::none; ++k) {
      int& also = places[place.base + links.made[k] * stage_count][unit];
      taken = also < 0 ? taken : links.made[k];
      also = also < 0 ? entry : also;
    }
    return taken;
  }
  //! The report on an entry that cannot stand where it stands.
  //! @param taken the row of the flow that another pass has made already, or none
  [[nodiscard]] constexpr report misplaced(int entry, int taken) const {
    pass const what = passes[entry];
    report found{report::rule::repeated_pass, device, entry - first, what, what};
    if (taken != over.links_of(what).made[0]) {
      found.other.kind = namer_of(over, taken, what.stage);
    } else if (over.row_of(what) != number) {
      found.broken = report::rule::wrong_device;
      found.other = {};
    } else if (what.overlapped && !completes_pair(entry)) {
      found.broken = report::rule::lone_half;
      found.other = {};
    }
    return found;
  }
};

//! Enters the passes of one row into the map and finds what they wait for. A pass that does not
//! exist waits for nothing.
constexpr row_findings enter_row(row_entrance const into) {
  row_findings found{};
  int entered = 0;
  for (int entry = into.first, end = into.map.offsets[into.number + 1]; entry < end; ++entry) {
    pass const what = into.passes[entry];
    entry_place place = into.place_of(what);
    if (!place.known || what.chunk >= place.count ||
        (place.still && !is_wanted(into.over, what.kind, what.stage))) {
      into.inputs[entry] = nothing_before;
      if (found.first)
        found.first = {report::rule::unknown_pass, into.device, entry - into.first, what, {}};
      continue;
    }
    place.links = &into.declared.links[index_of(what.kind)][place.where / has_after];
    int const route = into.one_route ? 0 : into.over.extents.route_of(what.microbatch);
    place.base = route * into.declared.rows * into.stage_count + what.stage;
    int const taken = into.enter(entry, place, what, entered);
    if (taken == kind_links::none)
      into.find_waits(entry, place, what);
    else
      into.inputs[entry] = several_before; // another row may write the places of its stage
    if (taken != kind_links::none && found.first)
      found.first = into.misplaced(entry, taken);
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
      if (map.places[line + over.extents.route_of(what.microbatch) * one_way][unit] < 0)
        return {report::rule::missing_pass, device_of(over, what), 0, what, {}};
    }
  return {};
}

template <worker_group Workers>
constexpr entered_rows::entered_rows(pipeline_view const& of,
                                     pass const* listed,
                                     int const* begins,
                                     Workers const& by)
    : over(of), passes(listed), offsets(begins), holders(of.lines()),
      cells(std::int64_t{of.lines()} * of.units(), nothing_before), places(of.lines()),
      inputs(offsets[of.row_count()]) {
  for (int line = 0; line < over.lines(); ++line) {
    int const route = line / (over.declared->rows * over.extents.stages());
    holders[line] =
      device_of(over, line % over.extents.stages(), microbatch_of(over.extents, route));
    places[line] = cells + static_cast<std::ptrdiff_t>(line) * over.units();
  }
  int const devices = over.extents.devices;
  owned<row_findings> const of_rows(over.row_count(), {});
  worker_parts const parts(devices, by.count());
  by.run(parts.count, [&](int part) {
    for (int engine_row = 0; engine_row < over.declared->engines; ++engine_row)
      for (int device = parts.first(part); device < parts.first(part + 1); ++device) {
        int const row = engine_row * devices + device;
        of_rows[row] = enter_row(row_entrance(*this, row));
      }
  });
  for (int row = 0; row < over.row_count(); ++row) {
    found.first = found.first ? of_rows[row].first : found.first;
    found.entered += of_rows[row].entered;
  }
}

} // namespace pipelining::inline v0_3::detail
