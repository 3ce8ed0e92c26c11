// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How much a device holds at once. Header for pipelining::peak_activations and
//! pipelining::ratio.

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
  int taken[flow::most_kinds]{};
  int freed[flow::most_kinds]{};

  constexpr pool_effect(flow const& declared, slot_class pool) noexcept {
    for (int kind = 0; kind < declared.kind_count; ++kind)
      for (effect const& one : declared.kinds[kind]) {
        datum const& of = declared.data[one.of];
        if (one.stage != of_stage::own || of.lives == residence::nowhere ||
            of.pool != static_cast<int>(pool) || of.instance == datum::per::microbatch)
          continue;
        taken[kind] += one.what == does::makes ? 1 : 0;
        freed[kind] += one.what == does::frees ? 1 : 0;
      }
  }
  //! How many more are held when a pass starts, or ends. A stage that only goes forward works in
  //! the pool, and keeps nothing.
  [[nodiscard]] constexpr int
  change(pipeline_view const& over, pass const& what, bool ends) const noexcept {
    auto const kind = static_cast<int>(what.kind);
    return !ends ? taken[kind] : goes_forward_only(over, what.stage) ? -taken[kind] : -freed[kind];
  }
};

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
  bool const alone = table.offsets[devices] == table.size(); // no other engine has a pass
  int const engines = alone ? 1 : table.over.declared->engines;
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
  pool_effect const of(*table.over.declared, pool);
  if (std::count(of.taken, of.taken + flow::most_kinds, 0) == flow::most_kinds)
    return {}; // the flow has no slots of this pool
  return peak_by<Number>(table, device, [&](pass const& what, bool ends) {
    int const change = of.change(table.over, what, ends);
    return change == 0 ? Number{} : change * weight(what);
  });
}

//! The most slots of a pool that a device holds at once, in chunks of one stage. A pass
//! takes them at its start and gives them back at its end, as its flow says.
//! @complexity O(n) for the n passes of the device.
[[nodiscard]] constexpr int
peak_chunks(timetable_view table, int device, slot_class pool) noexcept {
  return peak_of<int>(table, device, pool, [](pass const&) { return 1; });
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

} // namespace pipelining::inline v0_3
