// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The shortest order of a small pipeline, with a proof. Header for
//! pipelining::exact_order and shortest_order.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/search/exact_search.hpp>
#include <pipe/planner/search/exact_state.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! A step of an order: a pass, a recomputation or a copy, with its times.
struct exact_step {
  exact_kind kind = exact_kind::none; //!< what it is
  int device = 0;                     //!< where it runs
  int stage = 0;                      //!< whose it is
  int microbatch = 0;                 //!< what it is for
  double start = 0;                   //!< in the unit of the costs
  double end = 0;                     //!< in the unit of the costs
};

} // namespace detail

//! @brief The order that an exact search has found, and the bound that it has proven.
struct exact_order {
  //! @brief The options of an exact search.
  struct options {
    //! Units of memory that a device may hold; an activation takes `activation_units` of them.
    int memory_limit = 0x7fff;
    int activation_units = 1; //!< units of an activation
    //! Units of the input of a stage. A forward pass keeps nothing else if a recomputation follows
    //! it.
    int input_units = 0;
    //! Time of a copy of an activation to the host, or back, on the one copy lane of each device;
    //! negative: there are no copies.
    double copy = -1;
    //! Time of a recomputation over the time of the forward pass; negative: there are none.
    double recompute = -1;
    //! States that are kept at most, at about 300 bytes each without copies and a kilobyte with
    //! them; a search that needs more gives up.
    std::size_t most_states = std::size_t{1} << 20;
  };

  //! No order in which microbatches do not overtake each other takes less than this.
  double bound = 0;
  //! The makespan of `steps`; equal to `bound` when `optimal`. Infinite where nothing was found.
  double makespan = 0;
  bool optimal = false;                  //!< no such order is shorter
  std::size_t states = 0;                //!< states that the proof went through
  std::vector<detail::exact_step> steps; //!< by start

  //! @brief The passes of an order without copies and recomputation, as any schedule gives them.
  //! @throws std::invalid_argument when there are other steps, or none at all.
  [[nodiscard]] device_orders passes(shape const& extents) const {
    device_orders result{{.extents = extents}, {}, {0}};
    if (steps.empty())
      throw std::invalid_argument("exact_order: the search has found no order");
    for (int device = 0; device < extents.devices; ++device) {
      for (detail::exact_step const& step : steps) {
        if (step.device != device)
          continue;
        if (step.kind != detail::exact_kind::forward &&
            step.kind != detail::exact_kind::backward_input &&
            step.kind != detail::exact_kind::backward_weight)
          throw std::invalid_argument(
            "exact_order: an order with copies or recomputation has steps that are no passes");
        role const is = step.kind == detail::exact_kind::forward          ? role::forward
                        : step.kind == detail::exact_kind::backward_input ? role::input
                                                                          : role::weights;
        result.passes.push_back(
          row_writer::make(training.kind_with(is), step.stage, step.microbatch));
      }
      result.offsets.push_back(static_cast<int>(result.passes.size()));
    }
    return result;
  }
};

namespace detail {

//! Times as whole ticks: one over `scale` units of the user's time each.
struct tick_scale {
  double ticks_per_unit = 1;

  [[nodiscard]] int operator()(double time) const {
    double const ticks = time * ticks_per_unit;
    double const whole_ticks = std::round(ticks);
    if (!(time >= 0) || std::abs(ticks - whole_ticks) > 1e-6 || whole_ticks > 4000)
      throw std::invalid_argument(
        "shortest_order: times must not be negative and must be multiples of one thousandth, the "
        "largest at most 4000 times that multiple");
    return static_cast<int>(whole_ticks);
  }
};

//! A time of a pipeline, and where its ticks are kept.
struct exact_time {
  int* ticks;
  double time;
};

[[nodiscard]] inline tick_scale scale_of(std::vector<exact_time> const& times) {
  for (int const parts : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 50, 100, 200, 250, 500, 1000}) {
    std::int64_t common = 0;
    bool all_whole = true;
    for (exact_time const& each : times) {
      double const ticks = each.time * parts;
      all_whole = all_whole && std::abs(ticks) < 1e9 && std::abs(ticks - std::round(ticks)) < 1e-6;
      if (all_whole)
        common = std::gcd(common, static_cast<std::int64_t>(std::round(ticks)));
    }
    if (all_whole)
      return {static_cast<double>(parts) / static_cast<double>(common > 0 ? common : 1)};
  }
  return {1000};
}

//! @throws std::invalid_argument where microbatches take unlike times
[[nodiscard]] double
time_of(cost_model auto const& cost, pass_kind kind, int stage, int microbatches) {
  double const first = cost.duration(row_writer::make(kind, stage, 0));
  for (int i = 1; i < microbatches; ++i)
    if (double{cost.duration(row_writer::make(kind, stage, i))} != first)
      throw std::invalid_argument(
        "shortest_order: every microbatch must take the same times; proofs are of those only");
  return first;
}

inline void check_exact(shape const& extents, exact_order::options const& options) {
  check_extents(extents);
  if (extents.devices > most_exact_devices || extents.stages() > most_exact_stages ||
      extents.microbatches > most_exact_microbatches || extents.chunks != 1)
    throw std::invalid_argument("shortest_order: proofs are for at most 4 devices, 8 stages, 8 "
                                "microbatches and whole sequences");
  if (extents.where == placement::bidirectional || extents.where == placement::custom)
    throw std::invalid_argument(
      "shortest_order: every microbatch must take the same way through a placement with a name; "
      "bidirectional and custom placements differ");
  if (options.activation_units < 1 || options.input_units < 0 ||
      options.input_units > options.activation_units)
    throw std::invalid_argument("shortest_order: an activation has at least one unit, and its "
                                "input at most as many");
  for (int device = 0; device < extents.devices; ++device) {
    int held = 0;
    for (int stage = 0; stage < extents.stages(); ++stage)
      held += device_of(extents, stage) == device ? 1 : 0;
    int const least = options.recompute >= 0 || options.copy >= 0 ? options.activation_units
                                                                  : held * options.activation_units;
    if (options.memory_limit < least)
      throw std::invalid_argument(
        "shortest_order: the memory limit is below one activation of every stage of a device");
  }
}

[[nodiscard]] exact_world world_of(shape const& extents,
                                   cost_model auto const& cost,
                                   exact_order::options const& options,
                                   tick_scale& scale) {
  exact_world world;
  world.devices = extents.devices;
  world.stages = extents.stages();
  world.microbatches = extents.microbatches;
  world.cap = std::min(options.memory_limit, 0x7fff);
  world.whole = options.activation_units;
  world.kept = options.input_units;
  world.recomputes = options.recompute >= 0;
  (void)checked_links(cost, world.devices);
  auto const message = [&](int from, int to) {
    return message_time(cost, world.devices, device_of(extents, from), device_of(extents, to));
  };
  std::vector<exact_time> times;
  if (options.copy >= 0)
    times.push_back({&world.copy, options.copy});
  for (int stage = 0; stage < world.stages; ++stage) {
    auto const time = [&](role is) {
      return time_of(cost, training.kind_with(is), stage, world.microbatches);
    };
    world.holder[stage] = device_of(extents, stage);
    times.push_back({&world.forward[stage], time(role::forward)});
    times.push_back({&world.input[stage], time(role::input)});
    times.push_back({&world.weight[stage], time(role::weights)});
    if (world.recomputes)
      times.push_back({&world.again[stage], time(role::forward) * options.recompute});
    if (stage > 0)
      times.push_back({&world.up[stage], message(stage, stage - 1)});
    if (stage + 1 < world.stages)
      times.push_back({&world.down[stage], message(stage, stage + 1)});
  }
  scale = scale_of(times);
  for (exact_time const& each : times)
    *each.ticks = scale(each.time);
  int round_trip = 0; // from the end of a stage's forward pass to the start of its backward pass
  for (int stage = world.stages - 1; stage >= 0; --stage) {
    if (stage + 1 < world.stages)
      round_trip +=
        world.down[stage] + world.forward[stage + 1] + world.input[stage + 1] + world.up[stage + 1];
    world.lifetime[stage] =
      world.forward[stage] + round_trip + world.input[stage] + world.weight[stage];
  }
  return world;
}

} // namespace detail

//! @brief The order with the least makespan of a pipeline that may split its backward passes, and
//! the proof that there is none shorter.
//!
//! Every microbatch costs the same. Memory is held from the start of a forward pass to the end of
//! its backward_weight, but for the time between the end of its copy out and the start of its copy
//! in; every activation is copied out at most once. Microbatches do not overtake each other.
//! Without copies and recomputation that costs nothing: passes of a stage that are alike can be
//! renamed in the order in which they run. With them it is part of the problem that is solved.
//!
//! @param extents at most 4 devices, 8 stages and 8 microbatches, one chunk.
//! @param cost any cost model that is the same for all microbatches; multiples of a thousandth.
//! @throws std::invalid_argument for a pipeline that is too large, times that are no multiples, or
//! a memory limit under which nothing runs.
//! @complexity exponential, bounded by `most_states`. Mostly milliseconds without copies; with them
//! up to half a minute for 4 devices and 5 microbatches, where the limit is above one activation
//! and below the memory that the pipeline wants.
//! @source own derivation (docs/explanation/exact_search.md): branch and bound over events with all
//! ways of the copies side by side and memory of the proofs of states (iterative deepening on
//! the makespan), active schedules, chains, work and rooms as bounds.
[[nodiscard]] exact_order shortest_order(shape const& extents,
                                         cost_model auto const& cost,
                                         exact_order::options const& options = {}) {
  detail::check_exact(extents, options);
  detail::tick_scale scale;
  detail::exact_world world = detail::world_of(extents, cost, options, scale);
  exact_order result;
  auto const to_time = [&scale](int ticks) { return ticks / scale.ticks_per_unit; };

  // Deepens until the rest fits the budget. Where states run out, the budget is a proven bound.
  detail::exact_search search(world, options.most_states);
  int budget = 0;
  int rest = search.rest(budget);
  while (rest > budget && rest < detail::exact_never && !search.stopped()) {
    budget = rest;
    rest = search.rest(budget);
  }
  bool const found = rest < detail::exact_never && !search.stopped();
  if (rest < detail::exact_never)
    budget = std::max(budget, rest);
  result.bound = to_time(budget);
  result.states = search.states();
  result.makespan = HUGE_VAL;
  if (!found)
    return result;
  result.makespan = to_time(budget);
  result.optimal = result.makespan <= result.bound;
  for (auto choice = search.path().rbegin(); choice != search.path().rend(); ++choice)
    result.steps.push_back({choice->kind,
                            choice->device,
                            choice->stage,
                            choice->label,
                            to_time(choice->start),
                            to_time(choice->start + world.duration(choice->kind, choice->stage))});
  std::sort(result.steps.begin(),
            result.steps.end(),
            [](detail::exact_step const& a, detail::exact_step const& b) {
              return std::tie(a.start, a.end, a.device, a.stage, a.microbatch) <
                     std::tie(b.start, b.end, b.device, b.stage, b.microbatch);
            });
  return result;
}

} // namespace pipelining::inline v0_3
