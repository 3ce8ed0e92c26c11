// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/gpipe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <string>
#include <tests/support/golden_figures.hpp>

namespace pp = pipelining;

TEST_CASE("GPipe keeps every rule and its closed forms") {
  double const forward = 10;
  double const backward = 20;
  for (double const latency : {0.0, 3.0})
    for (int devices = 1; devices <= 16; ++devices)
      for (int microbatches = 1; microbatches <= 40; ++microbatches) {
        auto const table = pp::make_timetable<pp::GPipe>({devices, microbatches},
                                                         pp::uniform_cost{forward, 12, 8, latency});
        double const busy = microbatches * (forward + backward);
        CHECK(pp::span_of(table) - busy == (devices - 1) * (forward + backward + 2 * latency));
        CHECK(pp::makespan(table) == pp::span_of(table));
        CHECK(pp::peak_activations(table) == pp::ratio{microbatches, 1});
      }
}

TEST_CASE("GPipe has the figures and orders of the references") {
  std::string const figures = "golden/one_f_one_b/figures.txt";
  int compared = 0;
  for (auto const& expected : support::golden_figures(figures, true, 2))
    if (expected.name == "gpipe") {
      support::check_figures(
        pp::GPipe{}, {expected.key[0], expected.key[1]}, expected, support::golden_costs(figures));
      ++compared;
    }
  CHECK(compared == 24);
  for (auto const& expected : support::golden_orders("golden/one_f_one_b/orders.txt", true, 2))
    if (expected.name == "gpipe") {
      support::check_order(pp::GPipe{}, {expected.key[0], expected.key[1]}, expected);
      ++compared;
    }
  CHECK(compared == 24 + 24);
}
