// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Figures of a timetable: times, bubbles, memory, iterations in a row, and the order of
//! sums. Header for pipelining::makespan, bubble_rate, peak_activations, post_validated_period and
//! sums_in_order.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <span>

namespace pipelining::inline v0_3 {

namespace detail {

//! How many slots of one pool a pass of each kind takes at its start and gives back at its end.
struct pool_effect {
  int taken[flow::most_kinds];
  int freed[flow::most_kinds];

  //! How many more are held when a pass starts, or ends. A stage that only goes forward works in
  //! the pool, and keeps nothing.
  [[nodiscard]] constexpr int
  change(pipeline_view const& over, pass const& what, bool ends) const noexcept {
    auto const kind = static_cast<int>(what.kind);
    return !ends ? taken[kind] : goes_forward_only(over, what.stage) ? -taken[kind] : -freed[kind];
  }
};

[[nodiscard]] constexpr pool_effect effect_on(flow const& declared, slot_class pool) noexcept {
  pool_effect result{};
  for (int kind = 0; kind < declared.kind_count; ++kind)
    for (effect const& one : declared.kinds[kind]) {
      datum const& of = declared.data[one.of];
      if (one.stage != of_stage::own || of.lives == residence::nowhere ||
          of.pool != static_cast<int>(pool) || of.instance == datum::per::microbatch)
        continue;
      result.taken[kind] += one.what == does::makes ? 1 : 0;
      result.freed[kind] += one.what == does::frees ? 1 : 0;
    }
  return result;
}

//! A row of passes on the way through time. The halves of a composite pass start before either
//! ends.
struct row_walk {
  timetable_view const& table;
  int row;
  int end;
  int first = 0; // of the passes that start together
  int last = 0;  // after them
  bool running = false;

  constexpr row_walk(timetable_view const& of, int number)
      : table(of), row(number), end(of.offsets[number + 1]) {
    begin_at(of.offsets[number]);
  }
  constexpr void begin_at(int entry) noexcept {
    first = entry;
    last = first < end ? first + 1 : end;
    while (last < end && table.passes[last].overlapped)
      ++last;
  }
  [[nodiscard]] constexpr bool done() const noexcept { return first == end; }
  [[nodiscard]] constexpr double time() const noexcept {
    return running ? table.ends[first] : table.starts[first];
  }
  //! True when what comes next here comes before what comes next there; at one time, what is given
  //! back comes first.
  [[nodiscard]] constexpr bool before(row_walk const& there) const noexcept {
    if (done() || there.done())
      return !done();
    return time() != there.time() ? time() < there.time() : running && !there.running;
  }
  constexpr void advance() noexcept {
    if (running)
      begin_at(last);
    running = !running;
  }
};

//! Calls `visit(row_walk)` whenever passes of a device start together, or end, by their times; on
//! one engine, by their order.
template <class Visit>
constexpr void walk_device(timetable_view const& table, int device, Visit const& visit) {
  int const devices = table.over.extents.devices;
  if (table.offsets[devices] == table.offsets[table.rows()]) { // no other engine has a pass
    for (row_walk at{table, device}; !at.done(); at.advance())
      visit(at);
    return;
  }
  int const engines = table.over.declared->engines;
  row_walk walks[flow::engine_count] = {{table, device},
                                        {table, engines > 1 ? device + devices : device},
                                        {table, engines > 2 ? device + 2 * devices : device},
                                        {table, engines > 3 ? device + 3 * devices : device}};
  for (;;) {
    int earliest = 0;
    for (int row = 1; row < engines; ++row)
      if (walks[row].before(walks[earliest]))
        earliest = row;
    if (walks[earliest].done())
      return;
    visit(walks[earliest]);
    walks[earliest].advance();
  }
}

//! The most that a device holds of something at once.
//! @param change `change(pass, ends)`: how much more is held when a pass starts, or ends
template <class Number, class Change>
[[nodiscard]] constexpr Number
peak_by(timetable_view const& table, int device, Change const& change) noexcept {
  Number held{};
  Number peak{};
  walk_device(table, device, [&](row_walk const& at) {
    for (int i = at.first; i < at.last; ++i)
      held += static_cast<Number>(change(table.passes[i], at.running));
    peak = held > peak ? held : peak;
  });
  return peak;
}

//! The most that a device holds of a pool at once.
//! @param weight what the slot of a pass counts
template <class Number, class Weight>
[[nodiscard]] constexpr Number
peak_of(timetable_view const& table, int device, slot_class pool, Weight const& weight) noexcept {
  pool_effect const of = effect_on(*table.over.declared, pool);
  if (std::count(of.taken, of.taken + flow::most_kinds, 0) == flow::most_kinds)
    return {}; // the flow has no slots of this pool
  return peak_by<Number>(table, device, [&](pass const& what, bool ends) {
    int const change = of.change(table.over, what, ends);
    return change == 0 ? Number{} : change * weight(what);
  });
}

} // namespace detail

//! @brief A fraction kept as it was given; comparisons look at its value, so ratio{2, 4} ==
//! ratio{1, 2}.
//!
//! @pre `denominator` > 0, and both members stay below 2^31 so that the products of a comparison
//! are exact.
struct ratio {
  std::int64_t numerator = 0;   //!< as it was given
  std::int64_t denominator = 1; //!< as it was given, above 0

  //! The nearest double.
  [[nodiscard]] constexpr double to_double() const noexcept {
    return static_cast<double>(numerator) / static_cast<double>(denominator);
  }

  friend constexpr bool operator==(ratio a, ratio b) noexcept {
    return a.numerator * b.denominator == b.numerator * a.denominator;
  }
  friend constexpr std::strong_ordering operator<=>(ratio a, ratio b) noexcept {
    return a.numerator * b.denominator <=> b.numerator * a.denominator;
  }
};

namespace detail {

//! When the first pass of a device starts.
[[nodiscard]] constexpr double first_start(timetable_view table, int device) noexcept {
  return table.row_size(device) == 0 ? 0 : table.starts[table.offsets[device]];
}

//! When the last pass of a device ends, on whichever engine.
[[nodiscard]] constexpr double last_end(timetable_view table, int device) noexcept {
  double last = 0;
  for (int row = device; row < table.rows(); row += table.over.extents.devices)
    if (table.row_size(row) > 0 && table.ends[table.offsets[row + 1] - 1] > last)
      last = table.ends[table.offsets[row + 1] - 1];
  return last;
}

//! When the first pass of any device starts.
[[nodiscard]] constexpr double first_start(timetable_view table) noexcept {
  double first = first_start(table, 0);
  for (int device = 1; device < table.over.extents.devices; ++device)
    first = first_start(table, device) < first ? first_start(table, device) : first;
  return first;
}

//! When the last pass of any device ends.
[[nodiscard]] constexpr double last_end(timetable_view table) noexcept {
  double last = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    last = last_end(table, device) > last ? last_end(table, device) : last;
  return last;
}

//! The most slots of a pool that a device holds at once, in chunks of one stage. A pass
//! takes them at its start and gives them back at its end, as its flow says.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr int
peak_chunks(timetable_view table, int device, slot_class pool) noexcept {
  return detail::peak_of<int>(table, device, pool, [](pass const&) { return 1; });
}

} // namespace detail

//! @brief The time that a device spends in passes; a composite pass counts once.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr double busy(timetable_view table, int device) noexcept {
  double sum = 0;
  for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i)
    if (!table.passes[i].overlapped)
      sum += table.ends[i] - table.starts[i];
  return sum;
}

//! @brief The longest time that any device is between its first start and its last end. The papers'
//! denominator of the
//!        bubble rate; it presumes no global barrier between iterations.
[[nodiscard]] constexpr double span_of(timetable_view table) noexcept {
  double longest = 0;
  for (int device = 0; device < table.over.extents.devices; ++device) {
    double const length = detail::last_end(table, device) - detail::first_start(table, device);
    longest = length > longest ? length : longest;
  }
  return longest;
}

//! @brief The time from the first start on any device to the last end on any device.
[[nodiscard]] constexpr double makespan(timetable_view table) noexcept {
  return detail::last_end(table) - detail::first_start(table);
}

namespace detail {

//! The share of a time in which devices are idle, as a mean over them.
[[nodiscard]] constexpr double idle_share(timetable_view table, double of) noexcept {
  double sum = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    sum += busy(table, device);
  return of > 0 ? 1 - sum / table.over.extents.devices / of : 0;
}

} // namespace detail

//! @brief The share of the span in which the device with the longest span is idle: 1 - busy / span,
//! where busy is the
//!        mean over devices.
[[nodiscard]] constexpr double bubble_rate(timetable_view table) noexcept {
  return detail::idle_share(table, span_of(table));
}

//! @brief The most chunks of activations that a device holds at once. In training, a forward pass
//! takes one and `backward` or `backward_weight` gives it back.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr int peak_activation_chunks(timetable_view table, int device) noexcept {
  return detail::peak_chunks(table, device, slot_class::activation);
}

//! @brief Peak activations of one device in whole microbatches of one stage, for chunks of equal
//! length.
[[nodiscard]] constexpr ratio peak_activations(timetable_view table, int device) noexcept {
  return {peak_activation_chunks(table, device), table.over.extents.chunks};
}

//! @brief Peak activations of the device that holds the most.
[[nodiscard]] constexpr ratio peak_activations(timetable_view table) noexcept {
  ratio most;
  for (int device = 0; device < table.over.extents.devices; ++device) {
    ratio const here = peak_activations(table, device);
    most = here > most ? here : most;
  }
  return most;
}

//! @brief Peak activations of one device in whole microbatches of one stage, for chunks of unequal
//! length.
//! @param shares the share of each chunk in the tokens of its sequence, [C], with sum 1.
[[nodiscard]] constexpr double
peak_activations(timetable_view table, int device, std::span<double const> shares) noexcept {
  return detail::peak_of<double>(table, device, slot_class::activation, [shares](pass const& what) {
    return shares[what.chunk];
  });
}

namespace detail {

//! True for a pass that a device may run before it knows whether the step of the optimizer
//! was right: a forward pass of its lowest stage, which needs nothing of this iteration but such
//! passes, and can run again.
[[nodiscard]] constexpr bool
may_run_again(pipeline_view const& over, int device, pass const& what) noexcept {
  if ((*over.declared)[what.kind].calls != stage_call::forward)
    return false;
  for (int stage = 0; stage < what.stage; ++stage)
    if (device_of(over, stage) == device)
      return false;
  return true;
}

//! When a device begins the first pass that cannot run again, on whichever engine.
[[nodiscard]] constexpr double first_final_start(timetable_view table, int device) noexcept {
  double first = last_end(table, device);
  for (int row = device; row < table.rows(); row += table.over.extents.devices)
    for (int i = table.offsets[row]; i < table.offsets[row + 1]; ++i)
      if (table.starts[i] < first && !may_run_again(table.over, device, table.passes[i]))
        first = table.starts[i];
  return first;
}

} // namespace detail

//! @brief The time from the start of one iteration to that of the next, where every device begins
//! the next one when it has ended this one, and has the totals of all devices before the first pass
//! that cannot run again. With a barrier between iterations it is the makespan.
//!
//! No less than the span of the timetable: a device is busy with one iteration at a time. No less
//! than from a device's first such pass to the last end on any device: then the totals are
//! complete. Where every iteration has the times of the table, these bounds are met. n iterations
//! take (n - 1) periods and a makespan. Messages with totals take no time.
//! @complexity O(n S) for n passes.
//! @source own derivation
[[nodiscard]] constexpr double post_validated_period(timetable_view table) noexcept {
  double period = span_of(table);
  double const complete = detail::last_end(table);
  for (int device = 0; device < table.over.extents.devices; ++device)
    if (double const wait = complete - detail::first_final_start(table, device); wait > period)
      period = wait;
  return period;
}

namespace detail {

//! Whether one stage does.
[[nodiscard]] constexpr bool sums_in_order(timetable_view table, int stage) noexcept {
  pass const* last = nullptr;
  int last_row = 0;
  int visits = 0; // of whole weights, each with a sum of its own
  int added = 0;  // in this visit
  for (int row = 0; row < table.rows(); ++row)
    for (pass const& what : table.row(row)) {
      if (what.stage != stage)
        continue;
      if ((*table.over.declared)[what.kind].calls == stage_call::collect_gradients) {
        ++visits;
        added = 0;
      }
      if (!table.over.declared->adds_gradients(what.kind))
        continue;
      bool const follows =
        last == nullptr ||
        (row == last_row && (what.microbatch > last->microbatch ||
                             (what.microbatch == last->microbatch && what.chunk < last->chunk)));
      if (!follows || (++added > 1 && visits > 1))
        return false;
      last = &what;
      last_row = row;
    }
  return true;
}

} // namespace detail

//! @brief Whether every stage adds up its weight gradients in the order of a plain loop:
//! microbatches from the first to the last, and of each the chunks from the last to the first.
//!
//! Then gradients have the bits of that loop, and of every other such timetable. Otherwise they
//! differ by rounding: where a schedule goes back from the last microbatch, where a stage has
//! copies on several devices, each with a sum of its own, and where sharded weights are visited
//! more than once for several microbatches.
//!
//! @complexity O(n S) for n passes.
[[nodiscard]] constexpr bool sums_in_order(timetable_view table) noexcept {
  for (int stage = 0; stage < table.over.extents.stages(); ++stage)
    if (!detail::sums_in_order(table, stage))
      return false;
  return true;
}

} // namespace pipelining::inline v0_3
