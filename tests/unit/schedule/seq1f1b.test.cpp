// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

namespace {

static_assert(pp::verify(pp::timetable<pp::EagerSeq1F1B<4>, 8, 32>));
static_assert(pp::verify(pp::timetable<pp::Seq1F1BZeroBubbleH1<4>, 8, 32>));
static_assert(pp::verify(pp::timetable<pp::Seq1F1BZeroBubbleH2<4>, 8, 32>));
static_assert(pp::peak_activations(pp::timetable<pp::Seq1F1BZeroBubbleH2<4>, 8, 32>) ==
              pp::ratio{18, 4});

void check_peaks(pp::timetable_view table, int everywhere) {
  int const all = table.over.extents.units();
  for (int device = 0; device < table.over.extents.devices; ++device)
    CHECK(pp::peak_activation_chunks(table, device) == std::min(everywhere, all));
}

} // namespace

TEST_CASE("Seq1F1B keeps every rule and its closed forms") {
  for (int devices = 1; devices <= 16; ++devices)
    for (int microbatches = 1; microbatches <= 40; ++microbatches)
      for (int chunks = 1; chunks <= 8; ++chunks) {
        auto const table = pp::make_timetable(
          pp::Seq1F1B<>{.chunks = chunks}, {devices, microbatches}, pp::uniform_cost{10, 12, 8});
        CHECK(pp::span_of(table) == microbatches * chunks * 30 + (devices - 1) * 30);
        int const held = std::min(devices + chunks - 1, microbatches * chunks);
        CHECK(pp::peak_activations(table) == pp::ratio{held, chunks});
      }
}

TEST_CASE("one chunk is 1F1B") {
  auto const whole = pp::make_timetable<pp::OneFOneB>({6, 13});
  auto const chunked = pp::make_timetable<pp::Seq1F1B<1>>({6, 13});
  CHECK(whole.passes == chunked.passes);
  CHECK(whole.ends == chunked.ends);
}

TEST_CASE("a number of chunks that is known only at run time gives the same order") {
  auto const fixed = pp::make_timetable<pp::Seq1F1B<3>>({5, 7});
  auto const free = pp::make_timetable(pp::Seq1F1B<>{.chunks = 3}, {5, 7});
  CHECK(fixed.passes == free.passes);
  CHECK_THROWS_WITH(pp::make_timetable(pp::Seq1F1B<>{.chunks = 0}, {5, 7}),
                    "shape: the number of chunks must be at least 1");
}

TEST_CASE("eager Seq1F1B keeps every rule and its closed forms") {
  for (double const latency : {0.0, 1.0, 15.0})
    for (int devices = 1; devices <= 12; ++devices)
      for (int microbatches = 1; microbatches <= 30; ++microbatches)
        for (int chunks = 1; chunks <= 6; ++chunks) {
          auto const table = pp::make_timetable(pp::EagerSeq1F1B<>{.chunks = chunks},
                                                {devices, microbatches},
                                                pp::uniform_cost{10, 12, 8, latency});
          int const units = microbatches * chunks;
          CHECK(pp::span_of(table) - 30 * units == (devices - 1) * (30 + 2 * latency));
          for (int device = 0; device < devices; ++device)
            CHECK(pp::peak_activation_chunks(table, device) ==
                  std::min(2 * (devices - device) + chunks - 2, units));
        }
}

TEST_CASE("latency makes the bubble of Seq1F1B grow with the units, that of the eager one not") {
  // 2 c ((P - 1) n / P + P - 1 - C + floor(C / P)) when P divides the number of units n
  for (double const latency : {1.0, 3.0})
    for (int devices = 2; devices <= 12; ++devices)
      for (int microbatches = 1; microbatches <= 30; ++microbatches)
        for (int chunks = 1; chunks <= 6; ++chunks) {
          int const units = microbatches * chunks;
          if (units % devices != 0 || units < devices + chunks)
            continue;
          pp::pipeline_size const size{devices, microbatches};
          pp::uniform_cost const cost{10, 12, 8, latency};
          auto const table = pp::make_timetable(pp::Seq1F1B<>{.chunks = chunks}, size, cost);
          int const waits =
            (devices - 1) * units / devices + devices - 1 - chunks + chunks / devices;
          CHECK(pp::span_of(table) - 30 * units == 30 * (devices - 1) + 2 * latency * waits);
          auto const eager = pp::make_timetable(pp::EagerSeq1F1B<>{.chunks = chunks}, size, cost);
          CHECK(pp::span_of(eager) <= pp::span_of(table));
        }
}

TEST_CASE("Seq1F1B with the split of ZB-H1 keeps every rule and its closed forms") {
  for (double const latency : {0.0, 1.0, 3.0})
    for (int devices = 1; devices <= 12; ++devices)
      for (int microbatches = 1; microbatches <= 30; ++microbatches)
        for (int chunks = 1; chunks <= 6; ++chunks) {
          auto const table = pp::make_timetable(pp::Seq1F1BZeroBubbleH1<>{.chunks = chunks},
                                                {devices, microbatches},
                                                pp::uniform_cost{10, 12, 8, latency});
          int const units = microbatches * chunks;
          check_peaks(table, devices + chunks - 1);
          if (units < (latency > 0 ? 2 : 1) * devices + chunks - 1)
            continue;
          CHECK(pp::span_of(table) - 30 * units == (devices - 1) * (10 + 12 - 8 + 4 * latency));
          CHECK(pp::makespan(table) == pp::span_of(table));
        }
}

TEST_CASE("Seq1F1B with the split of ZB-H2 keeps every rule and its closed forms") {
  for (double const latency : {0.0, 1.0})
    for (double const weight : {8.0, 10.0})
      for (int devices = 1; devices <= 12; ++devices)
        for (int microbatches = 1; microbatches <= 30; ++microbatches)
          for (int chunks = 1; chunks <= 6; ++chunks) {
            auto const table = pp::make_timetable(pp::Seq1F1BZeroBubbleH2<>{.chunks = chunks},
                                                  {devices, microbatches},
                                                  pp::uniform_cost{10, 12, weight, latency});
            int const units = microbatches * chunks;
            check_peaks(table, 2 * devices + chunks - 2);
            if (units < 2 * devices + chunks - 2)
              continue;
            double const busy = (22 + weight) * units;
            double const bubble =
              std::max(0.0, (devices - 1) * (10 + 12 + 2 * latency - 2 * weight));
            CHECK(pp::span_of(table) - busy == bubble);
            CHECK(pp::makespan(table) - busy == std::max(bubble, (devices - 1) * (10 + latency)));
          }
}

TEST_CASE("one chunk is eager 1F1B, ZB-H1 and ZB-H2") {
  CHECK(pp::make_timetable<pp::Seq1F1BZeroBubbleH1<1>>({6, 13}).passes ==
        pp::make_timetable<pp::ZeroBubbleH1>({6, 13}).passes);
  CHECK(pp::make_timetable<pp::Seq1F1BZeroBubbleH2<1>>({6, 13}).passes ==
        pp::make_timetable<pp::ZeroBubbleH2>({6, 13}).passes);
  CHECK(pp::make_timetable<pp::EagerSeq1F1B<1>>({6, 13}).passes ==
        pp::make_timetable<pp::EagerOneFOneB>({6, 13}).passes);
}
