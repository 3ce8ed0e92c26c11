// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/chimera.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace pp = pipelining;

TEST_CASE("Chimera's bubble and peaks follow their laws at random costs") {
  std::mt19937 random(20210707);
  for (int devices = 2; devices <= 12; devices += 2)
    for (int blocks = 1; blocks <= 5; ++blocks)
      for (int trial = 0; trial < 8; ++trial) {
        // Eighths, whose sums are exact.
        double const forward = static_cast<double>(1 + random() % 64) / 8;
        double const half = forward / 2 + static_cast<double>(random() % 32) / 8;
        double const backward = 2 * half;
        auto const table = pp::make_timetable<pp::Chimera>({devices, blocks * devices},
                                                           pp::uniform_cost{forward, half, half});
        CAPTURE(devices);
        CAPTURE(blocks);
        CAPTURE(forward);
        CAPTURE(backward);
        double const bubble =
          (devices / 2 - 1) * (2 * backward + 2 * (blocks - 1) * (backward - forward));
        for (int device = 0; device < devices; ++device) {
          CHECK(pp::makespan(table) - pp::busy(table, device) == bubble);
          int const from_outside = std::min(device, devices - 1 - device);
          CHECK(pp::peak_activations(table, device) ==
                pp::ratio{devices / 2 + 1 + from_outside, 1});
        }
      }
}

TEST_CASE("Chimera refuses an odd number of devices") {
  CHECK_THROWS_WITH(pp::make_timetable<pp::Chimera>({3, 8}),
                    "Chimera, BitPipe: the number of devices must be even, because device d and "
                    "device P - 1 - d hold the same stages");
}

TEST_CASE("Chimera with several stages per device follows the same laws") {
  std::mt19937 random(20210708);
  for (int held = 1; held <= 4; ++held)
    for (int devices = 2; devices <= 10; devices += 2) {
      for (int blocks = 1; blocks <= 4; ++blocks)
        for (int trial = 0; trial < 4; ++trial) {
          double const forward = static_cast<double>(1 + random() % 64) / 8;
          double const half = forward / 2 + static_cast<double>(random() % 32) / 8;
          auto const table = pp::make_timetable(pp::ChimeraWaves<>{held},
                                                {devices, blocks * devices},
                                                pp::uniform_cost{forward, half, half});
          CAPTURE(held);
          CAPTURE(devices);
          CAPTURE(blocks);
          double const bubble =
            (devices / 2 - 1) * (4 * half + 2 * (blocks - 1) * (2 * half - forward));
          for (int device = 0; device < devices; ++device) {
            CHECK(pp::makespan(table) - pp::busy(table, device) == bubble);
            CHECK(pp::peak_activation_chunks(table, device) ==
                  held * devices - devices / 2 + 1 + std::min(device, devices - 1 - device));
          }
        }
      for (int microbatches = 1; microbatches <= 20; ++microbatches)
        CHECK(pp::verify(
          pp::make_timetable(pp::ChimeraWaves<>{held}, {devices, microbatches}, {2, 3, 1, 0.5})));
    }
}
