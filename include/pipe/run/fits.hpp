// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tells by types if a stage can do what a schedule asks, and which stages are not trained.
//! Header for pipelining::fits, pipelining::check_fits and pipelining::make_timetable_for.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/run/stage.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/timetable.hpp>

#include <initializer_list>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! True for a stage with the member that passes of these calls need, where a timetable has such.
template <class Stage>
[[nodiscard]] constexpr bool runs_these(timetable_view table,
                                        std::initializer_list<stage_call> calls) noexcept {
  for (int i = 0; i < table.size(); ++i)
    for (stage_call const call : calls)
      if ((*table.over.declared)[table.passes[i].kind].calls == call && !can_run<Stage>(call))
        return false;
  return true;
}

//! True for a stage that takes the chunks of a timetable.
template <class Stage>
[[nodiscard]] constexpr bool takes_chunks_of(timetable_view table) noexcept {
  return table.over.extents.chunks == 1 || takes_chunks<Stage>;
}

//! True for a stage that can run all passes of a timetable.
template <class Stage>
[[nodiscard]] constexpr bool runs_all(timetable_view table) noexcept {
  for (int i = 0; i < table.size(); ++i)
    if (!can_run<Stage>((*table.over.declared)[table.passes[i].kind].calls))
      return false;
  return takes_chunks_of<Stage>(table);
}

//! One sentence for what a stage lacks to run a timetable.
template <class Stage, auto const& Table>
struct fitting {
  using enum stage_call;
  static_assert(runs_these<Stage>(Table, {forward, recompute}),
                "fits: the schedule has forward passes; give the stage "
                "forward(pipelining::context const&, pipelining::input, pipelining::output)");
  static_assert(runs_these<Stage>(Table, {backward}),
                "fits: the schedule has backward passes in one piece; give the stage "
                "backward(context const&, input, output)");
  static_assert(
    runs_these<Stage>(Table, {backward_input, backward_weight}),
    "fits: the schedule splits the backward pass; give the stage "
    "backward_input(context const&, input, output) and backward_weight(context const&)");
  static_assert(runs_these<Stage>(Table, {perform}),
                "fits: the schedule has passes of a flow of its own; give the stage "
                "perform(pass_kind, context const&, input, output)");
  static_assert(
    takes_chunks_of<Stage>(Table),
    "fits: the schedule cuts sequences into chunks; let every pass of the stage do only "
    "the chunk of its context, and declare static constexpr bool takes_chunks = true");
  static constexpr bool good = runs_all<Stage>(Table); // else it lacks what sharded weights want
};

} // namespace detail

//! @brief True for a stage type with every member that the passes of a schedule call, and that
//! takes chunks where the schedule has any.
//!
//! @tparam Schedule a schedule type whose parameters are all in the type.
//! @tparam Devices, Microbatches a size that the schedule takes. The kinds of its passes count.
template <class Schedule, class Stage, int Devices = 4, int Microbatches = 12>
inline constexpr bool fits = detail::runs_all<Stage>(timetable<Schedule, Devices, Microbatches>);

//! @brief The same as a check: `static_assert(check_fits<VHalf, my_stage>)` is a compile error with
//! one sentence for each member that the stage lacks, as a runner says it when it starts.
template <class Schedule, class Stage, int Devices = 4, int Microbatches = 12>
inline constexpr bool check_fits =
  detail::fitting<Stage, timetable<Schedule, Devices, Microbatches>>::good;

namespace detail {

//! The numbers of the stages whose type says `frozen`.
//! @param stages as in visit_stage @param count of them
template <class Stages>
[[nodiscard]] std::vector<int> frozen_stages(Stages& stages, int count) {
  std::vector<int> found;
  for (int stage = 0; stage < count; ++stage)
    (void)visit_stage(stages, stage, [&]<class Stage>(Stage&) {
      if constexpr (requires { requires Stage::frozen; })
        found.push_back(stage);
    });
  return found;
}

} // namespace detail

//! @brief The timetable of a schedule for a model: the stages whose type says `frozen` are not
//! trained, as in `with_frozen_stages`.
//! @param model its stages, a vector, an array or a tuple
//! @throws std::invalid_argument as make_timetable does, and where all stages are frozen.
//! @complexity that of the schedule.
template <schedule Schedule, class Stages, cost_model Cost = uniform_cost>
[[nodiscard]] dynamic_timetable
make_timetable_for(Stages& model, Schedule const& plan, pipeline_size size, Cost const& cost = {}) {
  auto const count = static_cast<int>(detail::stage_count(model));
  return make_timetable(
    with_frozen_stages<Schedule>{plan, detail::frozen_stages(model, count)}, size, cost);
}

} // namespace pipelining::inline v0_3
