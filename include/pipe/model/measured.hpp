// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times of passes and messages from steps that ran. Header for pipelining::costs_of,
//! pipelining::message_seconds and pipelining::retime.

#include <pipe/core/dependencies.hpp>
#include <pipe/core/pass.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/core/training.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipelining::inline v0_2 {

namespace detail {

//! The middle of some numbers, which one late pass does not move; 0 of none.
[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

} // namespace detail

//! @brief How long messages took in steps that ran: the median over those that their reader waited
//! for, from the end of the pass that made them to the start of the one that read them.
//!
//! A reader has waited where its device had ended everything before the message was made.
//! @param measured as `trace` of a runner gives them. @return 0 where nobody waited for a message
//! @complexity O(n) for n passes
[[nodiscard]] inline double message_seconds(std::span<timetable_view const> measured) {
  std::vector<double> waits;
  for (timetable_view const& table : measured) {
    std::vector<double> ends(static_cast<std::size_t>(pass_indices(table.over())), never);
    for (int i = 0; i < table.size(); ++i)
      ends[static_cast<std::size_t>(pass_index(table.over(), table.passes[i]))] = table.ends[i];
    for (int device = 0; device < table.extents.devices; ++device)
      for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i) {
        double const free_from = i == table.offsets[device] ? 0 : table.ends[i - 1];
        dependency_list const needed = dependencies(table.over(), table.passes[i]);
        for (int k = 0; k < needed.count; ++k) {
          double const made = ends[static_cast<std::size_t>(needed.index(k))];
          if (device_of(table, needed.stage(k), table.passes[i].microbatch) != device &&
              made >= free_from && table.starts[i] >= made)
            waits.push_back(table.starts[i] - made);
        }
      }
  }
  return detail::median(std::move(waits));
}

//! @brief The times of steps that ran as a cost model: of every kind, stage and chunk the median
//! over microbatches and steps, of messages `message_seconds`.
//!
//! Half of a fused backward pass counts as that of the input, half as that of the weights.
//! @param measured tables of the same extents with measured times, as `trace` of a runner gives
//! them. @return what no step has, is 0
//! @throws std::invalid_argument without steps, for steps of different extents and for passes that
//! did not run
//! @complexity O(n) for n passes
[[nodiscard]] inline cost_table costs_of(std::span<timetable_view const> measured) {
  if (measured.empty())
    throw std::invalid_argument("costs_of: give at least one measured step");
  shape const& extents = measured.front().extents;
  auto const count =
    static_cast<std::size_t>(stages(extents)) * static_cast<std::size_t>(extents.chunks);
  std::vector<std::vector<double>> samples(std::size(timed_kinds) * count);
  auto const add = [&](pass_kind kind, pass const& what, double time) {
    for (std::size_t row = 0; row < std::size(timed_kinds); ++row)
      if (timed_kinds[row] == kind)
        samples[row * count + static_cast<std::size_t>(what.stage * extents.chunks + what.chunk)]
          .push_back(time);
  };
  for (timetable_view const& table : measured) {
    if (!(table.extents == extents))
      throw std::invalid_argument("costs_of: the steps are of pipelines of different extents");
    for (int i = 0; i < table.size(); ++i) {
      pass const& what = table.passes[i];
      double const time = table.ends[i] - table.starts[i];
      if (!(table.starts[i] >= 0 && time >= 0))
        throw std::invalid_argument("costs_of: a pass has no measured time; give whole steps");
      switch (what.kind) {
      case pass_kind::checkpointed_forward:
      case pass_kind::offloaded_forward: add(pass_kind::forward, what, time); break;
      case pass_kind::backward:
        add(pass_kind::backward_input, what, time / 2);
        add(pass_kind::backward_weight, what, time / 2);
        break;
      default: add(what.kind, what, time);
      }
    }
  }
  cost_table result(extents, {0, 0, 0, message_seconds(measured)});
  for (std::size_t row = 0; row < std::size(timed_kinds); ++row)
    for (int stage = 0; stage < stages(extents); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        result.set(
          timed_kinds[row],
          stage,
          chunk,
          detail::median(
            samples[row * count + static_cast<std::size_t>(stage * extents.chunks + chunk)]));
  return result;
}

//! @brief The same order under other costs.
//! @complexity O(n) for n passes
template <cost_model Cost>
[[nodiscard]] dynamic_timetable retime(dynamic_timetable const& table, Cost const& cost) {
  return simulate({table.extents, table.passes, table.offsets, table.tables}, cost);
}

} // namespace pipelining::inline v0_2
