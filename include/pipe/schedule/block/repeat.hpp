// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Building blocks, repeated: the way from costs to a timeline and from there to passes, in
//! the program and in the compiler. Header for pipelining::Repeat.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/block/timeline.hpp>
#include <pipe/schedule/block/v_search.hpp>
#include <pipe/schedule/schedule.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! Stages over the devices one after the other, again and again, or to and fro.
template <placement Where>
struct placed {
  [[nodiscard]] static constexpr shape
  //! The extents of such a pipeline.
  arrange(int devices, int microbatches, int chunks, int held) noexcept {
    return {.devices = devices,
            .microbatches = microbatches,
            .chunks = chunks,
            .stages_per_device = held,
            .where = Where};
  }
};

} // namespace detail

using loops = detail::placed<placement::looped>; //!< @brief Stage s on device s mod P.
using waves = detail::placed<placement::wave>;   //!< @brief Down the devices and up again.

//! @brief How a block becomes an order.
enum class effort : std::uint8_t {
  sweeps, //!< five sweeps: bounded, and the same in the compiler and in the program
  search  //!< and a search where the costs are not those of the papers; for the program
};

namespace detail {

//! The pass that a line has for a number.
[[nodiscard]] constexpr pass pass_of(timeline const& line, int at, int number) noexcept {
  constexpr pass_kind kinds[] = {
    pass_kind::forward, pass_kind::backward_input, pass_kind::backward_weight};
  int const part = at / line.stages;
  int const chunk = number % line.chunks;
  return row_writer::make(part == 1 && line.problem.fused ? pass_kind::backward : kinds[part],
                          at % line.stages,
                          number / line.chunks,
                          part == 0 ? chunk : line.chunks - 1 - chunk);
}

//! Whether some microbatch takes other times than the first.
[[nodiscard]] constexpr bool
has_unlike_microbatches(shape const& extents, bool fused, cost_model auto const& cost) {
  constexpr pass_kind kinds[] = {
    pass_kind::forward, pass_kind::backward, pass_kind::backward_input, pass_kind::backward_weight};
  for (int at = 0; at < 4; ++at)
    for (int stage = 0; (at == 0 || fused == (at == 1)) && stage < extents.stages(); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk) {
        double const first = cost.duration(row_writer::make(kinds[at], stage, 0, chunk));
        for (int i = 1; i < extents.microbatches; ++i)
          if (cost.duration(row_writer::make(kinds[at], stage, i, chunk)) != first)
            return true;
      }
  return false;
}

//! Enters the costs, in ticks so fine that integers and short binary fractions stay exact.
//! @param as_first all microbatches take the times of the first
//! @throws std::invalid_argument for a time that is not finite or negative.
constexpr void enter(timeline& line, cost_model auto const& cost, bool as_first = false) {
  double const latency = checked_latency(cost);
  double total = latency * 2 * line.stages;
  for (int at = 0; at < line.lines; ++at)
    for (int i = 0; i < line.times; ++i)
      total += checked_duration(cost, kinds_of_training, pass_of(line, at, i));
  total *= line.units;
  require(total < 1e300, "cost model: the times of all passes together are too large");
  // In two factors, since a single one is infinite where all times are tiny.
  double fine = 1;
  double finer = 1;
  while (total > 0 && total * fine < 1e15 && fine < 1e300)
    fine *= 2;
  while (total > 0 && total * fine * finer < 1e15)
    finer *= 2;
  while (total * fine * finer > 4e15)
    fine /= 2;
  for (int at = 0; at < line.lines; ++at)
    for (int i = 0; i < line.times; ++i)
      line.durations[at * line.times + i] = static_cast<std::int64_t>(
        cost.duration(pass_of(line, at, as_first ? i % line.chunks : i)) * fine * finer + 0.5);
  line.problem.latency = static_cast<std::int64_t>(latency * fine * finer + 0.5);
}

//! True when no message takes time and all passes take the same, a fused backward twice that: the
//! papers' costs.
[[nodiscard]] constexpr bool unit_costs(timeline const& line) noexcept {
  std::int64_t const unit = line.durations[0];
  bool same = line.problem.latency == 0;
  for (int i = 0; i < line.lines * line.times; ++i) {
    bool const twice = line.problem.fused && i >= line.stages * line.times;
    same = same && line.durations[i] == (twice ? 2 * unit : unit);
  }
  return same;
}

//! Writes the row of a device as passes.
constexpr void write(timeline const& line, int device, row_writer& out) {
  for (int i = line.first[device]; i < line.first[device + 1]; ++i)
    out.push(pass_of(line, line.line_of(line.codes[i]), line.number_of(line.codes[i])));
}

//! A schedule of repeated blocks. Its members say whether its backward is in one piece and whether
//! its order is searched for, at unit costs too; `start` sets the limit and writes rows that keep
//! it.
template <class Schedule>
concept repeated_schedule = requires(Schedule const schedule, timeline line, building_block block) {
  { schedule.fused() } -> std::same_as<bool>;
  { schedule.how } -> std::convertible_to<effort>;
  { Schedule::searches_unit_costs } -> std::convertible_to<bool>;
  schedule.start(line, block);
};

//! The device that holds a stage, as a schedule places it.
template <class Schedule>
[[nodiscard]] constexpr int
holder_by([[maybe_unused]] Schedule const& plan, shape const& extents, int stage) {
  if constexpr (places_stages<Schedule>)
    return plan.device_of(extents, stage, 0);
  else
    return device_of(extents, stage);
}

//! The table of a timeline's stages, where their placement has no name.
[[nodiscard]] constexpr int const* table_of(timeline const& line) noexcept {
  return line.problem.extents.where == placement::custom ? line.device.data : nullptr;
}

//! Searches for a better order, where the schedule is one that does at these costs.
//! @param like false: microbatches take unlike times, and no makespan may be longer than that of
//! the rows
template <repeated_schedule Schedule>
constexpr void
search_repeated(Schedule const& schedule, timeline& line, building_block& block, bool like) {
  bool const unit = unit_costs(line);
  if (schedule.how == effort::sweeps || (unit && !Schedule::searches_unit_costs))
    return;
  if (std::is_constant_evaluated())
    throw std::invalid_argument(
      "this schedule searches for its order at these costs, which takes a program; the "
      "compiler makes the one of the same name with effort::sweeps");
  v_weights weights = weights_for(line.problem);
  weights.trades = like && Schedule::searches_unit_costs;
  v_search(line, weights).run(block, !unit, !like);
}

//! Orders the passes: start, reorder, and the search where the schedule is one that searches. Where
//! microbatches take unlike times, the order for those of the first is improved for all.
template <repeated_schedule Schedule, cost_model Cost>
constexpr void generate_repeated(Schedule const& schedule,
                                 shape const& extents,
                                 Cost const& cost,
                                 row_writer* rows) {
  timeline_problem const problem{.extents = extents,
                                 .fused = schedule.fused(),
                                 .unlike =
                                   has_unlike_microbatches(extents, schedule.fused(), cost)};
  timeline line(problem, [&](int stage) { return holder_by(schedule, extents, stage); });
  owned<int> const slots(3 * line.stages);
  building_block block{.extents = extents, .slots = slots, .holders = table_of(line)};
  enter(line, cost, true);
  schedule.start(line, block);
  reorder(line);
  search_repeated(schedule, line, block, true);
  if (problem.unlike) {
    enter(line, cost);
    if (schedule.how == effort::search)
      search_repeated(schedule, line, block, false);
    else
      reorder(line);
  }
  for (int device = 0; device < extents.devices; ++device)
    write(line, device, rows[device]);
}

//! A block that can be repeated: it knows how many stages a device holds and whether the
//! backward pass is in one piece, and lays the slots of one unit out.
template <class Block>
concept repeatable_block = std::is_copy_constructible_v<Block> &&
  requires(Block const own, building_block block) {
  { own.stages_per_device } -> std::convertible_to<int>;
  { own.fused } -> std::convertible_to<bool>;
  own.lay_out(block);
};

//! A map from stages to devices for a number of stages per device.
template <class Placement>
concept stage_placement = std::is_copy_constructible_v<Placement> &&
  requires(Placement const own, int number) {
  { own.arrange(number, number, number, number) } -> std::same_as<shape>;
};

} // namespace detail

//! @brief Any building block, repeated: the framework of "Controllable Memory" for any number of
//! stages per device, looped, to and fro, or on devices in any order.
//!
//! The block of one unit is repeated every interval, squeezed, and its warm-up and cool-down are
//! reordered for the costs, without holding more activations than the block does in its steady
//! state: at most the sum of ceil(lifespan / interval) over a device's stages.
//!
//! With chunks, the units (microbatch, chunk) take the place of microbatches, and the backward
//! passes wait until a sequence has gone forward: each stage holds C - 1 units more. Any P >= 1,
//! M >= 1 that the block itself allows.
//!
//! @tparam Block such as `strides`, whose numbers are values, or `fixed_block`, whose are types.
//! @tparam Placement `loops`, `waves`, a list (`placed_on`, `placed_by_list`), or a type of one's
//! own with `arrange` and `device_of`.
//! @tparam Chunks chunks of a sequence, or `dynamic`.
//! @tparam How five sweeps, or a search at costs that are not those of the papers.
//! @throws std::invalid_argument (generate) when the block cannot be laid out, or for a time that
//! is not finite or negative.
//! @complexity O(1) per pass and sweep in practice; five sweeps, about 25 ns each per pass. Search:
//! `search_effort`.
//! @source Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024
//! (arXiv:2405.15362), section 3, for the block; the reorder is our own, see
//! docs/explanation/v_shapes.md.
template <detail::repeatable_block Block,
          detail::stage_placement Placement = waves,
          int Chunks = 1,
          effort How = effort::sweeps>
struct Repeat {
  static_assert(Chunks == dynamic || Chunks >= 1, "Repeat: a sequence has at least one chunk");

  detail::parameter<Chunks> chunks{};
  Block block{};     //!< what is repeated
  Placement where{}; //!< which device holds which stage
  effort how = How;  //!< how long it looks for an order

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return where.arrange(devices, microbatches, chunks, block.stages_per_device);
  }
  //! The device of a stage, where the placement says it by a list or by a rule of its own.
  [[nodiscard]] constexpr int device_of(shape const& extents,
                                        int stage,
                                        int route) const requires detail::places_stages<Placement> {
    return where.device_of(extents, stage, route);
  }
  constexpr void
  generate(shape const& extents, cost_model auto const& cost, row_writer* rows) const {
    detail::generate_repeated(*this, extents, cost, rows);
  }

  static constexpr bool searches_unit_costs = false;
  [[nodiscard]] constexpr bool fused() const noexcept { return block.fused; }
  constexpr void start(detail::timeline& line, building_block& slots) const {
    block.lay_out(slots);
    detail::wait_for_sequence(slots);
    line.problem.limit = detail::peak_of(slots);
    detail::repeat(slots, line);
    if constexpr (requires { block.write(line); })
      block.write(line); // an order of its own
  }
};

namespace detail {

//! The extents of a pipeline whose stages lie where a list says.
//! @throws std::invalid_argument for a list of another length than P V.
[[nodiscard]] constexpr shape
arrange_list(std::size_t length, int devices, int microbatches, int chunks, int held) {
  if (length != static_cast<std::size_t>(devices) * static_cast<std::size_t>(held))
    throw std::invalid_argument("block: the list of devices has " + std::to_string(length) +
                                " entries, but " + std::to_string(devices) + " devices with " +
                                std::to_string(held) + " legs have " +
                                std::to_string(devices * held) + " stages; give each a device");
  return {.devices = devices,
          .microbatches = microbatches,
          .chunks = chunks,
          .stages_per_device = held,
          .where = placement::custom};
}

} // namespace detail

//! @brief A placement for `Repeat`: stage s on the device that stands s-th in the list.
//!
//! `Repeat<Block, placed_on<0, 1, 1, 0>>` is a V of two devices. A device that holds more stages
//! than the block has legs needs an interval with slots for all of them.
template <int... Device>
struct placed_on {
  [[nodiscard]] static constexpr shape
  //! The extents of such a pipeline.
  //! @throws std::invalid_argument for a list of another length than P V.
  arrange(int devices, int microbatches, int chunks, int held) {
    return detail::arrange_list(sizeof...(Device), devices, microbatches, chunks, held);
  }
  //! The device of a stage.
  [[nodiscard]] static constexpr int device_of(shape const&, int stage, int) noexcept {
    constexpr int list[] = {Device...};
    return list[stage];
  }
};

//! @brief The same with a list that is known at run time.
struct placed_by_list {
  std::vector<int> devices{}; //!< [P V], the device of each stage

  //! The extents of such a pipeline.
  //! @throws std::invalid_argument for a list of another length than P V.
  [[nodiscard]] shape arrange(int device_count, int microbatches, int chunks, int held) const {
    return detail::arrange_list(devices.size(), device_count, microbatches, chunks, held);
  }
  //! The device of a stage.
  [[nodiscard]] int device_of(shape const&, int stage, int) const {
    return devices[static_cast<std::size_t>(stage)];
  }
};

} // namespace pipelining::inline v0_3
