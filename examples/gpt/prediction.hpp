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
#include <limits>
#include <numeric>
#include <vector>

#include "single_device.hpp"

namespace gpt {

//! Seconds of every pass of one microbatch, by stage and chunk; a cost model of the library.
struct measured_cost {
  int stages = 1;
  int chunks = 1;
  std::vector<double> forward;         //!< [stages, chunks]
  std::vector<double> backward_input;  //!< [stages, chunks]
  std::vector<double> backward_weight; //!< [stages, chunks]

  [[nodiscard]] double duration(pp::pass const& what) const {
    auto const i = static_cast<std::size_t>(what.stage * chunks + what.chunk);
    switch (what.kind) {
    case pp::pass_kind::forward:
    case pp::pass_kind::checkpointed_forward:
    case pp::pass_kind::offloaded_forward:
    case pp::pass_kind::recompute: return forward[i];
    case pp::pass_kind::backward: return backward_input[i] + backward_weight[i];
    case pp::pass_kind::backward_input: return backward_input[i];
    case pp::pass_kind::backward_weight: return backward_weight[i];
    default: return 0; // beside the passes; this model keeps its ends on two devices
    }
  }
  [[nodiscard]] static double latency() { return 0; }

  [[nodiscard]] measured_cost scaled(double factor) const {
    measured_cost result = *this;
    for (auto* const times : {&result.forward, &result.backward_input, &result.backward_weight})
      for (double& time : *times)
        time *= factor;
    return result;
  }

  [[nodiscard]] pp::uniform_cost mean() const {
    auto const of = [](std::vector<double> const& times) {
      return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
    };
    return {.forward = of(forward),
            .backward_input = of(backward_input),
            .backward_weight = of(backward_weight)};
  }
};

//! Runs the stages of a timetable on this thread alone and takes the fastest of a few microbatches
//! for each pass: other programs can only make a pass slower.
[[nodiscard]] inline measured_cost
measure_passes(model_size const& size, pp::shape const& extents, batch const& pieces) {
  int const stages = extents.stages();
  std::int64_t const rounds = 4;
  single_device<float> device(
    size, cut_model(size, extents), {rounds, cut_sequence(size.sequence, extents.chunks)}, 1);
  auto const count = static_cast<std::size_t>(stages * extents.chunks);
  std::vector<double> const unknown(count, std::numeric_limits<double>::infinity());
  measured_cost cost{stages, extents.chunks, unknown, unknown, unknown};
  device.step(pieces, [&](pp::pass_kind kind, std::size_t stage, unit u, auto work) {
    auto const start = std::chrono::steady_clock::now();
    work();
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    auto& times = kind == pp::pass_kind::forward          ? cost.forward
                  : kind == pp::pass_kind::backward_input ? cost.backward_input
                                                          : cost.backward_weight;
    double& best =
      times[stage * static_cast<std::size_t>(extents.chunks) + static_cast<std::size_t>(u.chunk)];
    best = std::min(best, took.count());
  });
  return cost;
}

//! The same from steps that ran: of each pass the median over microbatches and steps.
[[nodiscard]] inline measured_cost
costs_of_steps(std::vector<pp::dynamic_timetable> const& traces) {
  std::vector<pp::timetable_view> const steps(traces.begin(), traces.end());
  auto const found = pp::costs_of(steps);
  pp::shape const& extents = steps.front().over.extents;
  measured_cost cost{extents.stages(), extents.chunks, {}, {}, {}};
  for (int stage = 0; stage < cost.stages; ++stage) {
    for (int chunk = 0; chunk < cost.chunks; ++chunk) {
      auto const time = [&](pp::pass_kind kind) {
        pp::pass what{kind};
        what.stage = static_cast<std::uint16_t>(stage);
        what.chunk = static_cast<std::uint16_t>(chunk);
        return found.duration(what);
      };
      cost.forward.push_back(time(pp::pass_kind::forward));
      cost.backward_input.push_back(time(pp::pass_kind::backward_input));
      cost.backward_weight.push_back(time(pp::pass_kind::backward_weight));
    }
  }
  return cost;
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
    auto const needed = pp::detail::dependencies(table.over, table.passes[next[row]]);
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
