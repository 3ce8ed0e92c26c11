// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

namespace {

static_assert(pp::verify(pp::timetable<pp::Interleaved<2>, 8, 35>));
static_assert(pp::peak_activation_chunks(pp::timetable<pp::Interleaved<2>, 8, 32>, 0) == 23);
static_assert(pp::peak_activation_chunks(pp::timetable<pp::Interleaved<2, 0, 1>, 8, 32>, 0) == 16);
static_assert(pp::peak_activation_chunks(pp::timetable<pp::Interleaved<2, 16>, 8, 32>, 0) == 31);

// Sizes of the groups, by trying all numbers of groups: as many as `wished` asks for, none below P.
int largest_group(int devices, int microbatches, int wished) {
  int groups = (microbatches + wished - 1) / wished;
  if (wished >= devices)
    while (groups > 1 && microbatches / groups < devices)
      --groups;
  return (microbatches + groups - 1) / groups;
}

} // namespace

TEST_CASE("interleaved 1F1B keeps every rule and its closed forms for any M") {
  for (int const stagger : {1, 2})
    for (int held = 1; held <= 4; ++held)
      for (int devices = 1; devices <= 12; ++devices)
        for (int microbatches = 1; microbatches <= 30; ++microbatches) {
          auto const table = pp::make_timetable(
            pp::Interleaved<>{.stages_per_device = held, .group = 0, .stagger = stagger},
            {devices, microbatches},
            pp::uniform_cost{10, 12, 8});
          int const short_of = std::max(devices - microbatches, 0);
          CHECK(pp::span_of(table) - 30 * held * microbatches ==
                30 * (devices - 1) + 30 * (held - 1) * short_of);
          CHECK(pp::makespan(table) == pp::span_of(table));
          if (microbatches < devices)
            continue;
          int const group = largest_group(devices, microbatches, devices);
          for (int device = 0; device < devices; ++device)
            CHECK(pp::peak_activation_chunks(table, device) ==
                  std::min((held - 1) * group + stagger * (devices - 1 - device) + 1,
                           held * microbatches));
        }
}

TEST_CASE("interleaved 1F1B takes groups of any size") {
  for (int const stagger : {1, 2})
    for (int held = 2; held <= 4; ++held)
      for (int devices = 1; devices <= 9; ++devices)
        for (int microbatches = 1; microbatches <= 22; ++microbatches)
          for (int group = 1; group <= microbatches + 1; ++group) {
            auto const table = pp::make_timetable(
              pp::Interleaved<>{.stages_per_device = held, .group = group, .stagger = stagger},
              {devices, microbatches},
              pp::uniform_cost{10, 12, 8});
            if (group < devices || microbatches < devices)
              continue;
            CHECK(pp::span_of(table) == 30 * held * microbatches + 30 * (devices - 1));
            int const largest = largest_group(devices, microbatches, group);
            CHECK(
              pp::peak_activation_chunks(table, 0) ==
              std::min((held - 1) * largest + stagger * (devices - 1) + 1, held * microbatches));
          }
}

TEST_CASE("a group smaller than P saves memory and costs time") {
  auto const usual = pp::make_timetable<pp::Interleaved<2>>({8, 24});
  auto const small = pp::make_timetable<pp::Interleaved<2, 4>>({8, 24});
  CHECK(pp::peak_activation_chunks(small, 0) < pp::peak_activation_chunks(usual, 0));
  CHECK(pp::span_of(small) > pp::span_of(usual));
}

TEST_CASE("latency adds 2 c (V P - 1) to interleaved 1F1B, whatever M") {
  for (double const latency : {1.0, 3.0})
    for (int held = 1; held <= 4; ++held)
      for (int devices = 2; devices <= 12; ++devices)
        for (int rounds = 1; rounds <= 4; ++rounds) {
          auto const table = pp::make_timetable(pp::Interleaved<>{.stages_per_device = held},
                                                {devices, devices * rounds},
                                                pp::uniform_cost{10, 12, 8, latency});
          double const bubble = pp::span_of(table) - 30 * held * devices * rounds;
          if (held > 1)
            CHECK(bubble == 30 * (devices - 1) + 2 * latency * (held * devices - 1));
          else
            CHECK(bubble == (30 + 2 * latency) * (devices - 1)); // no messages from last to first
        }
}

TEST_CASE("with stagger 1 latency adds to every round of P microbatches") {
  for (double const latency : {1.0, 3.0})
    for (int held = 2; held <= 4; ++held)
      for (int devices = 2; devices <= 12; ++devices)
        for (int rounds = 1; rounds <= 4; ++rounds) {
          auto const table = pp::make_timetable(
            pp::Interleaved<>{.stages_per_device = held, .group = 0, .stagger = 1},
            {devices, devices * rounds},
            pp::uniform_cost{10, 12, 8, latency});
          int const waits = held * devices - 1 + devices - 2 + (devices - 1) * held * (rounds - 1);
          CHECK(pp::span_of(table) - 30 * held * devices * rounds ==
                30 * (devices - 1) + 2 * latency * waits);
        }
}

TEST_CASE("one stage per device and stagger 1 is 1F1B") {
  CHECK(pp::make_timetable<pp::Interleaved<1, 0, 1>>({6, 13}).passes ==
        pp::make_timetable<pp::OneFOneB>({6, 13}).passes);
  CHECK(pp::make_timetable<pp::Interleaved<1>>({6, 13}).passes ==
        pp::make_timetable<pp::EagerOneFOneB>({6, 13}).passes);
}

TEST_CASE("parameters out of range are refused") {
  CHECK_THROWS_WITH(pp::make_timetable(pp::Interleaved<>{}, {5, 7}),
                    "interleaved stages: a device holds at least one stage");
  CHECK_THROWS_WITH(
    pp::make_timetable(pp::Interleaved<>{.stages_per_device = 2, .group = -3}, {5, 7}),
    "interleaved stages: a group has at least one microbatch; 0 stands for the "
    "smallest group without waits");
  CHECK_THROWS_WITH(
    pp::make_timetable(pp::Interleaved<>{.stages_per_device = 2, .group = 0, .stagger = 3}, {5, 7}),
    "interleaved stages: the stagger is 1 (least memory) or 2 (messages have time to travel), and "
    "gradients of weights lag by at most 2 units per device");
}
