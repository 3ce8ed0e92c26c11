// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Squeezes and reorders the passes of a repeated block under a memory limit. Header for
//! pipelining::detail::timeline.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/building_block.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstddef>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! The problem that a timeline solves.
struct timeline_problem {
  shape extents;
  bool fused = false;       //!< no lines for gradients of weights
  bool unlike = false;      //!< microbatches take unlike times
  int limit = 0;            //!< activations that a device may hold, in units
  std::int64_t latency = 0; //!< ticks of a message between two devices

  [[nodiscard]] constexpr int devices() const noexcept { return extents.devices; }
  [[nodiscard]] constexpr int lines() const noexcept { return (fused ? 2 : 3) * extents.stages(); }
  [[nodiscard]] constexpr int passes() const noexcept { return lines() * extents.units(); }
  //! Times of a line: of the chunks of a sequence, which repeat, or of all units.
  [[nodiscard]] constexpr int times() const noexcept {
    return unlike ? extents.units() : extents.chunks;
  }
};

//! The timetable of a repeated block in the making.
//!
//! A sweep takes the passes of every device in the order of the rows and puts each at its earliest
//! start: after the passes placed so far, or into a gap before some of them when it fits there
//! without moving anything and without holding more activations than allowed. A sweep backwards
//! does the same with time running from the end to the start, so that every pass comes as late as
//! it can; a sweep forwards after it gathers the idle time that this freed. No sweep makes the
//! schedule longer, since every pass still fits where the sweep before had put it.
//!
//! Lines are those of `building_block`. Number i of a line that goes backwards belongs to chunk
//! C - 1 - i mod C of its sequence: the chunks of a sequence come back last to first.
struct timeline {
  timeline_problem problem;
  int stages = problem.extents.stages();        //!< S
  int units = problem.extents.units();          //!< of the whole batch
  int chunks = problem.extents.chunks;          //!< of one sequence
  int times = problem.times();                  //!< of a line, which repeat
  int lines = problem.lines();                  //!< 2 S or 3 S
  int shift = 0;                                //!< bits of a line in a code
  owned<int> device{stages};                    //!< [S] that holds a stage
  owned<int> first{problem.devices() + 1};      //!< [P + 1] where the row of a device begins
  owned<std::int64_t> durations{lines * times}; //!< [lines][times] in ticks, by number on the line
  owned<int> codes{problem.passes()};           //!< [passes] number << shift | line, in order
  owned<std::int64_t> begins{problem.passes()}; //!< [passes], in the time of the sweep
  owned<std::int64_t> ends{problem.passes()};   //!< [passes]
  owned<int> held{problem.passes()};            //!< [passes] activations held during the pass
  owned<std::int64_t> arrivals{problem.passes()}; //!< [lines][units] ends by line and number
  owned<std::int64_t> release{problem.devices()}; //!< [P] earliest start of a device in a sweep
  owned<int> placed{problem.devices()};           //!< [P] entries of a row placed in this sweep
  owned<int> counts{lines};                       //!< [lines] of them, by line
  owned<int> queue{problem.devices()};            //!< [P] devices whose next pass may be ready
  owned<int> queued{problem.devices()};           //!< [P]
  int queue_size = 0;
  bool moved = false;        //!< a sweep has put a pass before others of its row
  std::int64_t span = 0;     //!< after a sweep forwards: max of last end - first start
  std::int64_t makespan = 0; //!< after a sweep forwards: the last end

  //! Ticks added at random to passes of the units in [noise_first, noise_last), for the search.
  std::int64_t noise = 0;
  int noise_first = 0;
  int noise_last = 0;
  std::uint64_t random = 1;

  //! @param holder gives the device of a stage
  template <class Holder>
  constexpr timeline(timeline_problem const& of, Holder const& holder) : problem(of) {
    while (lines >> shift != 0)
      ++shift;
    for (int at = 0; at <= problem.devices(); ++at)
      first[at] = 0;
    for (int stage = 0; stage < stages; ++stage) {
      device[stage] = holder(stage);
      first[device[stage] + 1] += lines / stages * units;
    }
    for (int at = 0; at < problem.devices(); ++at)
      first[at + 1] += first[at];
  }

  [[nodiscard]] constexpr int line_of(int code) const noexcept { return code & ((1 << shift) - 1); }
  [[nodiscard]] constexpr int number_of(int code) const noexcept { return code >> shift; }
  [[nodiscard]] constexpr int code(int line, int number) const noexcept {
    return number << shift | line; // 3 S units are at most 2^28, so 30 bits suffice
  }
  [[nodiscard]] constexpr int row(int at) const noexcept { return first[at + 1] - first[at]; }
};

//! The number of a backward pass on its line whose sequence position is that of forward number
//! `unit`, and the other way round.
[[nodiscard]] constexpr int turn_chunk(timeline const& line, int unit) noexcept {
  if (line.chunks == 1)
    return unit;
  int const chunk = unit % line.chunks;
  return unit - chunk + line.chunks - 1 - chunk;
}

//! Writes the rows that repeat a block every interval, without times.
constexpr void repeat(building_block const& block, timeline& line) {
  int const interval = block.interval;
  for (int device = 0; device < line.problem.devices(); ++device) {
    int* const order = line.counts; // scratch until the first sweep
    int held = 0;
    int laps = 0;
    for_each_stage(block, device, [&](int stage) {
      for (int own = stage; own < line.lines; own += line.stages) { // by the place in the interval
        laps = block.slots[own] / interval > laps ? block.slots[own] / interval : laps;
        int k = held++;
        for (; k > 0 && block.slots[own] % interval < block.slots[order[k - 1]] % interval; --k)
          order[k] = order[k - 1];
        order[k] = own;
      }
    });
    int write = line.first[device];
    for (int period = 0; period < line.units + laps; ++period)
      for (int i = 0; i < held; ++i) {
        int const number = period - block.slots[order[i]] / interval;
        if (number < 0 || number >= line.units)
          continue;
        line.codes[write] = line.code(order[i], number);
        ++write;
      }
  }
}

//! Prepares a sweep: nothing is placed, every device may be ready.
constexpr void begin_sweep(timeline& line, bool backwards) {
  line.queue_size = 0;
  for (int at = 0; at < line.lines; ++at)
    line.counts[at] = 0;
  int const devices = line.problem.devices();
  for (int i = 0; i < devices; ++i) {
    int const device = backwards ? i : devices - 1 - i;
    line.placed[device] = 0;
    line.queue[line.queue_size] = device;
    line.queued[device] = 1;
    ++line.queue_size;
  }
}

//! Raises `ready` to the end of a pass of this sweep, and the message from it to `stage`; false
//! while it is not placed.
template <bool Backwards>
[[nodiscard, gnu::always_inline]] constexpr bool
wait_for(timeline const& line, int at, int number, int from, int stage, std::int64_t& ready) {
  if (line.counts.data[at] <= (Backwards ? line.units - 1 - number : number))
    return false;
  std::int64_t end = line.arrivals.data[at * line.units + number];
  if (line.device.data[from] != line.device.data[stage])
    end += line.problem.latency;
  ready = end > ready ? end : ready;
  return true;
}

//! Raises `ready` to what a pass waits for in a sweep forwards.
[[nodiscard, gnu::always_inline]] constexpr bool
inputs_of(timeline const& line, int at, int number, std::int64_t& ready) {
  int const all = line.stages;
  if (at < all)
    return at == 0 || wait_for<false>(line, at - 1, number, at - 1, at, ready);
  if (at < 2 * all - 1)
    return wait_for<false>(line, at + 1, number, at + 1 - all, at - all, ready);
  if (at == 2 * all - 1)
    return wait_for<false>(line, all - 1, turn_chunk(line, number), all - 1, all - 1, ready);
  return wait_for<false>(line, at - all, number, at - 2 * all, at - 2 * all, ready);
}

//! Raises `ready` to what a pass waits for in a sweep backwards: the passes that use its result.
[[nodiscard, gnu::always_inline]] constexpr bool
uses_of(timeline const& line, int at, int number, std::int64_t& ready) {
  int const all = line.stages;
  if (at < all - 1)
    return wait_for<true>(line, at + 1, number, at + 1, at, ready);
  if (at == all - 1)
    return wait_for<true>(line, 2 * all - 1, turn_chunk(line, number), at, at, ready);
  if (at >= 2 * all)
    return true;
  int const stage = at - all;
  return (line.lines == 2 * all || wait_for<true>(line, at + all, number, stage, stage, ready)) &&
         (stage == 0 || wait_for<true>(line, at - 1, number, stage - 1, stage, ready));
}

//! The ticks of a pass, with noise where the search asks for it.
[[nodiscard, gnu::always_inline]] constexpr std::int64_t ticks_of(timeline& line, int at, int number) noexcept {
  int const times = line.times;
  std::int64_t ticks =
    times == 1 ? line.durations.data[at] : line.durations.data[at * times + number % times];
  if (line.noise > 0 && number >= line.noise_first && number < line.noise_last) {
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
[[nodiscard, gnu::always_inline]] constexpr int memory_change(timeline const& line, int at) noexcept {
  int const change = at < line.stages ? 1 : at >= line.lines - line.stages ? -1 : 0;
  return Backwards ? -change : change;
}

//! Places the next entry of a row; false while a pass that it waits for is not placed.
template <bool Backwards>
[[nodiscard]] constexpr bool place_next(timeline& line, int device) {
  // The row runs from its end to its start in a sweep backwards: entry i is origin + i * step.
  constexpr std::ptrdiff_t step = Backwards ? -1 : 1;
  std::ptrdiff_t const origin =
    Backwards ? line.first.data[device + 1] - 1 : line.first.data[device];
  std::ptrdiff_t const next = line.placed.data[device];
  int const code = line.codes.data[origin + next * step];
  int const at = line.line_of(code);
  int const number = line.number_of(code);
  std::int64_t ready = line.release.data[device];
  if (!(Backwards ? uses_of(line, at, number, ready) : inputs_of(line, at, number, ready)))
    return false;
  std::ptrdiff_t const arrival = at * line.units + number;
  if (line.counts.data[at] > 0) { // passes of a line stay in order
    std::int64_t const before = line.arrivals.data[arrival - step];
    ready = before > ready ? before : ready;
  }
  std::int64_t const ticks = ticks_of(line, at, number);
  int const change = memory_change<Backwards>(line, at);

  std::ptrdiff_t entry = next;
  std::int64_t begin = next > 0 ? line.ends.data[origin + (next - 1) * step] : 0;
  begin = begin > ready ? begin : ready;
  for (std::ptrdiff_t gap = next; gap > 0; --gap) { // try the gap before entry gap - 1
    std::ptrdiff_t const behind = origin + (gap - 1) * step;
    if (line.ends.data[behind] <= ready ||
        (change > 0 && line.held.data[behind] >= line.problem.limit))
      break;
    std::int64_t from = gap > 1 ? line.ends.data[behind - step] : 0;
    from = from > ready ? from : ready;
    if (from + ticks <= line.begins.data[behind]) {
      begin = from;
      entry = gap - 1;
    }
  }
  line.moved = line.moved || entry < next;
  for (std::ptrdiff_t i = next; i > entry; --i) {
    std::ptrdiff_t const to = origin + i * step;
    line.codes.data[to] = line.codes.data[to - step];
    line.begins.data[to] = line.begins.data[to - step];
    line.ends.data[to] = line.ends.data[to - step];
    line.held.data[to] = line.held.data[to - step] + change;
  }
  int held = 0;
  if (entry > 0) {
    std::ptrdiff_t const before = origin + (entry - 1) * step;
    int const other = memory_change<Backwards>(line, line.line_of(line.codes.data[before]));
    held = line.held.data[before] + (other < 0 ? -1 : 0);
  }
  std::ptrdiff_t const here = origin + entry * step;
  line.codes.data[here] = code;
  line.begins.data[here] = begin;
  line.ends.data[here] = begin + ticks;
  line.held.data[here] = held + (change > 0 ? 1 : 0);
  line.arrivals.data[arrival] = begin + ticks;
  ++line.counts.data[at];
  ++line.placed.data[device];
  return true;
}

//! Puts a device on the stack of those whose next pass may be ready.
constexpr void wake(timeline& line, int device) {
  if (line.queued[device] != 0)
    return;
  line.queue[line.queue_size] = device;
  line.queued[device] = 1;
  ++line.queue_size;
}

//! Wakes the devices that may wait for this one.
constexpr void wake_neighbours(timeline& line, int device) {
  int const devices = line.problem.devices();
  if (line.problem.extents.where == placement::custom) {
    for (int stage = 0; stage + 1 < line.stages; ++stage) {
      int const before = line.device[stage];
      int const after = line.device[stage + 1];
      if (before != after && (before == device || after == device))
        wake(line, before == device ? after : before);
    }
    return;
  }
  bool const ring = line.problem.extents.where == placement::looped;
  if (device > 0 || ring)
    wake(line, device > 0 ? device - 1 : devices - 1);
  if (device + 1 < devices || ring)
    wake(line, device + 1 < devices ? device + 1 : 0);
}

//! Places the passes of a sweep that has been prepared.
template <bool Backwards>
constexpr void sweep(timeline& line) {
  while (line.queue_size > 0) {
    --line.queue_size;
    int const device = line.queue[line.queue_size];
    line.queued[device] = 0;
    int const before = line.placed[device];
    while (line.placed[device] < line.row(device) && place_next<Backwards>(line, device)) {
    }
    if (line.placed[device] > before)
      wake_neighbours(line, device);
  }
}

//! The end of each device that a sweep backwards keeps.
enum class deadline : std::uint8_t {
  both, //!< neither span nor makespan grows
  span  //!< the span does not grow; each device may take all of it from its first pass on
};

//! Prepares a sweep backwards from the result of a sweep forwards.
constexpr void begin_backwards(timeline& line, deadline keep) {
  std::int64_t horizon = 0;
  for (int device = 0; device < line.problem.devices(); ++device) {
    std::int64_t latest = line.begins[line.first[device]] + line.span;
    if (keep == deadline::both && latest > line.makespan)
      latest = line.makespan;
    line.release[device] = latest;
    horizon = latest > horizon ? latest : horizon;
  }
  for (int device = 0; device < line.problem.devices(); ++device)
    line.release[device] = horizon - line.release[device];
  begin_sweep(line, true);
}

//! Prepares a sweep forwards.
constexpr void begin_forwards(timeline& line) {
  for (int device = 0; device < line.problem.devices(); ++device)
    line.release[device] = 0;
  begin_sweep(line, false);
}

//! Measures the result of a sweep forwards.
constexpr void measure(timeline& line) {
  line.span = 0;
  line.makespan = 0;
  for (int device = 0; device < line.problem.devices(); ++device) {
    std::int64_t const end = line.ends[line.first[device + 1] - 1];
    std::int64_t const span = end - line.begins[line.first[device]];
    line.makespan = end > line.makespan ? end : line.makespan;
    line.span = span > line.span ? span : line.span;
  }
}

//! A whole sweep forwards: squeezes the rows and fills gaps.
constexpr void sweep_forwards(timeline& line) {
  begin_forwards(line);
  sweep<false>(line);
  measure(line);
}

//! A sweep backwards and one forwards.
constexpr void sweep_both(timeline& line, deadline keep) {
  begin_backwards(line, keep);
  sweep<true>(line);
  sweep_forwards(line);
}

//! True when every device works all of the span, after a sweep forwards.
[[nodiscard]] constexpr bool works_without_pause(timeline const& line) noexcept {
  for (int device = 0; device < line.problem.devices(); ++device) {
    int const last = line.first[device + 1] - 1;
    for (int i = line.first[device]; i < last; ++i)
      if (line.begins.data[i + 1] != line.ends.data[i])
        return false;
    if (line.ends[last] - line.begins[line.first[device]] != line.span)
      return false;
  }
  return true;
}

//! Five sweeps: forwards, then twice backwards and forwards. Where the first moves no pass and
//! leaves no pause, none of the others finds another place for any pass, and there is one.
constexpr void reorder(timeline& line) {
  line.moved = false;
  sweep_forwards(line);
  if (!line.moved && works_without_pause(line))
    return;
  sweep_both(line, deadline::span);
  sweep_both(line, deadline::both);
}

} // namespace pipelining::inline v0_3::detail
