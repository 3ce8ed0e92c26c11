// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables that the compiler makes and checks. Header for pipelining::timetable.

#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/diagnosis.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/static_order.hpp>
#include <pipe/timetable/static_simulation.hpp>
#include <pipe/timetable/timetable.hpp>

namespace pipelining::inline v0_1 {

//! @brief The unit cost of the papers as a type: the default of `timetable`. A cost type has a
//! member `value`.
struct unit_cost {
  static constexpr uniform_cost value{}; //!< every pass takes 1, messages nothing
};

namespace detail {

template <class Schedule, int Devices, int Microbatches, class Cost>
struct timed {
  using order = static_order<Schedule, Devices, Microbatches, Cost>;
  using places = static_places<order>;
  using arrays = static_arrays<order, Cost>;
  static constexpr timetable_view view{order::extents,
                                       Cost::value.latency(),
                                       arrays::order.values,
                                       arrays::starts.values,
                                       arrays::ends.values,
                                       arrays::order.offsets,
                                       order::over.declared,
                                       order::over.holders,
                                       order::over.first_units};

  //! The verdict, without a limit on memory.
  static constexpr report verdict = [] {
    if constexpr (places::value.first)
      return static_simulation<order, Cost>::verdict();
    else
      return places::value.first;
  }();
};

} // namespace detail

//! @brief A timetable whose order, times and verdict are constants of the compiler. Naming an
//! object of this type
//!        checks it: a broken rule is a compile error that names the rule and the pass.
//!
//! @tparam Schedule a schedule type whose parameters are all in the type.
//! @tparam Devices P >= 1. @tparam Microbatches M >= 1.
//! @tparam Cost a type whose member `value` is a cost model.
template <schedule Schedule, int Devices, int Microbatches, class Cost = unit_cost>
struct static_timetable
    : private detail::diagnosis<detail::timed<Schedule, Devices, Microbatches, Cost>::verdict,
                                Schedule,
                                Devices,
                                Microbatches> {
  //! What the compiler made, for `lower_static`.
  using timed = detail::timed<Schedule, Devices, Microbatches, Cost>;

  static constexpr timetable_view view = timed::view;
  constexpr operator timetable_view() const noexcept {
    return view;
  } // NOLINT(google-explicit-constructor)
};

//! @brief The timetable of a schedule type: `constexpr auto table = timetable<Seq1F1B<4>, 8, 32>;`
template <schedule Schedule, int Devices, int Microbatches, class Cost = unit_cost>
inline constexpr static_timetable<Schedule, Devices, Microbatches, Cost> timetable{};

//! @brief The verdict on a timetable of the compiler, itself a constant made in slices, so that
//! large timetables stay
//!        inside the default limits of compilers.
//! @tparam MemoryLimit the most chunks of activations that a device may hold.
template <int MemoryLimit = unlimited, class Schedule, int Devices, int Microbatches, class Cost>
[[nodiscard]] constexpr report
verify(static_timetable<Schedule, Devices, Microbatches, Cost> const&) {
  using timed = detail::timed<Schedule, Devices, Microbatches, Cost>;
  if constexpr (MemoryLimit != unlimited && timed::verdict) {
    static_assert(timed::order::over.declared->engines == 1,
                  "verify: where copies change what is held, ask verify(table, limit)");
    return detail::static_memory<typename timed::order, MemoryLimit>::value;
  } else
    return timed::verdict;
}

} // namespace pipelining::inline v0_1
