// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The figures of a timetable that every view shows. Header for
//! pipelining::timetable_caption and figures_of.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/append.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Facts about a timetable that its passes do not show.
struct timetable_caption {
  std::string_view schedule; //!< the name to print
  uniform_cost cost{};       //!< the costs it was made with; of unequal chunks their mean
  //! The share of each chunk in the tokens of its sequence, [C], with sum 1; empty for equal
  //! shares. Not owned.
  std::span<double const> chunk_shares = {};
  //! The tokens of each chunk, [C], where they are known. Not owned.
  std::span<int const> chunk_lengths = {};
  //! Times that no order on this placement with this memory can beat, from `least_times`; 0 where
  //! they are not known.
  double least_makespan = 0;
  double least_span = 0; //!< the same for the span
};

namespace detail {

//! The share of one chunk in the tokens of its sequence.
[[nodiscard]] constexpr double
chunk_share(timetable_view table, timetable_caption const& about, int chunk) noexcept {
  return about.chunk_shares.empty() ? 1.0 / table.over.extents.chunks
                                    : about.chunk_shares[static_cast<std::size_t>(chunk)];
}

} // namespace detail

//! @brief Peak activations of one device in whole microbatches of one stage.
[[nodiscard]] constexpr double
peak_activations(timetable_view table, int device, timetable_caption const& about) noexcept {
  return about.chunk_shares.empty() ? peak_activations(table, device).to_double()
                                    : peak_activations(table, device, about.chunk_shares);
}

namespace detail {

//! The place of each stage among the stages of its device, 0 for the first in forward order. Stages
//! of groups do not count; they are 0. Where the device depends on the microbatch, stages take
//! turns.
//! @return [S]
[[nodiscard]] inline std::vector<int> local_stages(timetable_view const& table) {
  std::vector<int> held(static_cast<std::size_t>(table.over.extents.devices));
  std::vector<int> result;
  bool const by_route =
    table.over.extents.where == placement::custom && table.over.extents.routes() > 1;
  for (int stage = 0; stage < table.over.extents.stages(); ++stage) {
    if (by_route) {
      result.push_back(stage % table.over.extents.stages_per_device);
      continue;
    }
    int& here = held[static_cast<std::size_t>(device_of(table, stage))];
    result.push_back(table.over.in_group(stage) ? 0 : here++);
  }
  return result;
}

//! The place of the stage of a pass among the stages of its device. In a bidirectional pipeline:
//! the direction.
//! @param locals from `local_stages`.
[[nodiscard]] inline int
local_stage(shape const& extents, std::vector<int> const& locals, pass const& what) {
  if (extents.where == placement::bidirectional)
    return extents.enters_at_end(what.microbatch) ? 1 : 0;
  return locals[what.stage];
}

//! The most stages that one device holds, directions of a bidirectional pipeline included.
[[nodiscard]] inline int most_local_stages(shape const& extents, std::vector<int> const& locals) {
  return std::max(extents.where == placement::bidirectional ? 2 : 1,
                  1 + *std::max_element(locals.begin(), locals.end()));
}

//! Stages that hold activations, by devices: 1 where they have one or less each.
[[nodiscard]] inline double device_share(timetable_view const& table) {
  int count = 0;
  for (int stage = 0; stage < table.over.extents.stages(); ++stage)
    count += table.over.in_group(stage) ? 0 : 1;
  return count <= table.over.extents.devices
           ? 1
           : static_cast<double>(count) / table.over.extents.devices;
}

//! Where devices hold several stages, says what peak activations are in microbatches of all
//! stages of a device, so that they compare with schedules with one stage per device.
void append_device_share(text_sink auto& out, timetable_view const& table, double peak) {
  double const share = device_share(table);
  if (share <= 1)
    return;
  append(out, " (", rounded{peak / share, 4}, " of all stages of a device)");
}

//! The time of the shortest pass that takes any; 0 where none does.
[[nodiscard]] constexpr double shortest_time(timetable_view table) noexcept {
  double shortest = 0;
  for (int i = 0; i < table.size(); ++i)
    if (double const time = table.ends[i] - table.starts[i];
        time > 0 && (shortest == 0 || time < shortest))
      shortest = time;
  return shortest;
}

//! ": 4 devices, 1 microbatch, 8 stages, 2 chunks"; chunks where there are several.
//! @param stages_too even where each device has one
void append_counts(text_sink auto& out, shape const& extents, bool stages_too) {
  auto const count = [&](char const* before, int number, char const* one, char const* more) {
    append(out, before, number, " ", one, number == 1 ? "" : more);
  };
  count(": ", extents.devices, "device", "s");
  count(", ", extents.microbatches, "microbatch", "es");
  if (stages_too || extents.stages() != extents.devices)
    count(", ", extents.stages(), "stage", "s");
  if (extents.chunks > 1)
    count(", ", extents.chunks, "chunk", "s");
}

//! The kinds that pictures of a timetable show, in the order of their numbers: not those
//! that stand between passes and take no time.
//! @complexity O(n) for n passes.
[[nodiscard]] inline std::vector<pass_kind> kinds_in_use(timetable_view table) {
  std::uint64_t found = 0;
  for (int i = 0; i < table.size(); ++i)
    found |= std::uint64_t{1} << static_cast<unsigned>(table.passes[i].kind);
  std::vector<pass_kind> result;
  for (int kind = 0; kind < flow::most_kinds; ++kind)
    if ((found >> static_cast<unsigned>(kind) & 1) != 0 &&
        !stands_between(table.over.declared->kinds[kind]))
      result.push_back(static_cast<pass_kind>(kind));
  return result;
}

} // namespace detail

//! @brief The share of the makespan in which a device is idle, as a mean over devices. A step with
//! a barrier after it loses that share; on the span it is `bubble_rate`.
//! @complexity O(n) for n passes.
[[nodiscard]] constexpr double makespan_bubble_rate(timetable_view table) noexcept {
  return detail::idle_share(table, makespan(table));
}

//! @brief The most that a device keeps at once from `backward_input` for `backward_weight`, in
//! whole microbatches of one stage; a chunk counts its share of the tokens. 0 where backward passes
//! are fused.
//!
//! The activation is held as well until the end of `backward_weight`, so a device with split
//! backward passes needs room for both peaks.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr double
peak_weight_inputs(timetable_view table, int device, timetable_caption const& about) noexcept {
  if (about.chunk_shares.empty()) // counted whole and divided once, so that thirds add up
    return static_cast<double>(detail::peak_chunks(table, device, slot_class::weight_input)) /
           table.over.extents.chunks;
  return detail::peak_of<double>(table, device, slot_class::weight_input, [&](pass const& what) {
    return detail::chunk_share(table, about, what.chunk);
  });
}

//! @brief The figures of a timetable in one line. The peaks are of the device that holds most.
struct timetable_figures {
  double makespan = 0;    //!< from the first start to the last end
  double span = 0;        //!< of the device that takes longest from its first start to its last end
  double bubble_rate = 0; //!< on the span
  double makespan_bubble_rate = 0; //!< on the makespan
  double peak_activations = 0;     //!< in whole microbatches of one stage
  double peak_weight_inputs = 0;   //!< in whole microbatches of one stage
};

//! @brief All figures of a timetable.
//! @complexity O(n) for n passes.
[[nodiscard]] constexpr timetable_figures figures_of(timetable_view table,
                                                     timetable_caption const& about) noexcept {
  timetable_figures result{
    makespan(table), span_of(table), bubble_rate(table), makespan_bubble_rate(table)};
  for (int device = 0; device < table.over.extents.devices; ++device) {
    result.peak_activations =
      std::max(result.peak_activations, peak_activations(table, device, about));
    result.peak_weight_inputs =
      std::max(result.peak_weight_inputs, peak_weight_inputs(table, device, about));
  }
  return result;
}

namespace detail {

//! "bubble 10.1 % of the span, 20.2 % of the makespan".
void append_bubbles(text_sink auto& out, timetable_figures const& found, int decimals) {
  append(out, "bubble ", rounded{100 * found.bubble_rate, decimals}, " % of the span, ");
  append(out, rounded{100 * found.makespan_bubble_rate, decimals}, " % of the makespan");
}

//! "peak activations 8 (4 of all stages of a device), weight inputs 3 (...), in microbatches
//! of one stage".
void append_peaks(text_sink auto& out,
                  timetable_view const& table,
                  timetable_figures const& found,
                  int decimals) {
  append(out, "peak activations ", rounded{found.peak_activations, decimals});
  append_device_share(out, table, found.peak_activations);
  append(out, ", weight inputs ", rounded{found.peak_weight_inputs, decimals});
  append_device_share(out, table, found.peak_weight_inputs);
  append(out, ", in microbatches of one stage");
}

//! The words before the row of an engine next to the compute engine: "copy out", "copy in" or
//! "network".
//! @param row of a table, after the rows of the devices
[[nodiscard]] inline std::string engine_row_name(timetable_view const& table, int row) {
  int const number = row / table.over.extents.devices;
  auto const is = [&](engine on) {
    return table.over.declared->engine_row[static_cast<int>(on)] == number;
  };
  return is(engine::copy_out) ? "copy out" : is(engine::copy_in) ? "copy in" : "network";
}

//! The number in a cell: the microbatch, or the stage whose weights travel.
[[nodiscard]] constexpr int number_of_cell(flow const& declared, pass const& what) noexcept {
  return declared[what.kind].on == engine::network ? what.stage : what.microbatch;
}

} // namespace detail

} // namespace pipelining::inline v0_3
