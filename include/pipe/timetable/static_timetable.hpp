// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables that the compiler makes and checks. Header for pipelining::timetable.

#include <pipe/schedule/requirements.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/diagnosis.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/static_order.hpp>
#include <pipe/timetable/static_simulation.hpp>
#include <pipe/timetable/timetable_view.hpp>

#include <type_traits>

namespace pipelining::inline v0_3 {

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
  static constexpr double const* link_times = static_simulation<order, Cost>::link_times;
  static constexpr timetable_view view{order::extents,
                                       Cost::value.latency(),
                                       arrays::order.passes,
                                       arrays::times.starts,
                                       arrays::times.ends,
                                       arrays::order.offsets,
                                       order::over.declared,
                                       order::over.holders,
                                       order::over.first_units,
                                       nullptr,
                                       {},
                                       link_times};

  //! The verdict, without a limit on memory.
  static constexpr report verdict = [] {
    if constexpr (places::value.first)
      return static_simulation<order, Cost>::verdict();
    else
      return places::value.first;
  }();
};

//! Whether a schedule takes this size, and the pipeline is one that passes can number.
template <class Schedule, int Devices, int Microbatches>
concept takes_size = !schedule<Schedule> || requires {
  typename std::
    integral_constant<int, (static_cast<void>(arranged<Schedule>(Devices, Microbatches)), 0)>;
};

//! A timetable without passes, behind which no other error follows.
struct no_timetable {
  static constexpr timetable_view view{};
  constexpr operator timetable_view() const noexcept { return view; }
};

//! What stands for the timetable of a size that its schedule refuses: what is wrong and where it is
//! said why, and no error behind it.
template <class Schedule, int Devices, int Microbatches>
struct refused_size : no_timetable {
  static_assert(
    takes_size<Schedule, Devices, Microbatches>,
    "timetable: the schedule does not take this number of devices and microbatches; the "
    "throw in the next error says why");
  static_assert((static_cast<void>(arranged<Schedule>(Devices, Microbatches)), true));
};

} // namespace detail

//! @brief A timetable whose order, times and verdict are constants of the compiler. Naming an
//! object of this type
//!        checks it: a broken rule is a compile error that names the rule and the pass. A size that
//!        the schedule refuses is an error that shows where it says why.
//!
//! @tparam Schedule a schedule type whose parameters are all in the type.
//! @tparam Devices P >= 1. @tparam Microbatches M >= 1.
//! @tparam Cost a type whose member `value` is a cost model.
template <class Schedule, int Devices, int Microbatches, class Cost = unit_cost>
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

template <class Schedule, int Devices, int Microbatches, class Cost>
requires(
  !detail::takes_size<Schedule,
                      Devices,
                      Microbatches>) struct static_timetable<Schedule, Devices, Microbatches, Cost>
    : detail::refused_size<Schedule, Devices, Microbatches> {
};
template <class Schedule, int Devices, int Microbatches, class Cost>
requires(!schedule<Schedule>) struct static_timetable<Schedule, Devices, Microbatches, Cost>
    : detail::schedule_requirements<Schedule>, detail::no_timetable {
};

//! @brief The timetable of a schedule type: `constexpr auto table = timetable<Seq1F1B<4>, 8, 32>;`
template <class Schedule, int Devices, int Microbatches, class Cost = unit_cost>
inline constexpr static_timetable<Schedule, Devices, Microbatches, Cost> timetable{};

namespace detail {

//! The verdict on the memory that the order of a device takes.
template <class Order, int MemoryLimit, int Device>
inline constexpr report
  over_limit = check_memory(effect_on(*Order::over.declared, slot_class::activation),
                            Order::rows.of[Device]->passes,
                            static_cast<entry_number>(Order::rows.of[Device]->count),
                            Device,
                            MemoryLimit);

template <int MemoryLimit, class Timed>
[[nodiscard]] constexpr report verdict_on() {
  if constexpr (MemoryLimit != unlimited && Timed::verdict) {
    static_assert(Timed::order::over.declared->engines == 1,
                  "verify: where copies change what is held, ask verify(table, limit)");
    return first_failing(each<Timed::order::extents.devices>(
      [](auto device) { return over_limit<typename Timed::order, MemoryLimit, device.value>; }));
  } else {
    return Timed::verdict;
  }
}

} // namespace detail

//! @brief The verdict on a timetable of the compiler, itself a constant made in slices, so that
//! large timetables stay
//!        inside the default limits of compilers.
//! @tparam MemoryLimit the most chunks of activations that a device may hold.
template <int MemoryLimit = unlimited, class Schedule, int Devices, int Microbatches, class Cost>
[[nodiscard]] constexpr report
verify(static_timetable<Schedule, Devices, Microbatches, Cost> const&) {
  if constexpr (!schedule<Schedule> || !detail::takes_size<Schedule, Devices, Microbatches>)
    return {};
  else
    return detail::verdict_on<MemoryLimit, detail::timed<Schedule, Devices, Microbatches, Cost>>();
}

} // namespace pipelining::inline v0_3
