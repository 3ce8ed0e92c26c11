// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Squeezes and reorders the passes of a V shape under a memory limit. Header for
//! pipelining::detail::v_timeline.

#include <pipe/schedule/building_block.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_1 {
namespace detail {

//! What a timeline is about. Legs are those of `leg`; with a fused backward there are the first
//! four only.
struct v_problem {
  int devices = 1;
  int units = 1;  //!< microbatches times chunks
  int chunks = 1; //!< of one sequence
  int legs = leg::count;
  int limit = 0;            //!< activations that a device may hold, in chunks
  std::int64_t latency = 0; //!< ticks of a message between two devices

  [[nodiscard]] constexpr int row() const noexcept { return legs * units; }
  [[nodiscard]] constexpr bool fused() const noexcept { return legs != leg::count; }
};

//! The timetable of a V shape in the making, on arrays of the caller.
//!
//! A sweep takes the passes of every device in the order of the rows and puts each at its earliest
//! start: behind the passes placed so far, or into a gap before some of them when it fits there
//! without moving anything and without holding more activations than allowed. A sweep backwards
//! does the same with time running from the end to the start, so that every pass comes as late as
//! it can; a sweep forwards after it gathers the idle time that this freed. No sweep makes the
//! schedule longer, since every pass still fits where the sweep before had put it.
//!
//! The gradient of unit number i of a leg belongs to chunk C - 1 - i mod C of its sequence: the
//! chunks of a sequence come back last to first.
struct v_timeline {
  v_problem problem;
  std::int64_t* durations = nullptr; //!< [6][P][C] in ticks
  std::uint32_t* codes = nullptr;    //!< [P][row] unit * 8 + leg, in order
  std::int64_t* begins = nullptr;    //!< [P][row], in the time of the sweep
  std::int64_t* ends = nullptr;      //!< [P][row]
  std::int32_t* held = nullptr;      //!< [P][row] activations held during the pass
  std::int64_t* arrivals = nullptr;  //!< [6][P][units] ends by leg, device and unit
  std::int64_t* release = nullptr;   //!< [P] earliest start of a device in a sweep
  int* placed = nullptr;             //!< [P] entries of a row placed in this sweep
  int* counts = nullptr;             //!< [P][6] of them, by leg
  int* queue = nullptr;              //!< [P] devices whose next pass may be ready
  unsigned char* queued = nullptr;   //!< [P]
  int queue_size = 0;
  std::int64_t span = 0;     //!< after a sweep forwards: max of last end - first start
  std::int64_t makespan = 0; //!< after a sweep forwards: the last end

  //! Ticks added at random to passes of the units in [noise_first, noise_last), for the search.
  std::int64_t noise = 0;
  int noise_first = 0;
  int noise_last = 0;
  std::uint64_t random = 1;

  [[nodiscard]] constexpr std::ptrdiff_t first_of(int device) const noexcept {
    return static_cast<std::ptrdiff_t>(device) * problem.row();
  }
  [[nodiscard]] constexpr std::ptrdiff_t
  arrival_index(int at, int device, int unit) const noexcept {
    return (static_cast<std::ptrdiff_t>(at) * problem.devices + device) * problem.units + unit;
  }
};

//! The number of a backward pass on its leg whose sequence position is that of forward number
//! `unit`, and the other way round.
[[nodiscard]] constexpr int turn_chunk(v_problem const& problem, int unit) noexcept {
  if (problem.chunks == 1)
    return unit;
  int const chunk = unit % problem.chunks;
  return unit - chunk + problem.chunks - 1 - chunk;
}

//! Writes the rows that repeat a block every interval, without times.
constexpr void repeat(building_block const& block, v_timeline& line) {
  int const legs = line.problem.legs;
  for (int device = 0; device < line.problem.devices; ++device) {
    int const* const slots = block.of(device);
    int order[leg::count] = {0, 1, 2, 3, 4, 5};
    for (int i = 1; i < legs; ++i) // insertion sort by the place in the interval
      for (int k = i;
           k > 0 && slots[order[k]] % block.interval < slots[order[k - 1]] % block.interval;
           --k) {
        int const other = order[k];
        order[k] = order[k - 1];
        order[k - 1] = other;
      }
    int laps = 0;
    for (int at = 0; at < legs; ++at)
      laps = slots[at] / block.interval > laps ? slots[at] / block.interval : laps;
    std::ptrdiff_t write = line.first_of(device);
    for (int period = 0; period < line.problem.units + laps; ++period)
      for (int i = 0; i < legs; ++i) {
        int const unit = period - slots[order[i]] / block.interval;
        if (unit < 0 || unit >= line.problem.units)
          continue;
        line.codes[write] =
          static_cast<std::uint32_t>(unit) << 3 | static_cast<std::uint32_t>(order[i]);
        ++write;
      }
  }
}

//! Prepares a sweep: nothing is placed, every device may be ready.
constexpr void begin_sweep(v_timeline& line, bool backwards) {
  line.queue_size = 0;
  for (int i = 0; i < line.problem.devices; ++i) {
    int const device = backwards ? i : line.problem.devices - 1 - i;
    line.placed[device] = 0;
    for (int at = 0; at < leg::count; ++at)
      line.counts[device * leg::count + at] = 0;
    line.queue[line.queue_size] = device;
    line.queued[device] = 1;
    ++line.queue_size;
  }
}

//! Raises `ready` to the end of a pass of this sweep plus `after`; false while it is not placed.
template <bool Backwards>
[[nodiscard]] constexpr bool wait_for(
  v_timeline const& line, int at, int device, int unit, std::int64_t after, std::int64_t& ready) {
  int const number = Backwards ? line.problem.units - 1 - unit : unit;
  if (line.counts[device * leg::count + at] <= number)
    return false;
  std::int64_t const end = line.arrivals[line.arrival_index(at, device, unit)] + after;
  ready = end > ready ? end : ready;
  return true;
}

//! Raises `ready` to what a pass waits for in a sweep forwards.
[[nodiscard]] constexpr bool
inputs_of(v_timeline const& line, int at, int device, int unit, std::int64_t& ready) {
  int const last = line.problem.devices - 1;
  std::int64_t const latency = line.problem.latency;
  switch (at) {
  case leg::forward_down:
    return device == 0 || wait_for<false>(line, at, device - 1, unit, latency, ready);
  case leg::forward_up:
    return device == last ? wait_for<false>(line, leg::forward_down, device, unit, 0, ready)
                          : wait_for<false>(line, at, device + 1, unit, latency, ready);
  case leg::backward_down:
    return (device == 0 || wait_for<false>(line, at, device - 1, unit, latency, ready)) &&
           wait_for<false>(line, leg::forward_up, device, turn_chunk(line.problem, unit), 0, ready);
  case leg::backward_up:
    return device == last ? wait_for<false>(line, leg::backward_down, device, unit, 0, ready)
                          : wait_for<false>(line, at, device + 1, unit, latency, ready);
  default: return wait_for<false>(line, at - 2, device, unit, 0, ready);
  }
}

//! Raises `ready` to what a pass waits for in a sweep backwards: the passes that use its result.
[[nodiscard]] constexpr bool
uses_of(v_timeline const& line, int at, int device, int unit, std::int64_t& ready) {
  int const last = line.problem.devices - 1;
  std::int64_t const latency = line.problem.latency;
  bool const fused = line.problem.fused();
  switch (at) {
  case leg::forward_down:
    return device == last ? wait_for<true>(line, leg::forward_up, device, unit, 0, ready)
                          : wait_for<true>(line, at, device + 1, unit, latency, ready);
  case leg::forward_up:
    return wait_for<true>(
             line, leg::backward_down, device, turn_chunk(line.problem, unit), 0, ready) &&
           (device == 0 || wait_for<true>(line, at, device - 1, unit, latency, ready));
  case leg::backward_down:
    return (fused || wait_for<true>(line, leg::weight_down, device, unit, 0, ready)) &&
           (device == last ? wait_for<true>(line, leg::backward_up, device, unit, 0, ready)
                           : wait_for<true>(line, at, device + 1, unit, latency, ready));
  case leg::backward_up:
    return (fused || wait_for<true>(line, leg::weight_up, device, unit, 0, ready)) &&
           (device == 0 || wait_for<true>(line, at, device - 1, unit, latency, ready));
  default: return true;
  }
}

//! The ticks of a pass, with noise where the search asks for it.
[[nodiscard]] constexpr std::int64_t
ticks_of(v_timeline& line, int at, int device, int unit) noexcept {
  int const chunks = line.problem.chunks;
  int const chunk = chunks == 1             ? 0
                    : at <= leg::forward_up ? unit % chunks
                                            : chunks - 1 - unit % chunks;
  std::int64_t ticks = line.durations[(at * line.problem.devices + device) * chunks + chunk];
  if (line.noise > 0 && unit >= line.noise_first && unit < line.noise_last) {
    line.random ^= line.random << 13;
    line.random ^= line.random >> 7;
    line.random ^= line.random << 17;
    ticks += static_cast<std::int64_t>(line.random % 1024) * line.noise / 1024;
  }
  return ticks;
}

//! +1 for a pass that takes an activation in the direction of the sweep, -1 for one that gives it
//! back.
template <bool Backwards>
[[nodiscard]] constexpr int memory_change(v_problem const& problem, int at) noexcept {
  bool const forward = at <= leg::forward_up;
  bool const frees = problem.fused() ? !forward : at >= leg::weight_down;
  int const change = forward ? 1 : frees ? -1 : 0;
  return Backwards ? -change : change;
}

//! Places the next entry of a row; false while a pass that it waits for is not placed.
template <bool Backwards>
[[nodiscard]] constexpr bool place_next(v_timeline& line, int device) {
  // The row runs from its end to its start in a sweep backwards: entry i is origin + i * step.
  constexpr std::ptrdiff_t step = Backwards ? -1 : 1;
  std::ptrdiff_t const origin = Backwards ? line.first_of(device + 1) - 1 : line.first_of(device);
  std::ptrdiff_t const next = line.placed[device];
  std::uint32_t const code = line.codes[origin + next * step];
  int const at = static_cast<int>(code & 7U);
  int const unit = static_cast<int>(code >> 3);
  std::int64_t ready = line.release[device];
  if (!(Backwards ? uses_of(line, at, device, unit, ready)
                  : inputs_of(line, at, device, unit, ready)))
    return false;
  std::ptrdiff_t const arrival = line.arrival_index(at, device, unit);
  if (line.counts[device * leg::count + at] > 0) { // passes of a leg stay in order
    std::int64_t const before = line.arrivals[arrival - step];
    ready = before > ready ? before : ready;
  }
  std::int64_t const ticks = ticks_of(line, at, device, unit);
  int const change = memory_change<Backwards>(line.problem, at);

  std::ptrdiff_t entry = next;
  std::int64_t begin = next > 0 ? line.ends[origin + (next - 1) * step] : 0;
  begin = begin > ready ? begin : ready;
  for (std::ptrdiff_t gap = next; gap > 0; --gap) { // try the gap before entry gap - 1
    std::ptrdiff_t const behind = origin + (gap - 1) * step;
    if (line.ends[behind] <= ready || (change > 0 && line.held[behind] >= line.problem.limit))
      break;
    std::int64_t from = gap > 1 ? line.ends[behind - step] : 0;
    from = from > ready ? from : ready;
    if (from + ticks <= line.begins[behind]) {
      begin = from;
      entry = gap - 1;
    }
  }
  for (std::ptrdiff_t i = next; i > entry; --i) {
    std::ptrdiff_t const to = origin + i * step;
    line.codes[to] = line.codes[to - step];
    line.begins[to] = line.begins[to - step];
    line.ends[to] = line.ends[to - step];
    line.held[to] = line.held[to - step] + change;
  }
  int held = 0;
  if (entry > 0) {
    std::ptrdiff_t const before = origin + (entry - 1) * step;
    int const other =
      memory_change<Backwards>(line.problem, static_cast<int>(line.codes[before] & 7U));
    held = line.held[before] + (other < 0 ? -1 : 0);
  }
  std::ptrdiff_t const here = origin + entry * step;
  line.codes[here] = code;
  line.begins[here] = begin;
  line.ends[here] = begin + ticks;
  line.held[here] = held + (change > 0 ? 1 : 0);
  line.arrivals[arrival] = begin + ticks;
  ++line.counts[device * leg::count + at];
  ++line.placed[device];
  return true;
}

//! Puts a device on the stack of those whose next pass may be ready.
constexpr void wake(v_timeline& line, int device) {
  if (device < 0 || device >= line.problem.devices || line.queued[device] != 0)
    return;
  line.queue[line.queue_size] = device;
  line.queued[device] = 1;
  ++line.queue_size;
}

//! Goes on with a sweep for about `budget` passes.
//! @return the passes placed; fewer than `budget` when the sweep is over.
template <bool Backwards>
constexpr int advance_sweep(v_timeline& line, int budget) {
  int done = 0;
  int const row = line.problem.row();
  while (line.queue_size > 0 && done < budget) {
    --line.queue_size;
    int const device = line.queue[line.queue_size];
    line.queued[device] = 0;
    int const before = done;
    while (line.placed[device] < row && done < budget && place_next<Backwards>(line, device))
      ++done;
    if (done == before)
      continue;
    wake(line, device - 1);
    wake(line, device + 1);
    if (done == budget)
      wake(line, device);
  }
  return done;
}

//! What a sweep backwards keeps: every device ends no later than its deadline.
enum class deadline : std::uint8_t {
  both,     //!< neither span nor makespan grows
  makespan, //!< the makespan does not grow; devices share one deadline
  span      //!< the span does not grow; each device may take all of it from its first pass on
};

//! Prepares a sweep backwards from the result of a sweep forwards.
constexpr void begin_backwards(v_timeline& line, deadline keep) {
  std::int64_t horizon = 0;
  for (int device = 0; device < line.problem.devices; ++device) {
    std::int64_t latest = line.begins[line.first_of(device)] + line.span;
    if (keep == deadline::makespan || (keep == deadline::both && latest > line.makespan))
      latest = line.makespan;
    line.release[device] = latest;
    horizon = latest > horizon ? latest : horizon;
  }
  for (int device = 0; device < line.problem.devices; ++device)
    line.release[device] = horizon - line.release[device];
  begin_sweep(line, true);
}

//! Prepares a sweep forwards.
constexpr void begin_forwards(v_timeline& line) {
  for (int device = 0; device < line.problem.devices; ++device)
    line.release[device] = 0;
  begin_sweep(line, false);
}

//! Measures the result of a sweep forwards.
constexpr void measure(v_timeline& line) {
  line.span = 0;
  line.makespan = 0;
  for (int device = 0; device < line.problem.devices; ++device) {
    std::int64_t const end = line.ends[line.first_of(device + 1) - 1];
    std::int64_t const span = end - line.begins[line.first_of(device)];
    line.makespan = end > line.makespan ? end : line.makespan;
    line.span = span > line.span ? span : line.span;
  }
}

//! The sweeps of a reorder: forwards, then twice backwards and forwards.
inline constexpr int reorder_sweeps = 5;

//! Goes on with a reorder for about `budget` passes; `sweep` is the number of the sweep under way,
//! -1 before the first.
constexpr void advance_reorder(v_timeline& line, int& sweep, int budget) {
  int done = 0;
  while (done < budget && sweep < reorder_sweeps) {
    bool const backwards = sweep % 2 == 1;
    if (sweep >= 0)
      done += backwards ? advance_sweep<true>(line, budget - done)
                        : advance_sweep<false>(line, budget - done);
    if (done == budget)
      return;
    if (sweep >= 0 && !backwards)
      measure(line);
    ++sweep;
    if (sweep % 2 == 0)
      begin_forwards(line);
    else
      begin_backwards(line, sweep == 1 ? deadline::span : deadline::both);
  }
}

//! A whole sweep forwards: squeezes the rows and fills gaps.
constexpr void sweep_forwards(v_timeline& line) {
  begin_forwards(line);
  advance_sweep<false>(line, line.problem.devices * line.problem.row() + 1);
  measure(line);
}

//! A sweep backwards and one forwards.
constexpr void sweep_both(v_timeline& line, deadline keep) {
  begin_backwards(line, keep);
  advance_sweep<true>(line, line.problem.devices * line.problem.row() + 1);
  sweep_forwards(line);
}

} // namespace detail
} // namespace pipelining::inline v0_1
