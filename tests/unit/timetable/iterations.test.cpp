// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// How soon iterations follow each other, against iterations that are run out pass by pass.
#include <pipe/flow/dependencies.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pp = pipelining;

namespace {

//! The end of the last of some iterations in which every pass starts as soon as it may: after the
//! pass before it on its device, after those that it needs, and, where it cannot run again, after
//! the end of the iteration before on all devices. With a barrier no pass may start before that.
double run_out(pp::timetable_view table, int iterations, bool barrier) {
  auto const size = static_cast<std::size_t>(table.size());
  std::vector<int> entry_of(static_cast<std::size_t>(table.over.pass_indices()), -1);
  for (int i = 0; i < table.size(); ++i)
    entry_of[static_cast<std::size_t>(pp::detail::pass_index(table.over, table.passes[i]))] = i;
  std::vector<int> order(size); // by start: whoever is needed comes first
  for (std::size_t i = 0; i < size; ++i)
    order[i] = static_cast<int>(i);
  std::stable_sort(order.begin(), order.end(), [&](int one, int other) {
    return table.starts[one] < table.starts[other];
  });
  std::vector<double> free(static_cast<std::size_t>(table.over.extents.devices), 0);
  double complete = 0; // the iteration before, on all devices
  for (int n = 0; n < iterations; ++n) {
    std::vector<double> ends(size, 0);
    // The first pass of a device that cannot run again holds up all after it.
    std::vector<bool> validated(free.size(), false);
    for (int const i : order) {
      pp::pass const& what = table.passes[i];
      auto const device = static_cast<std::size_t>(pp::device_of(table.over, what));
      validated[device] = validated[device] || what.kind != pp::pass_kind::forward ||
                          what.stage >= table.over.extents.devices;
      double start = free[device];
      if (n > 0 && (barrier || validated[device]))
        start = std::max(start, complete);
      pp::detail::dependency_list const needs(table.over, what);
      for (int k = 0; k < needs.count; ++k)
        start = std::max(
          start,
          ends[static_cast<std::size_t>(entry_of[static_cast<std::size_t>(needs.index(k))])]);
      free[device] = ends[static_cast<std::size_t>(i)] = start + table.ends[i] - table.starts[i];
    }
    complete = *std::max_element(ends.begin(), ends.end());
  }
  return complete;
}

template <class Schedule>
void check(pp::shape const& extents) {
  auto const table = pp::make_timetable<Schedule>({extents.devices, extents.microbatches});
  double const makespan = pp::makespan(table);
  double const period = pp::post_validated_period(table);
  CHECK(run_out(table, 4, true) == 4 * makespan);
  CHECK(period <= makespan);
  CHECK(period >= pp::span_of(table));
  // Passes that start as soon as they may are no later than those that keep the times of the table.
  double const soonest = run_out(table, 4, false);
  CHECK(soonest <= 3 * period + makespan);
  CHECK(soonest >= 3 * pp::span_of(table) + makespan - period);
}

} // namespace

TEST_CASE("iterations that validate afterwards follow each other after the span, or the totals") {
  for (int devices = 1; devices <= 6; ++devices)
    for (int microbatches = devices; microbatches <= 4 * devices; ++microbatches) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      pp::shape const extents{devices, microbatches};
      check<pp::OneFOneB>(extents);
      check<pp::GPipe>(extents);
      check<pp::ZeroBubbleH1>(extents);
      check<pp::ZeroBubbleH2>(extents);
      check<pp::ZeroBubbleV>(extents);
      check<pp::Interleaved<2>>(extents);
    }
}

TEST_CASE("no barrier saves ZeroBubbleH2 all of its bubble, and 1F1B nothing") {
  for (int devices = 2; devices <= 8; ++devices)
    for (int microbatches = 2 * devices; microbatches <= 4 * devices; ++microbatches) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      auto const h2 = pp::make_timetable<pp::ZeroBubbleH2>({devices, microbatches});
      CHECK(pp::makespan(h2) == 3 * microbatches + devices - 1);
      CHECK(pp::post_validated_period(h2) == 3 * microbatches);
      CHECK(run_out(h2, 5, false) == 5 * 3 * microbatches + devices - 1);
      auto const plain = pp::make_timetable<pp::OneFOneB>({devices, microbatches});
      CHECK(pp::post_validated_period(plain) == pp::makespan(plain));
      CHECK(run_out(plain, 5, false) == 5 * pp::makespan(plain));
    }
}
