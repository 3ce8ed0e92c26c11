// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The rules that every timetable keeps. Header for pipelining::verify.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/timetable/dependencies.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace pipelining::inline v0_1 {

//! @brief What can be wrong with a timetable, in the order in which `verify` looks for it.
enum class rule : std::uint8_t {
  none,           //!< nothing is wrong
  unknown_pass,   //!< a stage, microbatch or chunk that the pipeline does not have
  wrong_device,   //!< a pass on a device that does not hold its stage
  lone_half,      //!< an overlapped pass that is not the second half of a forward and backward pair
  repeated_pass,  //!< a pass that stands twice, or a fused backward beside one of its halves
  missing_pass,   //!< a unit without its forward, or without its whole backward, on some stage
  waits_for_ever, //!< a pass without a finite start and end: it waits, in a circle, for itself
  overlaps,       //!< a pass that starts before the pass before it on the same device has ended
  before_dependency, //!< a pass that starts before a pass it waits for has ended and its message
                     //!< has arrived
  over_memory        //!< a device that holds more activations than allowed
};

//! @brief The verdict of `verify`: the first broken rule, where it is broken, and the passes
//! involved.
struct report {
  rule broken = rule::none;
  int device = 0;
  int entry = 0; //!< position in the device's row
  pass what;     //!< the pass that breaks the rule
  pass other;    //!< the pass it is in conflict with, where there is one
  int held = 0;  //!< over_memory: the chunks of activations held

  [[nodiscard]] constexpr explicit operator bool() const noexcept { return broken == rule::none; }
};

//! @brief No limit on the activations of a device.
inline constexpr int unlimited = 0x7fffffff;

namespace detail {

//! The end of a pass that no device has; differs from `never`, which a pass that waits for ever
//! has.
inline constexpr double absent = -2;

//! What does not fit about one entry by itself.
[[nodiscard]] constexpr rule entry_rule(timetable_view table, int device, int entry) noexcept {
  pass const* const row = table.passes + table.offsets[device];
  pass const& what = row[entry];
  if (!contains(table.extents, what))
    return rule::unknown_pass;
  if (device_of(table.extents, what) != device)
    return rule::wrong_device;
  if (!what.overlapped)
    return rule::none;
  bool const pair =
    entry > 0 && !row[entry - 1].overlapped &&
    (row[entry - 1].kind == pass_kind::forward) != (what.kind == pass_kind::forward) &&
    row[entry - 1].kind != pass_kind::backward_weight && what.kind != pass_kind::backward_weight;
  return pair ? rule::none : rule::lone_half;
}

//! Prepares `ends`, [pass_indices]: no device has any pass.
constexpr void enter_none(shape const& extents, double* ends) noexcept {
  int const all = pass_indices(extents);
  int const per_stage = units(extents);
  for (int first = 0; first < all; first += per_stage)
    for (int i = first; i < first + per_stage; ++i)
      ends[i] = absent;
}

//! Enters the ends of the passes of one device into `ends`, [pass_indices], which starts out
//! `absent`.
constexpr report enter_device(timetable_view const& table, int device, double* ends) noexcept {
  pass_strides const strides = strides_of(table.extents);
  int const first = table.offsets[device];
  int const last = table.offsets[device + 1];
  int known_stage = -1; // one that this device holds for every microbatch
  bool const same_for_all = table.extents.where != placement::bidirectional;
  for (int i = first; i < last; ++i) {
    pass const& what = table.passes[i];
    if (what.stage != known_stage || what.overlapped ||
        what.microbatch >= table.extents.microbatches || what.chunk >= strides.chunks) {
      rule const broken = entry_rule(table, device, i - first);
      if (broken != rule::none)
        return {broken, device, i - first, what, {}};
      known_stage = same_for_all ? what.stage : -1;
    }
    double const end = table.ends[i];
    int const index = links_of(strides, what).index;
    if (ends[index] != absent)
      return {rule::repeated_pass, device, i - first, what, what};
    ends[index] = end;
    if (what.kind != pass_kind::backward)
      continue;
    // a fused backward is its own backward_weight
    if (ends[index + strides.row] != absent) {
      pass half = what;
      half.kind = pass_kind::backward_weight;
      return {rule::repeated_pass, device, i - first, what, half};
    }
    ends[index + strides.row] = end;
  }
  return {};
}

//! Finds a pass that no device has, once all devices have entered theirs.
constexpr report find_missing(shape const& extents, double const* ends) noexcept {
  // Nested, since compilers limit the iterations of one loop (g++: 262,144).
  int const all = pass_indices(extents);
  int const per_stage = units(extents);
  int missing = 0;
  for (int next = per_stage; missing < all; next += per_stage) {
    while (missing < next && ends[missing] != absent)
      ++missing;
    if (missing < next)
      break;
  }
  if (missing == all)
    return {};
  pass const what = pass_at(extents, missing);
  return {rule::missing_pass, device_of(extents, what), 0, what, {}};
}

//! Checks times, dependencies and memory of one device, once all devices have entered their passes.
constexpr report check_device(timetable_view const& table,
                              int device,
                              double const* ends,
                              int memory_limit) noexcept {
  pass_strides const strides = strides_of(table.extents);
  int held = 0;
  double free_from = 0;
  int const first = table.offsets[device];
  int const last = table.offsets[device + 1];
  for (int i = first; i < last; ++i) {
    int const entry = i - first;
    pass const& what = table.passes[i];
    double const start = table.starts[i];
    double const end = table.ends[i];
    // Asked this way round so that no comparison with a NaN passes for a good one.
    if (!(start >= 0 && end >= start && end <= std::numeric_limits<double>::max()))
      return {rule::waits_for_ever, device, entry, what, {}};
    if (what.overlapped ? start != table.starts[i - 1] || end != free_from : start < free_from)
      return {rule::overlaps, device, entry, what, entry > 0 ? table.passes[i - 1] : pass{}};
    pass_links const links = links_of(strides, what);
    if (links.input != no_pass) {
      double arrival = ends[links.input];
      bool const ended = arrival >= 0;
      if (table.latency != 0 &&
          device_of(table.extents, links.input_stage, what.microbatch) != device)
        arrival += table.latency;
      if (!ended || start < arrival)
        return {rule::before_dependency, device, entry, what, pass_at(table.extents, links.input)};
    }
    if (links.chunk != no_pass && !(ends[links.chunk] >= 0 && start >= ends[links.chunk]))
      return {rule::before_dependency, device, entry, what, pass_at(table.extents, links.chunk)};
    if (what.kind == pass_kind::forward) {
      // What the first half of a pair frees is held until both have ended.
      int const still = what.overlapped && frees_activation(table.passes[i - 1].kind) ? 1 : 0;
      if (++held + still > memory_limit)
        return {rule::over_memory, device, entry, what, {}, held + still};
    } else if (what.kind != pass_kind::backward_input) {
      --held;
    }
    free_from = end;
  }
  return {};
}

} // namespace detail

//! @brief Checks every rule of a timetable and returns the first that is broken.
//!
//! The rules: every unit has, on every stage, one forward and either one backward or both of its
//! halves, each on the device that holds the stage; passes of a device do not overlap, but for
//! composite pairs; a pass starts when all that it waits for has ended and, from another device,
//! arrived; no device holds more activations than allowed.
//!
//! @param memory_limit the most chunks of activations that a device may hold.
//! @complexity O(n) time and memory for n passes.
[[nodiscard]] constexpr report verify(timetable_view table, int memory_limit = unlimited) {
  double* const ends = new double[static_cast<std::size_t>(pass_indices(table.extents))];
  detail::enter_none(table.extents, ends);
  report result;
  int const devices = table.extents.devices;
  for (int device = 0; device < devices && result; ++device)
    result = detail::enter_device(table, device, ends);
  if (result)
    result = detail::find_missing(table.extents, ends);
  for (int device = 0; device < devices && result; ++device)
    result = detail::check_device(table, device, ends, memory_limit);
  delete[] ends;
  return result;
}

} // namespace pipelining::inline v0_1
