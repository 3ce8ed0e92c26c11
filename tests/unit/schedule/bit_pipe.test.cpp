// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/chimera.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <utility>

namespace pp = pipelining;

TEST_CASE("BitPipe's bubble and peaks follow their laws at random costs") {
  std::mt19937 random(20241019);
  for (int devices = 2; devices <= 14; devices += 2)
    for (int blocks = 1; blocks <= 4; ++blocks)
      for (int trial = 0; trial < 8; ++trial) {
        // Eighths, whose sums are exact.
        double const forward = static_cast<double>(1 + random() % 64) / 8;
        double const half = forward / 2 + static_cast<double>(random() % 32) / 8;
        auto const table = pp::make_timetable<pp::BitPipe>({devices, blocks * devices},
                                                           pp::uniform_cost{forward, half, half});
        CAPTURE(devices);
        CAPTURE(blocks);
        CAPTURE(forward);
        CAPTURE(half);
        int const outer = devices / 2 - 1;
        int const waits = outer * (outer + 4) / 4;
        double const bubble = outer * 4 * half + (blocks - 1) * 2 * waits * (forward + 2 * half);
        for (int device = 0; device < devices; ++device) {
          CHECK(pp::makespan(table) - pp::busy(table, device) == bubble);
          CHECK(pp::peak_activation_chunks(table, device) ==
                3 * devices / 2 + 1 + std::min(device, devices - 1 - device));
        }
      }
}

TEST_CASE("BitPipe refuses an odd number of devices") {
  CHECK_THROWS_AS((void)pp::make_timetable<pp::BitPipe>({3, 8}), std::invalid_argument);
}

TEST_CASE("a microbatch that takes the other V, and a backward before its forward, are found") {
  auto const table = pp::make_timetable<pp::BitPipe>({4, 8});
  REQUIRE(pp::verify(table));
  SUBCASE("the other V") { // device 0 holds stages 3 and 4 for the second half alone
    auto broken = table;
    auto const pass = std::find_if(
      broken.passes.begin(), broken.passes.end(), [](pp::pass what) { return what.stage == 3; });
    pass->microbatch = static_cast<std::uint16_t>(pass->microbatch - 4);
    CHECK(pp::verify(broken).broken == pp::report::rule::wrong_device);
  }
  SUBCASE("backward before forward") {
    auto broken = table;
    auto const pass = std::find_if(broken.passes.begin(), broken.passes.end(), [](pp::pass what) {
      return what.kind == pp::pass_kind::backward;
    });
    std::swap(pass[0], pass[-1]);
    CHECK(pp::verify(broken).broken == pp::report::rule::before_dependency);
  }
}
