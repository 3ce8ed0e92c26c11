// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

TEST_CASE("interleaved zero bubble keeps every rule and its closed forms") {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 1; microbatches <= 30; ++microbatches)
      for (int held = 1; held <= 4; ++held) {
        auto const table =
          pp::make_timetable(pp::ZeroBubbleInterleaved<>{.stages_per_device = held},
                             {devices, microbatches},
                             pp::uniform_cost{10, 12, 8});
        int const groups = std::max(1, microbatches / devices);
        int const largest = (microbatches + groups - 1) / groups;
        int const peak =
          microbatches < devices ? held * microbatches : (held - 1) * largest + devices;
        for (int device = 0; device < devices; ++device)
          CHECK(pp::peak_activation_chunks(table, device) == peak);
        if (microbatches < devices)
          continue;
        CHECK(pp::span_of(table) - 30 * held * microbatches == (devices - 1) * (10 + 12 - 8));
        CHECK(pp::makespan(table) == pp::span_of(table));
      }
}

TEST_CASE("one stage per device is ZB-H1") {
  auto const whole = pp::make_timetable<pp::ZeroBubbleH1>({5, 13});
  auto const interleaved = pp::make_timetable<pp::ZeroBubbleInterleaved<1>>({5, 13});
  CHECK(whole.passes == interleaved.passes);
}

TEST_CASE("a device without stages is refused") {
  CHECK_THROWS_WITH(pp::make_timetable(pp::ZeroBubbleInterleaved<>{.stages_per_device = 0}, {3, 7}),
                    "interleaved stages: a device holds at least one stage");
}
