// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/search/frontier.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <vector>

namespace pp = pipelining;

TEST_CASE("equally fast ones are told apart by memory, then by extras, then by time") {
  std::vector<pp::choice_point> points{
    {40, 10, 0}, {30, 10.008, 2}, {30, 10.009, 1}, {20, 10.02, 0}};
  CHECK(pp::memory_choice::within(points, 100).pick == 2);
  points[1].extras = 1;
  CHECK(pp::memory_choice::within(points, 100).pick == 1);
  points[0].extras = 5;
  CHECK(pp::memory_choice::within(points, 100).pick == 1);
  points[1].memory = points[2].memory = 41;
  CHECK(pp::memory_choice::within(points, 100).pick == 0);
  CHECK(pp::memory_choice::within(points, 39).pick == 3);
  CHECK_FALSE(pp::memory_choice::within(points, 19).pick);
  CHECK(pp::memory_choice::within(points, 19).faster == 3);
}

TEST_CASE("nothing that fits is faster by more than 0.1 %, or as fast in less memory") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<pp::choice_point> points(1 + random() % 12);
    for (pp::choice_point& each : points)
      each = {static_cast<double>(1 + random() % 6),
              1 + 0.0004 * static_cast<double>(random() % 8),
              static_cast<int>(random() % 3)};
    double const limit = static_cast<double>(random() % 7);
    auto const pick = pp::memory_choice::within(points, limit).pick;
    double fastest = 1e9;
    for (pp::choice_point const& each : points)
      fastest = each.memory <= limit && each.time < fastest ? each.time : fastest;
    REQUIRE(pick.has_value() == (fastest < 1e9));
    if (!pick)
      continue;
    pp::choice_point const best = points[*pick];
    CHECK(best.memory <= limit);
    CHECK(best.time <= fastest * 1.001);
    for (pp::choice_point const& each : points)
      if (each.memory <= limit && each.time <= fastest * 1.001) {
        CHECK(best.memory <= each.memory);
        if (each.memory == best.memory)
          CHECK(best.extras <= each.extras);
      }
  }
}
