// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

static_assert(pp::verify(pp::timetable<pp::BreadthFirst<3>, 8, 11>));

TEST_CASE("the breadth-first schedule keeps every rule and its closed forms") {
  for (double const latency : {0.0, 1.0, 7.0})
    for (int held = 1; held <= 4; ++held)
      for (int devices = 1; devices <= 12; ++devices)
        for (int microbatches = 1; microbatches <= 30; ++microbatches) {
          auto const table = pp::make_timetable(pp::BreadthFirst<>{held},
                                                {devices, microbatches},
                                                pp::uniform_cost{10, 12, 8, latency});
          for (int device = 0; device < devices; ++device)
            CHECK(pp::peak_activation_chunks(table, device) == held * microbatches);
          CHECK(pp::makespan(table) == pp::span_of(table));
          // On its next stage device 0 waits for the last device, which ends the first microbatch
          // after P passes and P messages.
          double const messages = devices > 1 ? latency * devices : 0;
          int const short_of = devices - microbatches;
          double const hand_over =
            std::max(0.0, 10 * short_of + messages) + std::max(0.0, 20 * short_of + messages);
          CHECK(pp::span_of(table) - 30 * held * microbatches ==
                (30 + 2 * latency) * (devices - 1) + hand_over * (held - 1));
        }
}

TEST_CASE("no stages per device are refused") {
  CHECK_THROWS_WITH(pp::make_timetable(pp::BreadthFirst<>{}, {5, 7}),
                    "BreadthFirst: a device holds at least one stage");
}
