// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Plans that the compiler makes and proves. Header for pipelining::lower_static.

#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/static_lowering.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/proof.hpp>
#include <pipe/plan/prove/diagnosis.hpp>
#include <pipe/plan/prove/static_proof.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/timetable/static_timetable.hpp>

#include <cstdint>

namespace pipelining::inline v0_3 {

//! @brief Buffers of no bytes as a type: the default of `lower_static`. A type of sizes has a
//! member `value`.
struct unsized {
  static constexpr no_sizes value{}; //!< the sizes
};

//! @brief No limit on the bytes of an arena.
inline constexpr std::int64_t unlimited_bytes = 0x7fffffffffffffff;

//! @brief A plan whose programs, slots and waits are constants of the compiler. Naming an object of
//! this type proves it: a broken rule is a compile error that names the rule, the items and the
//! circle, and an arena over the limit one that names the class and the pass of its peak.
//!
//! @tparam Timed the constant of a timetable.
//! @tparam Policy which messages share a communicator.
//! @tparam Sizes a type whose member `value` has the size functions.
//! @tparam MemoryLimit the most bytes of the arena of a device.
template <class Timed, communication_policy Policy, class Sizes, std::int64_t MemoryLimit>
struct static_plan
    : private detail::plan_diagnosis<detail::static_lowering<Timed, Policy, Sizes>>,
      private detail::budget_diagnosis<detail::static_lowering<Timed, Policy, Sizes>, MemoryLimit> {
  using lowering = detail::static_lowering<Timed, Policy, Sizes>; //!< What the compiler made.

  static constexpr plan_view view = lowering::view;
  constexpr operator plan_view() const noexcept {
    return view;
  } // NOLINT(google-explicit-constructor)

  //! @brief The slots of a class on a device: the most that are in use at once.
  [[nodiscard]] static constexpr int slots(int device, slot_class of) noexcept {
    return view.layout(device, of).count;
  }
};

//! @brief Lowers a timetable of the compiler: `constexpr auto work = lower_static(table);`
template <communication_policy Policy = communicator_per_pair,
          class Sizes = unsized,
          std::int64_t MemoryLimit = unlimited_bytes,
          class Schedule,
          int Devices,
          int Microbatches,
          class Cost>
[[nodiscard]] constexpr auto
lower_static(static_timetable<Schedule, Devices, Microbatches, Cost> const&) noexcept {
  return static_plan<detail::timed<Schedule, Devices, Microbatches, Cost>,
                     Policy,
                     Sizes,
                     MemoryLimit>{};
}

//! @brief The verdict on a plan of the compiler, itself a constant made in slices, so that large
//! plans stay inside the default limits of compilers.
template <class Timed, class Policy, class Sizes, std::int64_t MemoryLimit>
[[nodiscard]] constexpr proof
prove(static_plan<Timed, Policy, Sizes, MemoryLimit> const&) noexcept {
  return detail::static_proof<detail::static_lowering<Timed, Policy, Sizes>>::value;
}

//! @brief A copy in memory of its own, for executors that keep one.
[[nodiscard]] inline plan to_plan(plan_view work) {
  plan result;
  int const devices = work.extents.devices;
  int const items = work.offsets[devices];
  result.extents = work.extents;
  result.policy = work.policy;
  result.key = work.key;
  result.duplex_groups = work.duplex_groups;
  result.evaluates = work.evaluates;
  result.tied_bytes = work.tied_bytes;
  result.totals_bytes = work.totals_bytes;
  result.other_messages = work.other_messages;
  result.validation = work.validation;
  result.items.assign(work.items, work.items + items);
  result.offsets.assign(work.offsets, work.offsets + devices + 1);
  int waits = 0;
  for (item const& step : result.items)
    waits = step.first_wait + step.wait_count > waits ? step.first_wait + step.wait_count : waits;
  result.waits.assign(work.waits, work.waits + waits);
  result.lanes.assign(work.lanes, work.lanes + devices);
  result.layouts.assign(work.layouts, work.layouts + devices * slot_classes);
  result.arena_bytes.assign(work.arena_bytes, work.arena_bytes + devices);
  result.host_bytes.assign(work.host_bytes, work.host_bytes + devices);
  result.tables = copy_tables({work.extents,
                               0,
                               nullptr,
                               nullptr,
                               nullptr,
                               nullptr,
                               work.declared,
                               work.holders,
                               work.first_units,
                               work.edges});
  return result;
}

} // namespace pipelining::inline v0_3
