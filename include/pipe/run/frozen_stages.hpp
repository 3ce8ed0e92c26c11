// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables for models that say which of their stages are not trained. Header for
//! pipelining::make_timetable_for.

#include <pipe/run/stages.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/timetable.hpp>

#include <vector>

namespace pipelining::inline v0_3 {

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
