// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/hanayo.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

//! What the order is held against: the makespan of a list schedule. A device that is free runs what
//! is there, backward passes first, then the oldest microbatch; at most P are under way.
double list_makespan(pp::shape const& extents, double forward, double backward) {
  int const all = extents.stages();
  struct standing {
    int done = 0; // passes of this microbatch
    double ready = 0;
  };
  std::vector<standing> of(static_cast<std::size_t>(extents.microbatches));
  std::vector<double> free_from(static_cast<std::size_t>(extents.devices));
  double makespan = 0;
  for (int left = 2 * all * extents.microbatches; left > 0; --left) {
    standing* chosen = nullptr;
    double* where = nullptr;
    double start = 0;
    int under_way = 0;
    for (standing& one : of) {
      if (one.done == 2 * all)
        continue;
      if (++under_way > extents.devices)
        break;
      int const stage = one.done < all ? one.done : 2 * all - 1 - one.done;
      double& at = free_from[static_cast<std::size_t>(pp::device_of(extents, stage))];
      double const earliest = std::max(at, one.ready);
      bool const first = one.done >= all && chosen != nullptr && chosen->done < all;
      if (chosen == nullptr || earliest < start || (earliest == start && first)) {
        chosen = &one;
        where = &at;
        start = earliest;
      }
    }
    REQUIRE(chosen != nullptr);
    double const end = start + (chosen->done++ < all ? forward : backward);
    chosen->ready = *where = end;
    makespan = std::max(makespan, end);
  }
  return makespan;
}

} // namespace

TEST_CASE("Hanayo's bubble and peaks follow their laws at random costs") {
  std::mt19937 random(20230828);
  for (int waves = 1; waves <= 3; ++waves)
    for (int devices = 1; devices <= 9; ++devices)
      for (int blocks = 1; blocks <= 4; ++blocks)
        for (int trial = 0; trial < 4; ++trial) {
          // Eighths, whose sums are exact.
          double const forward = static_cast<double>(1 + random() % 64) / 8;
          double const half = forward / 2 + static_cast<double>(random() % 32) / 8;
          auto const table = pp::make_timetable(pp::Hanayo<>{waves},
                                                {devices, blocks * devices},
                                                pp::uniform_cost{forward, half, half});
          CAPTURE(waves);
          CAPTURE(devices);
          CAPTURE(blocks);
          double const bubble =
            2 * (devices - 1) * (2 * half + (blocks - 1) * (2 * half - forward));
          for (int device = 0; device < devices; ++device) {
            CHECK(pp::makespan(table) - pp::busy(table, device) == bubble);
            CHECK(pp::peak_activation_chunks(table, device) ==
                  2 * waves * devices - (devices - 1 - device));
          }
        }
}

TEST_CASE("Hanayo is no longer than a list schedule that runs what is there") {
  for (int waves = 1; waves <= 2; ++waves)
    for (int devices = 1; devices <= 7; ++devices)
      for (int blocks = 1; blocks <= 4; ++blocks)
        for (double const backward : {1.0, 1.5, 2.0, 3.0}) {
          auto const table = pp::make_timetable(pp::Hanayo<>{waves},
                                                {devices, blocks * devices},
                                                pp::uniform_cost{1, backward / 2, backward / 2});
          double const list = list_makespan(table.over.extents, 1, backward);
          CHECK(pp::makespan(table) <= list);
          if (backward == 1)
            CHECK(pp::makespan(table) == list);
        }
}

TEST_CASE("Hanayo refuses to have no wave") {
  CHECK_THROWS_WITH_AS((void)pp::make_timetable(pp::Hanayo<>{0}, {4, 8}),
                       "Hanayo: there is at least one wave, and at most 32767",
                       std::invalid_argument);
}

TEST_CASE("a stage of another device, and a backward before its forward, are found") {
  auto broken = pp::make_timetable(pp::Hanayo<2>{}, {4, 8});
  REQUIRE(pp::verify(broken));
  SUBCASE("another device") { // the second leg comes up the devices
    auto const pass = std::find_if(
      broken.passes.begin(), broken.passes.end(), [](pp::pass what) { return what.stage == 7; });
    pass->stage = 4;
    CHECK(pp::verify(broken).broken == pp::report::rule::wrong_device);
  }
  SUBCASE("backward before forward") {
    auto const pass = std::find_if(broken.passes.begin(), broken.passes.end(), [](pp::pass what) {
      return what.kind == pp::pass_kind::backward;
    });
    std::swap(pass[0], pass[-1]);
    CHECK(pp::verify(broken).broken == pp::report::rule::before_dependency);
  }
}
