// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

static_assert(pp::verify(pp::timetable<pp::EagerOneFOneB, 8, 32>));
static_assert(pp::peak_activations(pp::timetable<pp::EagerOneFOneB, 8, 32>) == pp::ratio{15, 1});

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

TEST_CASE("eager 1F1B keeps every rule and its closed forms") {
  // 2 latency <= F + B is the border up to which messages hide
  for (double const latency : {0.0, 1.0, 15.0})
    for (int devices = 1; devices <= 16; ++devices)
      for (int microbatches = 1; microbatches <= 40; ++microbatches) {
        auto const table = pp::make_timetable<pp::EagerOneFOneB>(
          {devices, microbatches}, pp::uniform_cost{10, 12, 8, latency});
        CHECK(pp::span_of(table) == 30 * microbatches + (devices - 1) * (30 + 2 * latency));
        CHECK(pp::makespan(table) == pp::span_of(table));
        for (int device = 0; device < devices; ++device)
          CHECK(pp::peak_activations(table, device) ==
                pp::ratio{std::min(2 * (devices - device) - 1, microbatches), 1});
      }
}

TEST_CASE("beyond the border eager 1F1B waits in every round") {
  auto const bubble = [](int microbatches) {
    auto const table =
      pp::make_timetable<pp::EagerOneFOneB>({4, microbatches}, pp::uniform_cost{10, 12, 8, 16});
    return pp::span_of(table) - 30 * microbatches;
  };
  CHECK(bubble(16) > 3 * (30 + 2 * 16));
  CHECK(bubble(64) > bubble(16));
}
