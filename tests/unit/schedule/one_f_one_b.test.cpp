// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

TEST_CASE("1F1B keeps every rule and its closed forms") {
  for (int devices = 1; devices <= 16; ++devices)
    for (int microbatches = 1; microbatches <= 40; ++microbatches) {
      auto const table =
        pp::make_timetable<pp::OneFOneB>({devices, microbatches}, pp::uniform_cost{10, 12, 8});
      CHECK(pp::span_of(table) == microbatches * 30 + (devices - 1) * 30);
      CHECK(pp::makespan(table) == pp::span_of(table));
      for (int device = 0; device < devices; ++device)
        CHECK(pp::peak_activations(table, device) ==
              pp::ratio{std::min(devices - device, microbatches), 1});
    }
}

TEST_CASE("latency makes the bubble of 1F1B grow with the microbatches") {
  // bubble = (P - 1)(F + B) + 2 c (P - 1) M / P + 2 c (P - 2) when P divides M
  for (int devices = 2; devices <= 8; ++devices)
    for (int rounds = 1; rounds <= 6; ++rounds) {
      int const microbatches = devices * rounds;
      double const latency = 1;
      auto const table = pp::make_timetable<pp::OneFOneB>({devices, microbatches},
                                                          pp::uniform_cost{10, 10, 10, latency});
      CHECK(pp::span_of(table) - microbatches * 30 == (devices - 1) * 30 +
                                                        2 * latency * (devices - 1) * rounds +
                                                        2 * latency * (devices - 2));
    }
}
