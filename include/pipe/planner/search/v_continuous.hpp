// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A V shape from a building block in real times. Header for pipelining::VContinuous.

#include <pipe/flow/shape.hpp>
#include <pipe/planner/search/continuous_offsets.hpp>
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/repeat.hpp>
#include <pipe/schedule/block/timeline.hpp>
#include <pipe/schedule/block/v_search.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace pipelining::inline v0_3 {
namespace detail {

//! The largest times of any device, on a grid of at most `steps` steps per microbatch; exact where
//! the times have a common measure that large, else rounded up.
[[nodiscard]] inline grid_times on_grid(timeline const& line, int steps) {
  std::int64_t longest[3] = {1, 1, 1};
  std::int64_t measure = line.problem.latency;
  int const entries = line.stages * line.times; // of a kind
  for (int i = 0; i < 3 * entries; ++i)
    longest[i / entries] = std::max(longest[i / entries], line.durations[i]);
  for (std::int64_t const time : longest)
    measure = std::gcd(measure, time);
  std::int64_t const busy = 2 * (longest[0] + longest[1] + longest[2]);
  if (busy / measure > steps)
    measure = (busy + steps - 1) / steps;
  auto const up = [measure](std::int64_t time) {
    return static_cast<int>(std::min<std::int64_t>((time + measure - 1) / measure, 1 << 14));
  };
  return {up(longest[0]), up(longest[1]), up(longest[2]), up(line.problem.latency)};
}

} // namespace detail

//! @brief `VAuto` with one more start: the continuous block with the shortest interval that keeps
//! the limit.
//!
//! For unequal times or latency and a limit near the least, or many microbatches, where the blocks
//! of six slots stall in every round. Mostly shorter than `VAuto` there,
//! not always. It takes some tenths of a second, some seconds on many devices. Run time only.
//!
//! @throws std::invalid_argument (generate) for a limit below 2.
//! @source own derivation, see docs/explanation/v_shapes.md.
struct VContinuous {
  double memory_limit = dynamic; //!< activations of one stage that a device may hold
  int chunks = 1;

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return waves::arrange(devices, microbatches, chunks, 2);
  }
  template <cost_model Cost>
  void generate(shape const& extents, Cost const& cost, row_writer* rows) const {
    detail::generate_repeated(*this, extents, cost, rows);
  }

  //! @brief How long it looks for an order.
  static constexpr effort how = effort::search;
  static constexpr bool searches_unit_costs = true;
  [[nodiscard]] static constexpr bool fused() noexcept { return false; }
  void start(detail::timeline& line, building_block& block) const {
    VAuto<dynamic, dynamic>{memory_limit, chunks}.start(line, block);
    // The work grows with the fourth power of the idle steps: fine where intervals are short only.
    int const limit = line.problem.limit - 2 * (line.chunks - 1);
    int const fine = line.problem.devices() <= 16 ? 36 : 24;
    if (!start_on(fine, 4, limit, line, block))
      static_cast<void>(start_on(fine / 3, 1, limit, line, block));
  }

private:
  //! Pairs of patterns over all devices that one interval may ask for: a few tenths of a second.
  static constexpr std::int64_t most_work = 40'000'000;

  //! Writes the block with the shortest interval up to busy + busy / `part` that keeps the limit.
  [[nodiscard]] static bool
  start_on(int steps, int part, int limit, detail::timeline& line, building_block& block) {
    detail::grid_times const times = detail::on_grid(line, steps);
    int const busy = times.busy();
    int const devices = line.problem.devices();
    for (int interval = busy; interval <= busy + busy / part; ++interval) {
      std::int64_t const patterns = 60 + 240 * std::int64_t{interval - busy}; // about
      if (devices * patterns * patterns > most_work)
        return false;
      detail::continuous_block const found =
        detail::plan_continuous_block(devices, times, interval);
      if (found.starts.empty() || found.peak > limit)
        continue;
      for (int device = 0; device < devices; ++device)
        for (int at = 0; at < detail::leg::count; ++at)
          block.slots[detail::v_line(devices, at, device)] = found.start(device, at);
      block.interval = interval;
      detail::wait_for_sequence(block);
      detail::repeat(block, line);
      return true;
    }
    return false;
  }
};

} // namespace pipelining::inline v0_3
