// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Where the passes of a timetable stand, and what each waits for. What `simulate` and
//! `verify` share.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/timetable/dependencies.hpp>
#include <pipe/timetable/report.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_1 {
namespace detail {

//! The number of an entry in the row of its device. Unsigned, so that the number before the first
//! is one that no row reaches.
using entry_number = std::uint32_t;
inline constexpr entry_number no_entry = ~entry_number{0};

//! The lines of `pass_links`, counted twice for two directions.
[[nodiscard]] constexpr int lines(shape const& extents) noexcept {
  return pass_classes * stages(extents) * (extents.where == placement::bidirectional ? 2 : 1);
}

//! The first microbatch whose lines are those of the second direction.
[[nodiscard]] constexpr int first_from_end(shape const& extents) noexcept {
  return extents.where == placement::bidirectional ? extents.microbatches / 2
                                                   : extents.microbatches;
}

//! The device of a line.
[[nodiscard]] constexpr int holder_of(shape const& extents, int line) noexcept {
  bool const from_end = line >= pass_classes * stages(extents);
  return device_of(extents, line % stages(extents), from_end ? extents.microbatches - 1 : 0);
}

//! The entry that every pass is, by line and unit.
struct place_map {
  shape extents;
  int const* holders;                 //!< [lines], the device of each
  entry_number const* const* entries; //!< [lines] of [units], one more than the entry, 0 for none
};

//! The line of what a pass waits for on another device (its unit is that of the pass), or
//! `nothing_before`. A pass that waits for one that stands behind it in its own row waits for
//! itself, which is for ever.
using input_line = std::int32_t;

//! One device of a timetable without times.
struct place_row {
  pass const* passes;
  input_line const* inputs; //!< what each pass waits for
  entry_number count;
};

//! What is wrong with a row by itself.
struct row_findings {
  report first;
  int entered; //!< passes that stand in the map; a fused backward counts twice
};

//! True when an overlapped entry is the second half of a composite pass.
[[nodiscard]] constexpr bool completes_pair(pass const* row, entry_number entry) noexcept {
  if (entry == 0)
    return false;
  pass const first = row[entry - 1];
  pass const second = row[entry];
  return !first.overlapped &&
         (first.kind == pass_kind::forward) != (second.kind == pass_kind::forward) &&
         first.kind != pass_kind::backward_weight && second.kind != pass_kind::backward_weight;
}

//! The report on an entry that cannot stand where it stands.
//! @param beside_half for a fused backward beside a backward_weight of its unit
[[nodiscard]] constexpr report misplaced(
  place_map const& map, place_row const& row, int device, entry_number entry, bool beside_half) {
  pass const what = row.passes[entry];
  report found{rule::repeated_pass, device, static_cast<int>(entry), what, what};
  if (beside_half) {
    found.other.kind = pass_kind::backward_weight;
  } else if (device_of(map.extents, what) != device) {
    found.broken = rule::wrong_device;
    found.other = {};
  } else if (what.overlapped && !completes_pair(row.passes, entry)) {
    found.broken = rule::lone_half;
    found.other = {};
  }
  return found;
}

//! Enters the passes of one device into the map and finds what they wait for. A pass that does not
//! exist waits for nothing.
//! @param entries_of those of the map, to write @param inputs those of the row, to write
constexpr row_findings enter_row(place_map const& map,
                                 place_row const& row,
                                 int device,
                                 entry_number* const* entries_of,
                                 input_line* inputs) {
  row_findings found{};
  pass_extents const extents = pass_extents_of(map.extents);
  int const microbatches = map.extents.microbatches;
  int const from_end = first_from_end(map.extents);
  int const one_way = pass_classes * extents.stages;
  int const* const holders = map.holders;
  int entered = 0;
  for (entry_number i = 0; i < row.count; ++i) {
    pass const what = row.passes[i];
    if (what.stage >= extents.stages || what.microbatch >= microbatches ||
        what.chunk >= extents.chunks) {
      inputs[i] = nothing_before;
      if (found.first)
        found.first = {rule::unknown_pass, device, static_cast<int>(i), what, {}};
      continue;
    }
    pass_links const links = links_of(extents, what);
    int const direction = what.microbatch >= from_end ? one_way : 0;
    int const line = links.line + direction;
    entry_number* const entries = entries_of[line];
    entry_number const behind = what.overlapped ? i - 1 : i; // a pair does not feed itself
    input_line input = nothing_before;
    if (links.input_line != nothing_before) {
      input = links.input_line + direction;
      if (holders[input] == device)
        input = map.entries[input][links.unit] - 1 < behind ? nothing_before : line;
    }
    if (links.chunk_unit != nothing_before && entries[links.chunk_unit] - 1 >= behind)
      input = line;
    inputs[i] = input;

    bool const stands_well = holders[line] == device && entries[links.unit] == 0 &&
                             (!what.overlapped || completes_pair(row.passes, i));
    if (stands_well) {
      entries[links.unit] = i + 1;
      ++entered;
      if (what.kind != pass_kind::backward)
        continue;
      entry_number* const weights = entries_of[line + extents.stages]; // it is its own
      ++entered;
      if (weights[links.unit] == 0) {
        weights[links.unit] = i + 1;
        continue;
      }
    }
    if (found.first)
      found.first = misplaced(map, row, device, i, stands_well);
  }
  found.entered = entered;
  return found;
}

//! The first pass that no row has, once every row is in the map.
[[nodiscard]] constexpr report find_missing(place_map const& map) noexcept {
  shape const& extents = map.extents;
  int const one_way = pass_classes * stages(extents);
  int const from_end = first_from_end(extents) * extents.chunks;
  for (int line = 0; line < one_way; ++line)
    for (int unit = 0; unit < units(extents); ++unit)
      if (map.entries[unit >= from_end ? line + one_way : line][unit] == 0) {
        pass const what = pass_at(extents, line * units(extents) + unit);
        return {rule::missing_pass, device_of(extents, what), 0, what, {}};
      }
  return {};
}

//! Owns the map and the inputs of a whole timetable.
class entered_rows {
public:
  //! @param offsets [P + 1], device after device
  constexpr entered_rows(shape const& extents, pass const* passes, int const* offsets) {
    int const line_count = lines(extents);
    int const unit_count = units(extents);
    auto const cells = static_cast<std::size_t>(line_count) * static_cast<std::size_t>(unit_count);
    holders_ = new int[static_cast<std::size_t>(line_count)];
    entries_ = new entry_number[cells]{};
    lines_ = new entry_number*[static_cast<std::size_t>(line_count)];
    inputs_ = new input_line[static_cast<std::size_t>(offsets[extents.devices]) + 1];
    rows_ = new place_row[static_cast<std::size_t>(extents.devices)];
    for (int line = 0; line < line_count; ++line) {
      holders_[line] = holder_of(extents, line);
      lines_[line] = entries_ + static_cast<std::ptrdiff_t>(line) * unit_count;
    }
    map_ = {extents, holders_, lines_};
    int entered = 0;
    for (int device = 0; device < extents.devices; ++device) {
      int const first = offsets[device];
      rows_[device] = {
        passes + first, inputs_ + first, static_cast<entry_number>(offsets[device + 1] - first)};
      row_findings const found = enter_row(map_, rows_[device], device, lines_, inputs_ + first);
      entered += found.entered;
      if (first_)
        first_ = found.first;
    }
    if (first_ && entered != pass_indices(extents))
      first_ = find_missing(map_);
  }
  constexpr ~entered_rows() {
    delete[] holders_;
    delete[] entries_;
    delete[] lines_;
    delete[] inputs_;
    delete[] rows_;
  }
  entered_rows(entered_rows const&) = delete;
  entered_rows& operator=(entered_rows const&) = delete;

  [[nodiscard]] constexpr place_map const& map() const noexcept { return map_; }
  [[nodiscard]] constexpr place_row const* rows() const noexcept { return rows_; }
  //! What is wrong with the order, whatever the times are.
  [[nodiscard]] constexpr report const& first() const noexcept { return first_; }

private:
  int* holders_;
  entry_number* entries_;
  entry_number** lines_;
  input_line* inputs_;
  place_row* rows_;
  place_map map_;
  report first_;
};

} // namespace detail
} // namespace pipelining::inline v0_1
