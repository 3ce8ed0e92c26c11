// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables that the compiler makes and verifies. Header for pipelining::timetable.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/entered_rows.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulation.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace pipelining::inline v0_3 {

namespace detail {

//! Orders the passes of every row, in the program and in the compiler.
//! @param offsets [rows + 1], to write
//! @param append takes the passes of a row and their number, row after row
//! @return the first row with more passes than it can have
template <class Schedule, cost_model Cost, class Append>
[[nodiscard]] constexpr report order_rows(
  Schedule const& plan, pipeline_view const& over, Cost const& cost, int* offsets, Append append) {
  constexpr bool closed = orders_device<Schedule>; // one row after the other
  int const capacity = row_capacity(over);
  int const rows = over.row_count();
  int const kept = closed ? 1 : rows;
  owned<pass> const storage(std::int64_t{kept} * (capacity + 1));
  owned<row_writer> const writers(kept);
  for (int row = 0; row < kept; ++row)
    writers[row] = {storage + static_cast<std::ptrdiff_t>(row) * (capacity + 1), capacity};
  if constexpr (!closed)
    plan.generate(over.extents, cost, writers);
  report result;
  offsets[0] = 0;
  for (int row = 0; row < rows; ++row) {
    row_writer made = writers[closed ? 0 : row];
    if constexpr (closed)
      if (row < over.extents.devices) // further engines have no passes
        plan.order(over.extents, row, made);
    append(made.passes, made.count);
    offsets[row + 1] = offsets[row] + made.count;
    if (result && made.count > capacity)
      result = {report::rule::too_many_passes,
                row % over.extents.devices,
                capacity,
                made.passes[capacity],
                {}};
  }
  return result;
}

// These types exist for their names: compilers print the arguments of the template that holds a
// failed static_assert.
template <int>
struct devices;
template <int>
struct microbatches;
template <int>
struct device;
template <int>
struct entry;
template <pass_kind>
struct runs;
template <int>
struct stage;
template <int>
struct microbatch;
template <int>
struct chunk;
template <class...>
struct conflicts_with;

template <report::rule Broken,
          class Schedule,
          class Devices,
          class Microbatches,
          class Device,
          class Entry,
          class... Pass>
struct timetable_breaks {
  static_assert(Broken != report::rule::too_many_passes,
                "timetable: a device has more passes than its stages can have: each unit has one "
                "forward and one backward, or one forward and the two halves");
  static_assert(
    Broken != report::rule::unknown_pass,
    "timetable: a pass names a stage, microbatch or chunk that the pipeline does not have");
  static_assert(Broken != report::rule::wrong_device,
                "timetable: a pass is on a device that does not hold its stage");
  static_assert(Broken != report::rule::lone_half,
                "timetable: an overlapped pass does not follow the other half of its pair");
  static_assert(Broken != report::rule::repeated_pass, "timetable: a pass stands twice");
  static_assert(Broken != report::rule::missing_pass, "timetable: a pass is missing");
  static_assert(Broken != report::rule::wrong_kinds,
                "timetable: the kinds of passes of a unit do not go together: one reads what none "
                "makes, or none frees what one makes");
  static_assert(Broken != report::rule::not_there,
                "timetable: a pass stands where what it needs of its stage is not there: weights "
                "that have been gathered, or memory for its gradients");
  static_assert(Broken != report::rule::waits_for_ever,
                "timetable: a pass waits for ever: the order of passes is circular");
  static_assert(Broken != report::rule::overlaps,
                "timetable: a pass starts before the pass before it on the same device has ended");
  static_assert(Broken != report::rule::before_dependency,
                "timetable: a pass starts before a pass that it depends on has ended and arrived");
  static_assert(Broken != report::rule::over_memory,
                "timetable: a device holds more activations than the limit allows");
};

// A class, not an alias: g++ 12 fails on alias templates over class-type arguments.
template <report Verdict, class Schedule, int Devices, int Microbatches>
struct diagnosis : timetable_breaks<Verdict.broken,
                                    Schedule,
                                    devices<Devices>,
                                    microbatches<Microbatches>,
                                    device<Verdict.device>,
                                    entry<Verdict.entry>,
                                    runs<Verdict.what.kind>,
                                    stage<Verdict.what.stage>,
                                    microbatch<Verdict.what.microbatch>,
                                    chunk<Verdict.what.chunk>,
                                    conflicts_with<runs<Verdict.other.kind>,
                                                   stage<Verdict.other.stage>,
                                                   microbatch<Verdict.other.microbatch>,
                                                   chunk<Verdict.other.chunk>>> {};

//! The unit cost of the papers as a type: the default of `timetable`. A cost type has a
//! member `value`.
struct unit_cost {
  static constexpr uniform_cost value{}; //!< every pass takes 1, messages nothing
};

//! A schedule whose type says all. A constant, since nvcc 13 takes no temporary in a concept.
template <class Schedule>
inline constexpr Schedule of_type{};

//! The extents of a schedule for a size that it takes. @throws as `arrange` and `check_extents` do.
template <class Schedule>
[[nodiscard]] constexpr shape arranged(Schedule const& plan, int devices, int microbatches) {
  check_extents({.devices = devices, .microbatches = microbatches});
  shape const extents = plan.arrange(devices, microbatches);
  check_extents(extents, flow_of<Schedule>().rows);
  return extents;
}

//! True for a schedule that gives edges, or adapts one that does.
template <class Schedule>
inline constexpr bool has_edges = joins_stages<Schedule>;
template <adapts_schedule Schedule>
inline constexpr bool has_edges<Schedule> =
  joins_stages<Schedule> || has_edges<std::remove_cvref_t<decltype(Schedule::of)>>;

//! Makes a constant. Compilers print the arguments of calls whose evaluation they give up.
template <class Make>
[[nodiscard]] constexpr auto
evaluate(Make make,
         [[maybe_unused]] char const* advice =
           "timetable: too large for one constant evaluation? Make it in the program with "
           "make_timetable, or raise the limit: -fconstexpr-ops-limit of g++, -fconstexpr-steps of "
           "clang") {
  return make();
}

//! Order, times and verdict of a timetable, made by the functions that the program runs.
template <class Schedule, int Devices, int Microbatches, class Cost>
struct timed {
  static_assert(
    !has_edges<Schedule>,
    "timetable: the compiler makes timetables of stages in a chain; make those of a stage "
    "graph with make_timetable");
  static constexpr shape extents = arranged(of_type<Schedule>, Devices, Microbatches);
  static constexpr int holder_total = holder_count<Schedule>(extents);
  static constexpr int unit_total = first_unit_count<Schedule>(extents);

  struct own_tables {
    array_of<std::uint16_t, holder_total + 1> holders;
    array_of<int, unit_total + 1> first_units;
  };
  static constexpr own_tables tables = [] {
    own_tables result{};
    write_tables(of_type<Schedule>, extents, result.holders, result.first_units);
    return result;
  }();
  static constexpr pipeline_view over{extents,
                                      std::addressof(flow_of<Schedule>()),
                                      holder_total > 0 ? tables.holders : nullptr,
                                      unit_total > 0 ? tables.first_units : nullptr};
  static constexpr int rows = over.row_count();

  //! The order, in as much room as the rows could need. Not part of a program that uses the table.
  struct ordered {
    array_of<int, rows + 1> offsets;
    array_of<pass, rows*(row_capacity(over) + 1)> passes;
    report verdict;
  };
  static constexpr ordered order = evaluate([] {
    ordered result{};
    check_cost(over, Cost::value);
    pass* end = result.passes;
    auto const append = [&end](pass const* row, int count) { end = std::copy_n(row, count, end); };
    result.verdict = order_rows(of_type<Schedule>, over, Cost::value, result.offsets, append);
    return result;
  });
  static constexpr int total = order.offsets[rows];

  static constexpr double const* links = checked_links(Cost::value, Devices).data();
  struct arrays {
    array_of<int, rows + 1> offsets;
    array_of<pass, total> passes;
    array_of<double, total> starts;
    array_of<double, total> ends;
    report verdict; //!< without a limit on memory

    [[nodiscard]] constexpr timetable_view view() const noexcept {
      return {.over = over,
              .latency = Cost::value.latency(),
              .passes = passes,
              .starts = starts,
              .ends = ends,
              .offsets = offsets,
              .groups = groups_of(Cost::value),
              .links = links};
    }
  };
  static constexpr arrays value = evaluate([] {
    arrays result{};
    for (int row = 0; row <= rows; ++row)
      result.offsets[row] = order.offsets[row];
    for (int entry = 0; entry < total; ++entry)
      result.passes[entry] = order.passes[entry];
    entered_rows const entered(over, result.passes, result.offsets);
    if (entered.found.first) // else a pass may name what the pipeline does not have
      run(entered, result.view(), result.starts, result.ends, Cost::value);
    result.verdict =
      order.verdict ? verify_entered(result.view(), entered, unlimited) : order.verdict;
    return result;
  });
  static constexpr timetable_view view = value.view();
};

//! Whether a schedule takes this size, and the pipeline is one that passes can number.
template <class Schedule, int Devices, int Microbatches>
concept takes_size = !schedule<Schedule> || requires {
  typename std::integral_constant<
    int,
    (static_cast<void>(arranged(of_type<Schedule>, Devices, Microbatches)), 0)>;
};

//! A timetable without passes, after which no other error follows.
struct no_timetable {
  static constexpr report verdict{};
  static constexpr timetable_view view{.over = {.extents = {.devices = 0}}};
  constexpr operator timetable_view() const noexcept { return view; }
};

//! A timetable whose order, times and verdict are constants of the compiler. Naming an
//! object of this type
//!        checks it: a broken rule is a compile error that names the rule and the pass. A size that
//!        the schedule refuses is an error that shows where it says why.
//!
//! @tparam Schedule a schedule type whose parameters are all in the type.
//! @tparam Devices P >= 1. @tparam Microbatches M >= 1.
//! @tparam Cost a type whose member `value` is a cost model.
template <class Schedule, int Devices, int Microbatches, class Cost = unit_cost>
struct static_timetable
    : private diagnosis<timed<Schedule, Devices, Microbatches, Cost>::value.verdict,
                        Schedule,
                        Devices,
                        Microbatches> {
  //! The timetable that the compiler made.
  static constexpr report verdict = timed<Schedule, Devices, Microbatches, Cost>::value.verdict;
  static constexpr timetable_view view = timed<Schedule, Devices, Microbatches, Cost>::view;
  // NOLINTNEXTLINE(google-explicit-constructor): functions take views
  constexpr operator timetable_view() const noexcept { return view; }
};

// Of a size that its schedule refuses: reports that one error and suppresses the rest.
template <class Schedule, int Devices, int Microbatches, class Cost>
requires(!takes_size<Schedule,
                     Devices,
                     Microbatches>) struct static_timetable<Schedule, Devices, Microbatches, Cost>
    : no_timetable {
  static_assert(
    takes_size<Schedule, Devices, Microbatches>,
    "timetable: the schedule does not take this number of devices and microbatches; the "
    "throw in the next error says why");
  static_assert((static_cast<void>(arranged(of_type<Schedule>, Devices, Microbatches)), true));
};
template <class Schedule, int Devices, int Microbatches, class Cost>
requires(!schedule<Schedule>) struct static_timetable<Schedule, Devices, Microbatches, Cost>
    : schedule_requirements<Schedule>, no_timetable {
};

} // namespace detail

//! @brief The timetable of a schedule type: `constexpr auto table = timetable<Seq1F1B<4>, 8, 32>;`
template <class Schedule, int Devices, int Microbatches, class Cost = detail::unit_cost>
inline constexpr detail::static_timetable<Schedule, Devices, Microbatches, Cost> timetable{};

//! @brief The verdict on a timetable of the compiler, itself a constant.
//! @tparam MemoryLimit the most chunks of activations that a device may hold.
template <int MemoryLimit = detail::unlimited,
          class Schedule,
          int Devices,
          int Microbatches,
          class Cost>
[[nodiscard]] constexpr report
verify(detail::static_timetable<Schedule, Devices, Microbatches, Cost> const& table) {
  return table.verdict ? detail::check_memory(table.view, MemoryLimit) : table.verdict;
}

} // namespace pipelining::inline v0_3
