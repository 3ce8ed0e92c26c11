// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/cut/sequence_partition.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

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

TEST_CASE("GPipe over chunks of any times takes their sum and P - 1 times the longest, both ways") {
  std::mt19937 random(7);
  auto const draw = [&random] { return static_cast<double>(1 + random() % 20); };
  for (int devices = 1; devices <= 5; ++devices)
    for (int microbatches = 1; microbatches <= 4; ++microbatches)
      for (int chunks = 1; chunks <= 5; ++chunks) {
        pp::GPipeChunked<> const schedule{chunks};
        double const latency = random() % 2 == 0 ? 0 : 3;
        pp::cost_table cost(schedule.arrange(devices, microbatches), {.communication = latency});
        double sum = 0;
        double longest[] = {0, 0};
        for (int chunk = 0; chunk < chunks; ++chunk) {
          double const forward = draw();
          double const halves[] = {draw(), draw()};
          for (int stage = 0; stage < devices; ++stage) {
            cost.set(pp::pass_kind::forward, stage, chunk, forward);
            cost.set(pp::pass_kind::backward_input, stage, chunk, halves[0]);
            cost.set(pp::pass_kind::backward_weight, stage, chunk, halves[1]);
          }
          sum += forward + halves[0] + halves[1];
          longest[0] = std::max(longest[0], forward);
          longest[1] = std::max(longest[1], halves[0] + halves[1]);
        }
        auto const table = pp::make_timetable(schedule, {devices, microbatches}, cost);
        CHECK(pp::makespan(table) ==
              microbatches * sum + (devices - 1) * (longest[0] + longest[1] + 2 * latency));
        CHECK(pp::peak_activations(table) == pp::ratio{microbatches, 1});
      }
}

TEST_CASE("the slices of TeraPipe take GPipe over chunks the least time of all cuts") {
  int const tokens = 9;
  auto const slice = [](int length, int prefix) {
    return 2.0 + 3.0 * length + 0.5 * length * (2 * prefix + length);
  };
  auto const makespan = [&](std::vector<int> const& lengths, int devices) {
    pp::GPipeChunked<> const schedule{static_cast<int>(lengths.size())};
    auto const time = [&](pp::pass_kind kind, int length, int prefix) {
      return kind == pp::pass_kind::backward_weight ? 0 : slice(length, prefix);
    };
    pp::pipeline_size const size{devices, 1};
    return pp::makespan(pp::make_timetable(
      schedule, size, pp::chunk_costs(schedule.arrange(devices, 1), lengths, time)));
  };
  for (int devices = 1; devices <= 4; ++devices) {
    double least = std::numeric_limits<double>::infinity();
    for (unsigned cuts = 0; cuts < 1U << (tokens - 1); ++cuts) { // after which tokens
      std::vector<int> lengths{1};
      for (int token = 1; token < tokens; ++token)
        if ((cuts >> (token - 1) & 1U) != 0)
          lengths.push_back(1);
        else
          ++lengths.back();
      least = std::min(least, makespan(lengths, devices));
    }
    CHECK(makespan(pp::shortest_slices(tokens, devices, slice), devices) == least);
  }
}
