// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Timetables that the compiler makes and checks. Header for pipelining::timetable.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/diagnosis.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <utility>

namespace pipelining::inline v0_1 {

//! @brief The unit cost of the papers as a type: the default of `timetable`. A cost type has a
//! member `value`.
struct unit_cost {
  static constexpr uniform_cost value{};
};

namespace detail {

//! Passes that one constant evaluation works through. Compilers limit the steps of one evaluation
//! (clang: 1,048,576), not their sum, so everything below goes in slices of about this many passes.
//! The simulation takes some 85 steps per pass, and every slice copies the state of the one before:
//! as many as leave a third of the steps spare.
inline constexpr int slice = 8192;

//! What `Work` has made after `Steps` steps, each step a constant evaluation of its own.
template <class Work, int Steps>
inline constexpr typename Work::state after = Work::go_on(after<Work, Steps - 1>, Steps - 1);
template <class Work>
inline constexpr typename Work::state after<Work, 0> = Work::start();

//! The order of passes, made by the compiler: one constant per device for closed forms.
template <class Schedule, int Devices, int Microbatches, class Cost>
struct static_order {
  static constexpr shape extents = [] {
    check_extents({.devices = Devices, .microbatches = Microbatches});
    shape const arranged = Schedule{}.arrange(Devices, Microbatches);
    check_extents(arranged);
    return arranged;
  }();
  static constexpr int capacity = row_capacity(extents);

  struct row {
    pass passes[capacity];
    int count;
  };
  template <int Device>
  static constexpr row closed_form = [] {
    row result{};
    row_writer out{result.passes, capacity};
    Schedule{}.order(extents, Device, out);
    result.count = out.count;
    return result;
  }();

  struct row_list {
    row of[Devices];
  };
  [[nodiscard]] static constexpr row_list generate() {
    row_list result{};
    row_writer writers[Devices]{};
    for (int device = 0; device < Devices; ++device)
      writers[device] = {result.of[device].passes, capacity};
    Schedule{}.generate(extents, Cost::value, writers);
    for (int device = 0; device < Devices; ++device)
      result.of[device].count = writers[device].count;
    return result;
  }
  template <class Order>
  static constexpr row_list generated = Order::generate();

  template <int Device>
  static constexpr row sliced = [] {
    using work = typename Schedule::template slices<Devices, Microbatches, Cost>;
    row result{};
    row_writer out{result.passes, capacity};
    work::write_row(after<work, work::count>, Device, out);
    result.count = out.count;
    return result;
  }();

  struct row_pointers {
    row const* of[Devices];
  };
  template <int... Device>
  [[nodiscard]] static constexpr row_pointers collect(std::integer_sequence<int, Device...>) {
    if constexpr (closed_form_schedule<Schedule>)
      return {{&closed_form<Device>...}};
    else if constexpr (sliced_schedule<Schedule, Devices, Microbatches, Cost>)
      return {{&sliced<Device>...}};
    else
      return {{&generated<static_order>.of[Device]...}};
  }
  static constexpr row_pointers rows = collect(std::make_integer_sequence<int, Devices>{});
  static constexpr int total = [] {
    int sum = 0;
    for (int device = 0; device < Devices; ++device)
      sum += rows.of[device]->count;
    return sum;
  }();

  struct flat {
    pass passes[total];
    int offsets[Devices + 1];
  };
  static constexpr flat value = [] {
    flat result{};
    int at = 0;
    for (int device = 0; device < Devices; ++device) {
      int const count = rows.of[device]->count;
      for (int entry = 0; entry < count; ++entry)
        result.passes[at + entry] = rows.of[device]->passes[entry];
      at += count;
      result.offsets[device + 1] = at;
    }
    return result;
  }();
};

//! The simulation of that order, a slice of passes per constant.
template <class Order, class Cost>
struct static_simulation {
  static constexpr int devices = Order::extents.devices;
  static constexpr int slices = Order::total / slice + 1;

  struct state {
    double starts[Order::total];
    double ends[Order::total];
    double finished[pass_indices(Order::extents)];
    int next[devices];
    double free_from[devices];
    int runnable[devices];
    unsigned char queued[devices];
    int runnable_count;
  };

  [[nodiscard]] static constexpr simulation arrays(state& own) {
    return {Order::extents,
            Order::value.passes,
            Order::value.offsets,
            own.starts,
            own.ends,
            own.finished,
            own.next,
            own.free_from,
            own.runnable,
            own.queued,
            own.runnable_count};
  }
  [[nodiscard]] static constexpr state start() {
    state own{};
    simulation work = arrays(own);
    begin(work);
    own.runnable_count = work.runnable_count;
    return own;
  }
  [[nodiscard]] static constexpr state go_on(state own, int) {
    simulation work = arrays(own);
    if (advance(work, Cost::value, slice) < slice)
      give_up(work);
    own.runnable_count = work.runnable_count;
    return own;
  }
};

//! The ends of all passes, entered some devices per constant.
template <class Timed>
struct static_ends {
  static constexpr int devices = Timed::view.extents.devices;
  static constexpr int group = slice * devices / Timed::view.size() + 1; // devices per constant
  static constexpr int groups = (devices + group - 1) / group;

  struct state {
    double ends[pass_indices(Timed::view.extents)];
    report verdict;
  };
  [[nodiscard]] static constexpr state start() {
    state own{};
    enter_none(Timed::view.extents, own.ends);
    return own;
  }
  [[nodiscard]] static constexpr state go_on(state own, int group_index) {
    for (int device = group_index * group; device < devices && device < (group_index + 1) * group;
         ++device)
      if (own.verdict)
        own.verdict = enter_device(Timed::view, device, own.ends);
    return own;
  }
};

//! The verdict on a timetable, some devices per constant.
template <class Timed, int MemoryLimit>
struct static_verification {
  using entered = static_ends<Timed>;
  static constexpr int devices = entered::devices;
  static constexpr int group = entered::group;
  static constexpr int groups = entered::groups;
  static constexpr report missing =
    after<entered, groups>.verdict ? find_missing(Timed::view.extents, after<entered, groups>.ends)
                                   : after<entered, groups>.verdict;

  [[nodiscard]] static constexpr report check(int group_index) {
    report verdict;
    for (int device = group_index * group; device < devices && device < (group_index + 1) * group;
         ++device)
      if (verdict)
        verdict = check_device(Timed::view, device, after<entered, groups>.ends, MemoryLimit);
    return verdict;
  }
  template <int Group>
  static constexpr report checked = check(Group);

  struct report_list {
    report of[groups];
  };
  template <int... Group>
  [[nodiscard]] static constexpr report first_of(std::integer_sequence<int, Group...>) {
    if (!missing)
      return missing;
    report_list const all{{checked<Group>...}};
    for (report const& verdict : all.of)
      if (!verdict)
        return verdict;
    return {};
  }
  static constexpr report value = first_of(std::make_integer_sequence<int, groups>{});
};

template <class Schedule, int Devices, int Microbatches, class Cost>
struct timed {
  using order = static_order<Schedule, Devices, Microbatches, Cost>;
  using simulation_of = static_simulation<order, Cost>;
  static constexpr timetable_view view{order::extents,
                                       Cost::value.latency(),
                                       order::value.passes,
                                       after<simulation_of, simulation_of::slices>.starts,
                                       after<simulation_of, simulation_of::slices>.ends,
                                       order::value.offsets};
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
    : private detail::diagnosis<
        detail::static_verification<detail::timed<Schedule, Devices, Microbatches, Cost>,
                                    unlimited>::value,
        Schedule,
        Devices,
        Microbatches> {
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
  return detail::static_verification<detail::timed<Schedule, Devices, Microbatches, Cost>,
                                     MemoryLimit>::value;
}

} // namespace pipelining::inline v0_1
