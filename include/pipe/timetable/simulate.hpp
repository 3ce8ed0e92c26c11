// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The event simulation that gives passes their times. Header for pipelining::simulate.

#include <pipe/core/pass.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/dependencies.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief The state of a simulation, on arrays of the caller. It can stop after any pass and go on
//! later, which lets
//!        the compiler take large timetables in several constant evaluations.
struct simulation {
  shape extents;
  pass const* passes;    //!< [n], device after device
  int const* offsets;    //!< [P + 1]
  double* starts;        //!< [n], of the passes that have run
  double* ends;          //!< [n], of the passes that have run
  double* finished;      //!< [pass_indices(extents)], `never` until the pass has ended
  int* next;             //!< [P], the entry that each device comes to next
  double* free_from;     //!< [P], when each device has ended its last pass
  int* runnable;         //!< [P], a stack of devices whose next pass may be able to start
  unsigned char* queued; //!< [P], 1 for a device on that stack
  int runnable_count = 0;
};

//! @brief Prepares the arrays of a simulation: nothing has run, every device may be able to start.
constexpr void begin(simulation& state) noexcept {
  // Nested, since compilers limit the iterations of one loop (g++: 262,144).
  int const per_stage = units(state.extents);
  int const all = pass_indices(state.extents);
  for (int first = 0; first < all; first += per_stage)
    for (int i = first; i < first + per_stage; ++i)
      state.finished[i] = never;
  state.runnable_count = 0;
  for (int device = state.extents.devices - 1; device >= 0; --device) {
    state.next[device] = state.offsets[device];
    state.free_from[device] = 0;
    state.runnable[state.runnable_count] = device;
    state.queued[device] = 1;
    ++state.runnable_count;
  }
}

namespace detail {

//! The earliest start of a pass for its dependencies alone, or `never` when one of them has not
//! ended.
[[nodiscard]] constexpr double ready_time(
  simulation const& state, pass_links const& links, double latency, int device, int microbatch) {
  double ready = 0;
  if (links.input != no_pass) {
    ready = state.finished[links.input];
    if (ready < 0)
      return never;
    if (latency != 0 && device_of(state.extents, links.input_stage, microbatch) != device)
      ready += latency;
  }
  if (links.chunk != no_pass) {
    double const time = state.finished[links.chunk];
    if (time < 0)
      return never;
    if (time > ready)
      ready = time;
  }
  return ready;
}

//! Puts a device on the stack of those whose next pass may be able to start.
constexpr void wake(simulation& state, int device) noexcept {
  if (state.queued[device] != 0)
    return;
  state.runnable[state.runnable_count] = device;
  state.queued[device] = 1;
  ++state.runnable_count;
}

//! Records a pass that has run and puts the device that may have waited for it on the stack.
constexpr void finish(
  simulation& state, pass_links const& links, int device, int entry, double start, double end) {
  state.starts[entry] = start;
  state.ends[entry] = end;
  state.finished[links.index] = end;
  pass const& what = state.passes[entry];
  if (links.user_stage == what.stage)
    return;
  int const user = device_of(state.extents, links.user_stage, what.microbatch);
  if (user != device)
    wake(state, user);
}

//! Runs a device until a pass has to wait or about `budget` passes have run. Returns their number.
template <cost_model Cost>
constexpr int run_device(
  simulation& state, pass_strides const& strides, Cost const& cost, int device, int budget) {
  double const latency = cost.latency();
  int const first = state.next[device];
  int const last = state.offsets[device + 1];
  int const stop = budget < last - first ? first + budget : last;
  double free_from = state.free_from[device];
  int entry = first;
  while (entry < stop) {
    pass const& what = state.passes[entry];
    pass_links const links = links_of(strides, what);
    double start = ready_time(state, links, latency, device, what.microbatch);
    if (start < 0)
      break;
    if (free_from > start)
      start = free_from;
    if (entry + 1 == last || !state.passes[entry + 1].overlapped) {
      free_from = start + cost.duration(what);
      finish(state, links, device, entry, start, free_from);
      ++entry;
      continue;
    }
    pass const& half = state.passes[entry + 1];
    pass_links const half_links = links_of(strides, half);
    double const ready = ready_time(state, half_links, latency, device, half.microbatch);
    if (ready < 0)
      break;
    if (ready > start)
      start = ready;
    free_from = start + pair_duration(cost, what, half);
    finish(state, links, device, entry, start, free_from);
    finish(state, half_links, device, entry + 1, start, free_from);
    entry += 2;
  }
  state.next[device] = entry;
  state.free_from[device] = free_from;
  if (entry >= stop && entry < last)
    wake(state, device);
  return entry - first;
}

} // namespace detail

//! @brief Runs passes as early as order, dependencies and messages allow.
//! @param budget about how many passes to run at most.
//! @return the number of passes that ran; less than `budget` when nothing more can run.
//! @complexity O(1) per pass.
template <cost_model Cost>
constexpr int advance(simulation& state, Cost const& cost, int budget) {
  detail::pass_strides const strides = detail::strides_of(state.extents);
  int ran = 0;
  while (state.runnable_count > 0 && ran < budget) {
    --state.runnable_count;
    int const device = state.runnable[state.runnable_count];
    state.queued[device] = 0;
    ran += detail::run_device(state, strides, cost, device, budget - ran);
  }
  return ran;
}

//! @brief Gives the passes that could not run, which wait in a circle, `never` as start and end.
constexpr void give_up(simulation& state) noexcept {
  for (int device = 0; device < state.extents.devices; ++device)
    for (int i = state.next[device]; i < state.offsets[device + 1]; ++i)
      state.starts[i] = state.ends[i] = never;
}

//! @brief Times an order: every pass starts as early as its device, its dependencies and the
//! messages allow.
//!
//! Passes of a circular order never start; they keep `never` as start and end, and `verify` names
//! the first of them.
//!
//! @param orders the passes of every device; every stage, microbatch and chunk must exist.
//! @complexity O(n) time and memory for n passes.
//! @source own derivation: longest paths of the dependency graph with the order of each device
//! added.
template <cost_model Cost>
[[nodiscard]] dynamic_timetable simulate(device_orders orders, Cost const& cost) {
  auto const devices = static_cast<std::size_t>(orders.extents.devices);
  dynamic_timetable result{orders.extents,
                           cost.latency(),
                           std::move(orders.passes),
                           {},
                           {},
                           std::move(orders.offsets),
                           std::move(orders.custom_devices)};
  if (result.extents.where == placement::custom)
    result.extents.custom_devices = result.custom_devices.data();
  result.starts.resize(result.passes.size());
  result.ends.resize(result.passes.size());
  std::vector<double> finished(static_cast<std::size_t>(pass_indices(result.extents)));
  std::vector<int> next(devices);
  std::vector<double> free_from(devices);
  std::vector<int> runnable(devices);
  std::vector<unsigned char> queued(devices);
  simulation state{result.extents,
                   result.passes.data(),
                   result.offsets.data(),
                   result.starts.data(),
                   result.ends.data(),
                   finished.data(),
                   next.data(),
                   free_from.data(),
                   runnable.data(),
                   queued.data()};
  begin(state);
  advance(state, cost, static_cast<int>(result.passes.size()) + 1);
  give_up(state);
  result.extents.custom_devices = nullptr;
  return result;
}

} // namespace pipelining::inline v0_1
