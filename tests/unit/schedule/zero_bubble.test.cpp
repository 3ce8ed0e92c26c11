// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

namespace {

void check_peak_everywhere(pp::timetable_view table, int peak) {
  for (int device = 0; device < table.over.extents.devices; ++device)
    CHECK(pp::peak_activation_chunks(table, device) == peak);
}

} // namespace

TEST_CASE("ZB-H1 keeps every rule and its closed forms") {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 1; microbatches <= 30; ++microbatches)
      for (double const latency : {0.0, 1.0}) {
        auto const table = pp::make_timetable<pp::ZeroBubbleH1>(
          {devices, microbatches}, pp::uniform_cost{10, 12, 8, latency});
        check_peak_everywhere(table, std::min(devices, microbatches));
        if (microbatches < (latency > 0 ? 2 * devices : devices))
          continue;
        CHECK(pp::span_of(table) - 30 * microbatches ==
              (devices - 1) * (10 + 12 - 8 + 4 * latency));
        CHECK(pp::makespan(table) == pp::span_of(table));
      }
}

TEST_CASE("ZB-H2 keeps every rule and its closed forms") {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 1; microbatches <= 30; ++microbatches)
      for (double const latency : {0.0, 1.0})
        for (double const weight : {8.0, 12.0}) {
          double const busy = (22 + weight) * microbatches;
          auto const table = pp::make_timetable<pp::ZeroBubbleH2>(
            {devices, microbatches}, pp::uniform_cost{10, 12, weight, latency});
          check_peak_everywhere(table, std::min(2 * devices - 1, microbatches));
          if (microbatches < 2 * devices - 1 || weight > 10)
            continue;
          double const bubble = (devices - 1) * (10 + 12 + 2 * latency - 2 * weight);
          CHECK(pp::span_of(table) - busy == std::max(0.0, bubble));
          CHECK(pp::makespan(table) - busy == std::max(bubble, (devices - 1) * (10 + latency)));
        }
}
