// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

static_assert(pp::verify(pp::timetable<pp::Grouped<3>, 8, 32>));
static_assert(pp::peak_activations(pp::timetable<pp::Grouped<3>, 8, 32>) == pp::ratio{24, 1});

TEST_CASE("kFkB keeps every rule and its closed forms") {
  for (int group = 1; group <= 8; ++group)
    for (int devices = 1; devices <= 12; ++devices)
      for (int microbatches = 1; microbatches <= 30; ++microbatches) {
        auto const table = pp::make_timetable(
          pp::Grouped<>{group}, {devices, microbatches}, pp::uniform_cost{10, 12, 8});
        CHECK(pp::span_of(table) == 30 * microbatches + (devices - 1) * 30);
        CHECK(pp::makespan(table) == pp::span_of(table));
        for (int device = 0; device < devices; ++device)
          CHECK(pp::peak_activations(table, device) ==
                pp::ratio{std::min(group * (devices - device), microbatches), 1});
      }
}

TEST_CASE("kFkB hides messages of (K - 1)(F + B) / 2") {
  for (int group = 1; group <= 5; ++group)
    for (int devices = 1; devices <= 12; ++devices)
      for (int groups = 1; groups <= 6; ++groups)
        for (double const latency : {0.5, 1.0, 15.0 * (group - 1)}) {
          if (latency > 15.0 * (group - 1))
            continue;
          auto const table = pp::make_timetable(
            pp::Grouped<>{group}, {devices, group * groups}, pp::uniform_cost{10, 12, 8, latency});
          CHECK(pp::span_of(table) == 30 * group * groups + (devices - 1) * (30 + 2 * latency));
        }
}

TEST_CASE("groups of one are 1F1B, one group is GPipe") {
  CHECK(pp::make_timetable<pp::Grouped<1>>({6, 13}).passes ==
        pp::make_timetable<pp::OneFOneB>({6, 13}).passes);
  CHECK(pp::make_timetable<pp::Grouped<13>>({6, 13}).passes ==
        pp::make_timetable<pp::GPipe>({6, 13}).passes);
  CHECK(pp::make_timetable<pp::Grouped<1000000000>>({6, 13}).passes ==
        pp::make_timetable<pp::GPipe>({6, 13}).passes);
}

TEST_CASE("a group of no microbatches is refused") {
  CHECK_THROWS_WITH(pp::make_timetable(pp::Grouped<>{0}, {5, 7}),
                    "Grouped: a group has at least one microbatch");
  CHECK_THROWS_WITH(pp::make_timetable(pp::Grouped<>{}, {5, 7}),
                    "Grouped: a group has at least one microbatch");
}
