// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a timetable should take on this machine: times of passes, measured one by one, and a
//! simulation for fewer cores than devices.

#include <pipe/planner/model/measured.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "single_device.hpp"

namespace gpt {

//! Runs the stages of a timetable on this thread alone and takes the fastest of a few microbatches
//! for each pass, in seconds: other programs can only make a pass slower.
[[nodiscard]] inline pp::cost_table
measure_passes(model_size const& size, pp::shape const& extents, batch const& pieces) {
  std::int64_t const rounds = 4;
  single_device device(
    size, cut_model(size, extents), {rounds, cut_sequence(size.sequence, extents.chunks)}, 1);
  double const longest = 1e9;
  pp::cost_table cost(extents,
                      {.forward = longest, .backward_input = longest, .backward_weight = longest});
  device.step(pieces, [&](pp::pass_kind kind, std::size_t stage, unit u, auto work) {
    auto const start = std::chrono::steady_clock::now();
    work();
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    auto const what = pp::row_writer::make(
      kind, static_cast<int>(stage), static_cast<int>(u.microbatch), static_cast<int>(u.chunk));
    double const best = std::min(cost.duration(what), took.count());
    cost.set(what, best);
    if (kind == pp::pass_kind::forward) // which recomputes, too
      cost.set(pp::pass_kind::recompute, what.stage, what.chunk, best);
  });
  return cost;
}

//! The same times in another unit, without those of messages.
[[nodiscard]] inline pp::cost_table
in_unit(pp::cost_table const& cost, pp::shape const& extents, double factor) {
  return cost.reshaped(
    extents, 0, [&](pp::pass const& what) { return factor * cost.duration(what); });
}

//! Means over all stages and chunks.
[[nodiscard]] inline pp::uniform_cost mean_of(pp::cost_table const& cost,
                                              pp::shape const& extents) {
  auto const mean = [&](pp::pass_kind kind) {
    double sum = 0;
    for (int stage = 0; stage < extents.stages(); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        sum += cost.duration(pp::row_writer::make(kind, stage, 0, chunk));
    return sum / (extents.stages() * extents.chunks);
  };
  return {.forward = mean(pp::pass_kind::forward),
          .backward_input = mean(pp::pass_kind::backward_input),
          .backward_weight = mean(pp::pass_kind::backward_weight)};
}

//! Times the passes of a timetable when its devices share a few cores: a pass that may start waits
//! for a free core, those that have waited longest first, and keeps the core until its end. Copies
//! stand in rows of their own.
template <class Cost>
[[nodiscard]] pp::dynamic_timetable
share_cores(pp::timetable_view table, Cost const& cost, int cores) {
  auto const rows = static_cast<std::size_t>(table.over.row_count());
  auto const entries = static_cast<std::size_t>(table.size());
  pp::dynamic_timetable shared{.over = table.over.copy(),
                               .passes = {table.passes, table.passes + entries},
                               .starts = std::vector<double>(entries, pp::detail::never),
                               .ends = std::vector<double>(entries, pp::detail::never),
                               .offsets = {table.offsets, table.offsets + rows + 1}};
  std::vector<double> done(static_cast<std::size_t>(table.over.pass_indices()), pp::detail::never);
  std::vector<double> row_free(rows, 0.0);
  std::vector<double> core_free(static_cast<std::size_t>(std::max(cores, 1)), 0.0);
  std::vector<int> next(table.offsets, table.offsets + rows);

  // When the next pass of a row may start, or never while that is not known.
  auto const ready = [&](std::size_t row) {
    if (next[row] == table.offsets[row + 1])
      return pp::detail::never;
    double time = row_free[row];
    pp::detail::dependency_list const needed(table.over, table.passes[next[row]]);
    for (int i = 0; i < needed.count; ++i) {
      double const end = done[static_cast<std::size_t>(needed.index(i))];
      if (end < 0)
        return pp::detail::never;
      time = std::max(time, end);
    }
    return time;
  };
  for (std::size_t placed = 0; placed < entries; ++placed) {
    auto const core = std::min_element(core_free.begin(), core_free.end());
    std::size_t chosen = rows;
    double earliest = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      double const time = ready(row);
      if (time >= 0 && (chosen == rows || time < earliest)) {
        chosen = row;
        earliest = time;
      }
    }
    auto const entry = static_cast<std::size_t>(next[chosen]++);
    double const start = std::max(earliest, *core);
    double const end = start + cost.duration(table.passes[entry]);
    shared.starts[entry] = start;
    shared.ends[entry] = end;
    // A pass may make several rows: what follows it may read any of them.
    pp::pass const& what = table.passes[entry];
    for (int const row : table.over.links_of(what).made) {
      if (row != pp::detail::kind_links::none) {
        int const line = row * table.over.extents.stages() + what.stage;
        done[static_cast<std::size_t>(line * table.over.units() + table.over.unit_of(what))] = end;
      }
    }
    row_free[chosen] = end;
    *core = end;
  }
  return shared;
}

} // namespace gpt
