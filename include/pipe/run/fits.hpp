// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Tells by types if a stage can do what a schedule asks. Header for pipelining::fits.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/run/stage.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/timetable.hpp>

namespace pipelining::inline v0_3 {

namespace detail {

//! True for a stage with the members that the passes of a timetable call.
template <class Stage>
[[nodiscard]] constexpr bool runs_all(timetable_view table) noexcept {
  for (int i = 0; i < table.size(); ++i)
    if (!can_run<Stage>((*table.over.declared)[table.passes[i].kind].calls))
      return false;
  return true;
}

} // namespace detail

//! @brief True for a stage type with every member that the passes of a schedule call:
//! `static_assert(fits<VHalf, my_stage>)` says in the compiler what a runner says when it starts.
//!
//! @tparam Schedule a schedule type whose parameters are all in the type.
//! @tparam Devices, Microbatches a size that the schedule takes. The kinds of its passes count.
template <class Schedule, class Stage, int Devices = 4, int Microbatches = 12>
inline constexpr bool fits = detail::runs_all<Stage>(timetable<Schedule, Devices, Microbatches>);

} // namespace pipelining::inline v0_3
