// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The way from costs to the timeline of a V shape and from there to passes, at run time and
//! in constant evaluations. Header for pipelining::detail::generate_v and
//! pipelining::detail::v_slices.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/building_block.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/v_search.hpp>
#include <pipe/schedule/v_timeline.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

namespace pipelining::inline v0_1 {
namespace detail {

//! The extents of a V: stage s < P on device s, stage s >= P on device 2P - 1 - s.
[[nodiscard]] constexpr shape v_extents(int devices, int microbatches, int chunks) noexcept {
  return {.devices = devices,
          .microbatches = microbatches,
          .chunks = chunks,
          .stages_per_device = 2,
          .where = placement::wave};
}

[[nodiscard]] constexpr v_problem v_problem_of(shape const& extents, bool fused) noexcept {
  return {.devices = extents.devices,
          .units = units(extents),
          .chunks = extents.chunks,
          .legs = fused ? leg::weight_down : leg::count};
}

//! The pass that a leg has on a device for a unit of that leg.
[[nodiscard]] constexpr pass
v_pass(v_problem const& problem, int at, int device, int unit) noexcept {
  bool const deep = at == leg::forward_up || at == leg::backward_down || at == leg::weight_down;
  int const stage = deep ? 2 * problem.devices - 1 - device : device;
  int const chunk = unit % problem.chunks;
  pass_kind const kind = at <= leg::forward_up    ? pass_kind::forward
                         : problem.fused()        ? pass_kind::backward
                         : at <= leg::backward_up ? pass_kind::backward_input
                                                  : pass_kind::backward_weight;
  return row_writer::make(
    kind, stage, unit / problem.chunks, at <= leg::forward_up ? chunk : problem.chunks - 1 - chunk);
}

//! The time of entry `i` of a leg in `v_timeline::durations`.
template <cost_model Cost>
[[nodiscard]] constexpr double time_of(v_problem const& problem, Cost const& cost, int at, int i) {
  int const chunk = i % problem.chunks;
  int const unit = at <= leg::forward_up ? chunk : problem.chunks - 1 - chunk;
  return cost.duration(v_pass(problem, at, i / problem.chunks, unit));
}

//! Enters the costs, in ticks so fine that integers and short binary fractions stay exact.
//! @throws std::invalid_argument for a negative or infinite time.
template <cost_model Cost>
constexpr void enter(v_timeline& line, Cost const& cost) {
  v_problem const& problem = line.problem;
  double const latency = cost.latency();
  double total = latency * 4 * problem.devices;
  bool good = latency >= 0;
  int const count = problem.devices * problem.chunks;
  for (int at = 0; at < problem.legs; ++at)
    for (int i = 0; i < count; ++i) {
      double const time = time_of(problem, cost, at, i);
      good = good && time >= 0;
      total += time;
    }
  total *= problem.units;
  if (!good || !(total < 1e300))
    throw std::invalid_argument(
      "schedule: every time of the cost model must be finite and not negative");
  double scale = 1;
  while (total > 0 && total * scale < 1e15)
    scale *= 2;
  while (total * scale > 4e15)
    scale /= 2;
  for (int at = 0; at < problem.legs; ++at)
    for (int i = 0; i < count; ++i)
      line.durations[static_cast<std::ptrdiff_t>(at) * count + i] =
        static_cast<std::int64_t>(time_of(problem, cost, at, i) * scale + 0.5);
  line.problem.latency = static_cast<std::int64_t>(latency * scale + 0.5);
}

//! True when no message takes time and all passes take the same, a fused backward twice that: the
//! papers' costs.
[[nodiscard]] constexpr bool unit_costs(v_timeline const& line) noexcept {
  v_problem const& problem = line.problem;
  std::ptrdiff_t const count = static_cast<std::ptrdiff_t>(problem.devices) * problem.chunks;
  std::int64_t const unit = line.durations[0];
  bool same = problem.latency == 0;
  for (int at = 0; at < problem.legs; ++at)
    for (std::ptrdiff_t i = 0; i < count; ++i)
      same = same && line.durations[at * count + i] ==
                       (problem.fused() && at > leg::forward_up ? 2 * unit : unit);
  return same;
}

//! Writes the row of a device as passes.
constexpr void write(v_timeline const& line, int device, row_writer& out) {
  std::uint32_t const* const row = line.codes + line.first_of(device);
  for (int i = 0; i < line.problem.row(); ++i)
    out.push(
      v_pass(line.problem, static_cast<int>(row[i] & 7U), device, static_cast<int>(row[i] >> 3)));
}

//! Owns the arrays of a timeline of any size.
class v_workspace {
public:
  v_timeline line;
  building_block block;

  //! Takes about 40 bytes per pass.
  constexpr explicit v_workspace(v_problem const& problem) {
    auto const devices = static_cast<std::size_t>(problem.devices);
    std::size_t const legs = devices * leg::count;
    std::size_t const entries = devices * static_cast<std::size_t>(problem.row());
    line.problem = problem;
    line.durations = new std::int64_t[legs * static_cast<std::size_t>(problem.chunks)];
    line.codes = new std::uint32_t[entries];
    line.begins = new std::int64_t[entries];
    line.ends = new std::int64_t[entries];
    line.held = new std::int32_t[entries];
    line.arrivals = new std::int64_t[legs * static_cast<std::size_t>(problem.units)];
    line.release = new std::int64_t[devices];
    line.placed = new int[devices];
    line.counts = new int[legs];
    line.queue = new int[devices];
    line.queued = new unsigned char[devices];
    block = {problem.devices, leg::count, new int[legs]};
  }
  constexpr ~v_workspace() {
    delete[] line.durations;
    delete[] line.codes;
    delete[] line.begins;
    delete[] line.ends;
    delete[] line.held;
    delete[] line.arrivals;
    delete[] line.release;
    delete[] line.placed;
    delete[] line.counts;
    delete[] line.queue;
    delete[] line.queued;
    delete[] block.slots;
  }
  v_workspace(v_workspace const&) = delete;
  v_workspace& operator=(v_workspace const&) = delete;
};

//! What a schedule on a V brings: whether its backward is fused, whether its order can gain from a
//! search at unit costs, and `start`, which sets the limit and writes rows that keep it.
template <class Schedule>
concept v_schedule =
  requires(Schedule const schedule, shape const extents, v_timeline line, building_block block) {
  { Schedule::fused } -> std::convertible_to<bool>;
  { Schedule::searches_unit_costs } -> std::convertible_to<bool>;
  schedule.start(extents, line, block);
};

//! Orders the passes of a V: start, reorder, and at run time a search where costs are not those of
//! the papers.
template <v_schedule Schedule, cost_model Cost>
constexpr void
generate_v(Schedule const& schedule, shape const& extents, Cost const& cost, row_writer* rows) {
  v_workspace work(v_problem_of(extents, Schedule::fused));
  enter(work.line, cost);
  schedule.start(extents, work.line, work.block);
  int sweep = -1;
  advance_reorder(work.line, sweep, 0x7fffffff);
  bool const unit = unit_costs(work.line);
  if (!std::is_constant_evaluated() && (!unit || Schedule::searches_unit_costs))
    v_search(work.line, weights_for(work.line.problem)).run(work.block, !unit);
  for (int device = 0; device < extents.devices; ++device)
    write(work.line, device, rows[device]);
}

//! The same in several constant evaluations, for extents that one evaluation has no steps for.
template <v_schedule Schedule, int Devices, int Microbatches, class Cost>
struct v_slices {
  static constexpr shape extents = Schedule{}.arrange(Devices, Microbatches);
  static constexpr v_problem problem = v_problem_of(extents, Schedule::fused);
  static constexpr int passes = Devices * problem.row();
  static constexpr int per_slice = 3072; // at most some 300 steps each
  static constexpr int count = reorder_sweeps * passes / per_slice + 2;

  struct state {
    v_problem problem;
    std::int64_t span;
    std::int64_t makespan;
    int queue_size;
    int sweep;
    std::int64_t durations[leg::count * Devices * extents.chunks];
    std::uint32_t codes[passes];
    std::int64_t begins[passes];
    std::int64_t ends[passes];
    std::int32_t held[passes];
    std::int64_t arrivals[leg::count * Devices * units(extents)];
    std::int64_t release[Devices];
    int placed[Devices];
    int counts[leg::count * Devices];
    int queue[Devices];
    unsigned char queued[Devices];
  };

  [[nodiscard]] static constexpr v_timeline timeline(state& own) {
    v_timeline line;
    line.problem = own.problem;
    line.durations = own.durations;
    line.codes = own.codes;
    line.begins = own.begins;
    line.ends = own.ends;
    line.held = own.held;
    line.arrivals = own.arrivals;
    line.release = own.release;
    line.placed = own.placed;
    line.counts = own.counts;
    line.queue = own.queue;
    line.queued = own.queued;
    line.queue_size = own.queue_size;
    line.span = own.span;
    line.makespan = own.makespan;
    return line;
  }
  static constexpr void keep(v_timeline const& line, state& own) {
    own.problem = line.problem;
    own.queue_size = line.queue_size;
    own.span = line.span;
    own.makespan = line.makespan;
  }

  [[nodiscard]] static constexpr state start() {
    state own{};
    own.problem = problem;
    own.sweep = -1;
    v_timeline line = timeline(own);
    int slots[leg::count * Devices]{};
    building_block block{Devices, leg::count, slots};
    enter(line, Cost::value);
    Schedule{}.start(extents, line, block);
    keep(line, own);
    return own;
  }
  [[nodiscard]] static constexpr state go_on(state own, int) {
    v_timeline line = timeline(own);
    advance_reorder(line, own.sweep, per_slice);
    keep(line, own);
    return own;
  }
  static constexpr void write_row(state const& own, int device, row_writer& out) {
    for (int i = 0; i < problem.row(); ++i) {
      std::uint32_t const code = own.codes[device * problem.row() + i];
      out.push(v_pass(problem, static_cast<int>(code & 7U), device, static_cast<int>(code >> 3)));
    }
  }
};

} // namespace detail
} // namespace pipelining::inline v0_1
