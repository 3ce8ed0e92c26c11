// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/svpp.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace pp = pipelining;

namespace {

static_assert(pp::verify(pp::timetable<pp::SVPP<2, 4>, 4, 8>));
static_assert(pp::span_of(pp::timetable<pp::SVPP<2, 4>, 4, 8>) == 195);
static_assert(pp::peak_activations(pp::timetable<pp::SVPP<2, 4, 8>, 4, 8>) == pp::ratio{8, 4});

} // namespace

TEST_CASE("SVPP's bubble and peak follow their laws at random times") {
  std::mt19937 random(2503);
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 1; microbatches <= 16; ++microbatches)
      for (int held = 1; held <= 4; ++held)
        for (int chunks = 1; chunks <= 6; ++chunks) {
          if (microbatches * chunks < devices + chunks - 1)
            continue;
          double const weight = static_cast<double>(1 + random() % 64) / 8;
          double const forward = weight + static_cast<double>(random() % 64) / 8;
          double const input = weight + static_cast<double>(random() % 64) / 8;
          auto const table =
            pp::make_timetable(pp::SVPP<>{.stages_per_device = held, .chunks = chunks},
                               {devices, microbatches},
                               pp::uniform_cost{forward, input, weight});
          CAPTURE(devices);
          CAPTURE(microbatches);
          CAPTURE(held);
          CAPTURE(chunks);
          int const group = (devices + chunks - 1) / chunks;
          int const left = microbatches % group == 0 ? group : microbatches % group;
          double const work = held * microbatches * chunks * (forward + input + weight);
          double const bubble = (devices - 1) * (forward + input - weight);
          if (left * chunks >= devices || microbatches <= group || held == 1) {
            CHECK(pp::span_of(table) - work == bubble);
            CHECK(pp::makespan(table) - work == bubble);
          } else
            CHECK(pp::span_of(table) - work >= bubble);
          int const most = (held - 1) * group * chunks + devices + chunks - 1;
          if (devices % chunks == 0 || chunks % devices == 0)
            CHECK(most == held * std::max(devices, chunks) + std::min(devices, chunks) - 1);
          for (int device = 0; device < devices; ++device)
            CHECK(pp::peak_activation_chunks(table, device) ==
                  std::min(most, held * microbatches * chunks));
        }
}

TEST_CASE("SVPP keeps any limit of forward passes, and without one it is the walk of even groups "
          "where they are even") {
  for (int devices = 1; devices <= 9; ++devices)
    for (int microbatches : {1, 2, 3, 6, 7, 13})
      for (int held = 1; held <= 3; ++held)
        for (int chunks = 1; chunks <= 5; ++chunks) {
          pp::pipeline_size const size{devices, microbatches};
          int const group = (devices + chunks - 1) / chunks;
          int const most = (held - 1) * group * chunks + devices + chunks - 1;
          auto const free =
            pp::make_timetable(pp::SVPP<>{.stages_per_device = held, .chunks = chunks}, size);
          if (microbatches % group == 0)
            CHECK(free.passes ==
                  pp::make_timetable(
                    pp::Seq1F1BZeroBubbleInterleaved<>{.stages_per_device = held, .chunks = chunks},
                    size)
                    .passes);
          CHECK(free.passes ==
                pp::make_timetable(
                  pp::SVPP<>{.stages_per_device = held, .chunks = chunks, .forwards = most}, size)
                  .passes);
          for (int limit = held * chunks; limit < most; ++limit) {
            auto const table = pp::make_timetable(
              pp::SVPP<>{.stages_per_device = held, .chunks = chunks, .forwards = limit}, size);
            for (int device = 0; device < devices; ++device)
              CHECK(pp::peak_activation_chunks(table, device) <= limit);
          }
        }
  CHECK_THROWS_WITH(
    (void)pp::make_timetable(pp::SVPP<>{.stages_per_device = 2, .chunks = 4, .forwards = 7},
                             {4, 8}),
    "interleaved stages: 7 forward passes before the first backward pass of a device are too few: "
    "it wants all chunks of a microbatch on all stages of the device, 8; 0 stands for no limit");
}
