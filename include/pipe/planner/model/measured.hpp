// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times of passes from steps that ran. Header for pipelining::costs_of and
//! pipelining::detail::retime.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/model/links.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <iterator>
#include <span>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The times of steps that ran as a cost model: of every kind, stage and chunk the median
//! over microbatches and steps, of messages `message_seconds`.
//!
//! Kinds are those of the flow. Half of a fused backward pass counts as that of the input, half as
//! that of the weights.
//! @param measured tables of the same extents with measured times, as `trace` of a runner gives
//! them. @return what no step has, is 0
//! @throws std::invalid_argument without steps, for steps of different extents and for passes that
//! did not run
//! @complexity O(n) for n passes
[[nodiscard]] inline cost_table costs_of(std::span<timetable_view const> measured) {
  if (measured.empty())
    throw std::invalid_argument("costs_of: give at least one measured step");
  shape const& extents = measured.front().over.extents;
  auto const count =
    static_cast<std::size_t>(stages(extents)) * static_cast<std::size_t>(extents.chunks);
  cost_table result(*measured.front().over.declared, extents, {0, 0, 0, message_seconds(measured)});
  std::vector<std::vector<double>> samples(result.kinds().size() * count);
  auto const add = [&](int row, pass const& what, double time) {
    if (row >= 0)
      samples[static_cast<std::size_t>(row) * count +
              static_cast<std::size_t>(what.stage * extents.chunks + what.chunk)]
        .push_back(time);
  };
  for (timetable_view const& table : measured) {
    if (!(table.over.extents == extents))
      throw std::invalid_argument("costs_of: the steps are of pipelines of different extents");
    for (int i = 0; i < table.size(); ++i) {
      pass const& what = table.passes[i];
      double const time = table.ends[i] - table.starts[i];
      if (!(table.starts[i] >= 0 && time >= 0))
        throw std::invalid_argument("costs_of: a pass has no measured time; give whole steps");
      if (!result.takes_halves(what.kind)) {
        add(result.number_of(what.kind), what, time);
        continue;
      }
      for (timed_kind const& half : result.kinds())
        if (!half.in_groups && (half.is == role::input || half.is == role::weights))
          add(result.number_of(half.kind), what, time / 2);
    }
  }
  for (std::size_t row = 0; row < result.kinds().size(); ++row)
    for (int stage = 0; stage < stages(extents); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        result.set(
          result.kinds()[row].kind,
          stage,
          chunk,
          detail::median(
            samples[row * count + static_cast<std::size_t>(stage * extents.chunks + chunk)]));
  return result;
}

namespace detail {

//! The same order under other costs.
//! @complexity O(n) for n passes
template <cost_model Cost>
[[nodiscard]] dynamic_timetable retime(dynamic_timetable const& table, Cost const& cost) {
  return simulate({table.over, table.passes, table.offsets}, cost);
}

} // namespace detail

} // namespace pipelining::inline v0_3
