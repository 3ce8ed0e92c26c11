// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief V shapes for a memory limit. Header for pipelining::VAuto and VContinuous.

#include <pipe/flow/shape.hpp>
#include <pipe/planner/search/continuous_offsets.hpp>
#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/repeat.hpp>
#include <pipe/schedule/block/timeline.hpp>
#include <pipe/schedule/block/v_search.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/v_shape.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief The V shape with the smallest bubble that a limit on activations allows, for the costs at
//! hand.
//!
//! Starts from the block that fills the memory best, or from one with a longer interval where no
//! block of six slots fits, and searches from there, which takes a program; `SweptVAuto`
//! does without. Bubble with unit costs, M >= 2P
//! and m = memory_limit >= 2 floor((P + 4) / 3): max(6P - 1 - 3m, 4P - 3m + 2 ceil(m / 2), 0). Any
//! P >= 1, M >= 1. With the memory of ZB-V its makespan may exceed ZB-V's, by as much as the span
//! is shorter at most.
//!
//! @tparam MemoryLimit activations of one stage for one whole microbatch that a device may hold, at
//! least 2, or `dynamic`.
//! @tparam Chunks chunks of a sequence, or `dynamic`.
//! @throws std::invalid_argument (generate) for a limit below 2, at which no V can run.
//! @complexity `search_effort`.
//! @source own derivation, see docs/explanation/v_shapes.md; the frontier comes from the adaptive
//! search of Qi et al., NeurIPS 2024.
template <int MemoryLimit = dynamic, int Chunks = 1, effort How = effort::search>
struct VAuto {
  static_assert(MemoryLimit == dynamic || MemoryLimit >= 2,
                "VAuto: a device of a V holds at least two activations, one per stage");
  static_assert(Chunks == dynamic || Chunks >= 1, "VAuto: a sequence has at least one chunk");

  //! activations of one stage that a device may hold
  detail::parameter<MemoryLimit, dynamic, double> memory_limit{};
  detail::parameter<Chunks> chunks{};
  effort how = How; //!< how long it looks for an order

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return waves::arrange(devices, microbatches, chunks, 2);
  }
  constexpr void
  generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    detail::generate_repeated(*this, extents, cost, rows);
  }

  static constexpr bool searches_unit_costs = true;
  [[nodiscard]] static constexpr bool fused() noexcept { return false; }
  constexpr void start(detail::timeline& line, building_block& block) const {
    if (!(memory_limit >= 2))
      throw std::invalid_argument(
        "VAuto: the memory limit must be at least 2 activations, one for each of the two stages "
        "of a device");
    shape const& extents = line.problem.extents;
    double const all = 2.0 * extents.microbatches;
    double const wished = memory_limit;
    double const most = (wished < all ? wished : all) * extents.chunks;
    line.problem.limit = static_cast<int>(most + 1e-6);
    fill(line.problem.limit - 2 * (extents.chunks - 1), block);
    detail::wait_for_sequence(block);
    detail::repeat(block, line);
  }

private:
  //! The largest block of six slots within the limit, or the shortest longer one. With an even
  //! interval the gap at the loss always leaves room for both legs.
  static constexpr void fill(int limit, building_block& block) {
    strides<2> plan = detail::v_strides(detail::v_min_offsets);
    bool fits = detail::lay_out_largest(limit, block);
    // Each pass of a unit takes a slot, so that the lifespans on a device sum up to 4P + 4 at
    // least; an interval that is shorter than their share of the limit need not be tried.
    int const least = limit > 0 ? (4 * block.extents.devices + 4) / limit / 2 * 2 : 0;
    plan.interval = least > plan.interval + 2 ? least : plan.interval + 2;
    for (; !fits; plan.interval += 2) {
      plan.lay_out(block);
      fits = detail::peak_of(block) <= limit;
    }
  }
};

namespace detail {

//! The same without a search: five sweeps from the block that fills the memory best.
template <int MemoryLimit = dynamic, int Chunks = 1>
using SweptVAuto = VAuto<MemoryLimit, Chunks, effort::sweeps>;

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
  effort how = effort::search; //!< how long it looks for an order; sweeps take `VAuto`'s start

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return waves::arrange(devices, microbatches, chunks, 2);
  }
  void generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    detail::generate_repeated(*this, extents, cost, rows);
  }

  static constexpr bool searches_unit_costs = true;
  [[nodiscard]] static constexpr bool fused() noexcept { return false; }
  void start(detail::timeline& line, building_block& block) const {
    VAuto<dynamic, dynamic>{memory_limit, chunks}.start(line, block);
    if (how == effort::sweeps)
      return;
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
    int const least = std::max(busy, (times.lives(devices) + limit - 1) / limit);
    for (int interval = least; interval <= busy + busy / part; ++interval) {
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
