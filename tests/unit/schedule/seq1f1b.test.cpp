// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

TEST_CASE("Seq1F1B keeps every rule and its closed forms") {
  for (int devices = 1; devices <= 16; ++devices)
    for (int microbatches = 1; microbatches <= 40; ++microbatches)
      for (int chunks = 1; chunks <= 8; ++chunks) {
        auto const table = pp::make_timetable(
          pp::Seq1F1B<>{chunks}, {devices, microbatches}, pp::uniform_cost{10, 12, 8});
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
  auto const free = pp::make_timetable(pp::Seq1F1B<>{3}, {5, 7});
  CHECK(fixed.passes == free.passes);
  CHECK_THROWS_WITH(pp::make_timetable(pp::Seq1F1B<>{0}, {5, 7}),
                    "shape: the number of chunks must be at least 1");
}
