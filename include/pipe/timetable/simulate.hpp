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
  double* starts;        //!< [n]
  double* ends;          //!< [n]
  double* finished;      //!< [pass_indices(extents)], `never` until the pass has ended
  int* next;             //!< [P], the entry that each device comes to next
  double* free_from;     //!< [P], when each device has ended its last pass
  int* runnable;         //!< [P], a stack of devices whose next pass may be able to start
  unsigned char* queued; //!< [P], 1 for a device on that stack
  int runnable_count = 0;
};

//! @brief Prepares the arrays of a simulation: nothing has run, every device may be able to start.
constexpr void begin(simulation& state) noexcept {
  for (int i = 0; i < state.offsets[state.extents.devices]; ++i)
    state.starts[i] = state.ends[i] = never;
  for (int i = 0; i < pass_indices(state.extents); ++i)
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
[[nodiscard]] constexpr double
ready_time(simulation const& state, double latency, int device, pass const& what) {
  double ready = 0;
  dependency_list const needed = dependencies(state.extents, what);
  for (int i = 0; i < needed.count; ++i) {
    double time = state.finished[needed.index[i]];
    if (time < 0)
      return never;
    if (latency != 0 && device_of(state.extents, needed.stage[i], what.microbatch) != device)
      time += latency;
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
constexpr void finish(simulation& state, int device, int entry, double start, double end) {
  pass const& what = state.passes[entry];
  state.starts[entry] = start;
  state.ends[entry] = end;
  state.finished[pass_index(state.extents, what)] = end;
  int const consumer =
    device_of(state.extents, consumer_stage(state.extents, what), what.microbatch);
  if (consumer != device)
    wake(state, consumer);
}

//! Runs the next entry of a device, or the next two where they are a composite pass. Returns the
//! number of entries.
template <cost_model Cost>
constexpr int run_next(simulation& state, Cost const& cost, int device) {
  int const entry = state.next[device];
  bool const pair = entry + 1 < state.offsets[device + 1] && state.passes[entry + 1].overlapped;
  double const latency = cost.latency();
  double start = ready_time(state, latency, device, state.passes[entry]);
  if (start < 0)
    return 0;
  double duration = 0;
  if (pair) {
    double const other = ready_time(state, latency, device, state.passes[entry + 1]);
    if (other < 0)
      return 0;
    if (other > start)
      start = other;
    duration = pair_duration(cost, state.passes[entry], state.passes[entry + 1]);
  } else {
    duration = cost.duration(state.passes[entry]);
  }
  if (state.free_from[device] > start)
    start = state.free_from[device];
  double const end = start + duration;
  finish(state, device, entry, start, end);
  if (pair)
    finish(state, device, entry + 1, start, end);
  state.free_from[device] = end;
  int const ran = pair ? 2 : 1;
  state.next[device] += ran;
  return ran;
}

} // namespace detail

//! @brief Runs passes as early as order, dependencies and messages allow.
//! @param budget about how many passes to run at most.
//! @return the number of passes that ran; less than `budget` when nothing more can run.
//! @complexity O(1) per pass.
template <cost_model Cost>
constexpr int advance(simulation& state, Cost const& cost, int budget) {
  int ran = 0;
  while (state.runnable_count > 0 && ran < budget) {
    --state.runnable_count;
    int const device = state.runnable[state.runnable_count];
    state.queued[device] = 0;
    while (state.next[device] < state.offsets[device + 1]) {
      int const now = detail::run_next(state, cost, device);
      ran += now;
      if (now == 0)
        break;
      if (ran < budget)
        continue;
      detail::wake(state, device);
      break;
    }
  }
  return ran;
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
  result.extents.custom_devices = nullptr;
  return result;
}

} // namespace pipelining::inline v0_1
