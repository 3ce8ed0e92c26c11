// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

namespace {

static_assert(pp::verify(pp::timetable<pp::Seq1F1BInterleaved<2, 3>, 8, 7>));

void check_laws(int held, int chunks, int stagger) {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 1; microbatches <= 30; ++microbatches) {
      auto const table = pp::make_timetable(
        pp::Seq1F1BInterleaved<>{
          .stages_per_device = held, .chunks = chunks, .group = 0, .stagger = stagger},
        {devices, microbatches},
        pp::uniform_cost{10, 12, 8});
      int const units = microbatches * chunks;
      int const short_of = std::max(devices - units, 0);
      CHECK(pp::span_of(table) - 30 * held * units ==
            30 * (devices - 1) + 30 * (held - 1) * short_of);
      if (short_of > 0)
        continue;
      int groups = microbatches; // the most groups of whole sequences with at least P units each
      while (microbatches / groups * chunks < devices)
        --groups;
      int const largest = (microbatches + groups - 1) / groups * chunks;
      for (int device = 0; device < devices; ++device)
        CHECK(pp::peak_activation_chunks(table, device) ==
              std::min((held - 1) * largest + chunks - 1 + stagger * (devices - 1 - device) + 1,
                       held * units));
    }
}

} // namespace

TEST_CASE("Seq1F1B interleaved keeps every rule and its closed forms for any P, M, V and C") {
  for (int held = 1; held <= 4; ++held)
    for (int chunks = 1; chunks <= 6; ++chunks)
      check_laws(held, chunks, 2);
  check_laws(2, 3, 1);
  check_laws(3, 4, 1);
}

TEST_CASE("Seq1F1B interleaved takes groups of any size") {
  for (int devices = 1; devices <= 7; ++devices)
    for (int microbatches = 1; microbatches <= 11; ++microbatches)
      for (int group = 1; group <= microbatches; ++group)
        for (int chunks = 2; chunks <= 4; ++chunks) {
          auto const table = pp::make_timetable(
            pp::Seq1F1BInterleaved<>{.stages_per_device = 3, .chunks = chunks, .group = group},
            {devices, microbatches});
          if (group * chunks >= devices)
            CHECK(pp::span_of(table) == 3 * (3 * chunks * microbatches + devices - 1));
        }
}

TEST_CASE("latency adds 2 c (V P - 1) to Seq1F1B interleaved, whatever M") {
  for (int held = 2; held <= 4; ++held)
    for (int chunks = 1; chunks <= 6; ++chunks)
      for (int size = 1; size <= 3; ++size)
        for (int rounds = 1; rounds <= 4; ++rounds) {
          int const devices = size * chunks;
          int const microbatches = size * rounds;
          double const latency = 1;
          if (devices == 1)
            continue;
          auto const table = pp::make_timetable(
            pp::Seq1F1BInterleaved<>{.stages_per_device = held, .chunks = chunks},
            {devices, microbatches},
            pp::uniform_cost{10, 12, 8, latency});
          CHECK(pp::span_of(table) - 30 * held * microbatches * chunks ==
                30 * (devices - 1) + 2 * latency * (held * devices - 1));
        }
}

TEST_CASE("one chunk is interleaved 1F1B, one stage per device is Seq1F1B") {
  CHECK(pp::make_timetable<pp::Seq1F1BInterleaved<3, 1>>({6, 13}).passes ==
        pp::make_timetable<pp::Interleaved<3>>({6, 13}).passes);
  CHECK(pp::make_timetable<pp::Seq1F1BInterleaved<1, 4, 0, 1>>({6, 13}).passes ==
        pp::make_timetable<pp::Seq1F1B<4>>({6, 13}).passes);
  CHECK(pp::make_timetable<pp::Seq1F1BInterleaved<1, 4>>({6, 13}).passes ==
        pp::make_timetable<pp::EagerSeq1F1B<4>>({6, 13}).passes);
}
