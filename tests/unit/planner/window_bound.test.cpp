// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A bound from windows is no longer than the shortest order, which an exact search has.
#include <pipe/flow/shape.hpp>
#include <pipe/planner/search/bounds.hpp>
#include <pipe/planner/search/exact.hpp>
#include <pipe/planner/search/window_bound.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>

#include <doctest/doctest.h>

#include <random>

namespace pp = pipelining;

TEST_CASE("no order of a small pipeline beats the bound, which is above the others in some") {
  std::mt19937 random(7);
  auto const below = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  int better = 0;
  int met = 0;
  for (int round = 0; round < 400; ++round) {
    pp::shape const extents{.devices = below(1, 4), .microbatches = below(1, 6)};
    int const limit = below(1, extents.devices);
    pp::cost_table cost(extents, {.communication = static_cast<double>(below(0, 3))});
    for (int stage = 0; stage < extents.devices; ++stage)
      for (pp::pass_kind const kind :
           {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight})
        cost.set(kind, stage, 0, below(1, 6));
    pp::exact_order const order = pp::shortest_order(extents, cost, {.memory_limit = limit});
    REQUIRE(order.optimal);
    double const bound = pp::detail::least_in_windows({extents}, cost, limit);
    CAPTURE(round);
    CHECK(bound <= order.makespan * (1 + 1e-12));
    double const other =
      pp::least_times({extents}, cost, {.memory_limit = static_cast<double>(limit)})
        .makespan.least();
    better += bound > other * (1 + 1e-9) ? 1 : 0;
    met += bound > other * (1 + 1e-9) && bound >= order.makespan * (1 - 1e-9) ? 1 : 0;
  }
  CHECK(better >= 10);
  CHECK(met >= 3);
}

// 700 is the optimum of the first, as CP-SAT proves. Numbers come from a second program, in Python.
TEST_CASE("windows of 8 devices that hold 6 microbatches") {
  pp::uniform_cost const cost{10, 12, 8, 1};
  auto const least = [&](int microbatches) {
    return pp::detail::least_in_windows({{.devices = 8, .microbatches = microbatches}}, cost, 6);
  };
  CHECK(least(16) == 684);
  CHECK(least(32) == 1218);
}

TEST_CASE("pipelines that the bound does not know have none") {
  pp::uniform_cost const cost;
  CHECK(pp::detail::least_in_windows({{.devices = 2, .microbatches = 4, .chunks = 2}}, cost, 2) ==
        0);
  CHECK(pp::detail::least_in_windows(
          {{.devices = 2, .microbatches = 4, .stages_per_device = 2}}, cost, 2) == 0);
  pp::shape const extents{.devices = 2, .microbatches = 4};
  pp::cost_table unlike = pp::cost_table(extents, cost).by_microbatch(4);
  CHECK(pp::detail::least_in_windows({extents}, unlike, 2) > 0);
  unlike.set(pp::pass{.microbatch = 2}, 3);
  CHECK(pp::detail::least_in_windows({extents}, unlike, 2) == 0);
}
