// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/grouped.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

namespace {

// A number that the type gives cannot be contradicted; one that it leaves open is stored.
template <class Schedule>
concept takes_a_number = requires {
  Schedule{8};
};
template <class Schedule>
concept takes_stages = requires {
  Schedule{.stages_per_device = 8};
};
template <class Schedule>
concept takes_chunks = requires {
  Schedule{.chunks = 8};
};
static_assert(!takes_chunks<pp::Seq1F1B<4>> && takes_chunks<pp::Seq1F1B<>>);
static_assert(!takes_stages<pp::Seq1F1B<>> && !takes_chunks<pp::OneFOneB>);
static_assert(!takes_chunks<pp::EagerSeq1F1B<4>> && takes_chunks<pp::EagerSeq1F1B<>>);
static_assert(!takes_chunks<pp::Seq1F1BZeroBubbleH1<4>>);
static_assert(!takes_chunks<pp::Seq1F1BZeroBubbleH2<4>>);
static_assert(!takes_stages<pp::Interleaved<2>> && takes_stages<pp::Interleaved<>>);
static_assert(!takes_stages<pp::Seq1F1BInterleaved<2, 4>>);
static_assert(!takes_stages<pp::ZeroBubbleInterleaved<2>>);
static_assert(!takes_a_number<pp::BreadthFirst<2>> && takes_a_number<pp::BreadthFirst<>>);
static_assert(!takes_a_number<pp::Grouped<2>> && takes_a_number<pp::Grouped<>>);

using newcomer = pp::Seq1F1BZeroBubbleInterleaved<2, 4>;
static_assert(pp::verify(pp::timetable<newcomer, 8, 32>));
static_assert(pp::peak_activations(pp::timetable<newcomer, 8, 32>) == pp::ratio{19, 4});
static_assert(pp::span_of(pp::timetable<newcomer, 8, 32>) == 3 * 2 * 4 * 32 + 7);

} // namespace

TEST_CASE("a walk of one's own is a schedule") {
  pp::detail::Walk<pp::detail::walk{.reach = 2, .lag = 2}, 2, 3, 2> const own;
  for (int devices = 1; devices <= 6; ++devices)
    for (int microbatches = 1; microbatches <= 9; ++microbatches)
      CHECK(pp::verify(pp::make_timetable(own, {devices, microbatches})));
  pp::detail::Walk<pp::detail::walk{}, 1, 6, 0, 1, 0, pp::dynamic> const cut{.chunk_group = 4};
  CHECK_THROWS_WITH(pp::make_timetable(cut, {4, 8}),
                    "interleaved stages: a group of 4 chunks must divide the 6 of a sequence; 0 "
                    "stands for all of them");
  CHECK_THROWS_WITH(pp::make_timetable<pp::detail::Walk<pp::detail::walk{.lag = 3}>>({4, 8}),
                    doctest::Contains("lag by at most 2 units per device"));
}

TEST_CASE("Seq1F1B on interleaved stages with split backward holds what its docstring says") {
  for (int held = 1; held <= 4; ++held)
    for (int chunks = 1; chunks <= 5; ++chunks)
      for (int devices = 1; devices <= 9; ++devices)
        for (int microbatches = 1; microbatches <= 20; ++microbatches) {
          auto const table = pp::make_timetable(
            pp::Seq1F1BZeroBubbleInterleaved<>{.stages_per_device = held, .chunks = chunks},
            {devices, microbatches});
          int groups = microbatches; // groups of whole sequences with at least P units each
          while (groups > 1 && microbatches / groups * chunks < devices)
            --groups;
          int const largest = (microbatches + groups - 1) / groups * chunks;
          int const expected =
            std::min((held - 1) * largest + chunks - 1 + devices, held * microbatches * chunks);
          for (int device = 0; device < devices; ++device)
            CHECK(pp::peak_activation_chunks(table, device) == expected);
        }
}

TEST_CASE("one chunk or one stage per device give the schedules of that name") {
  CHECK(pp::make_timetable<pp::Seq1F1BZeroBubbleInterleaved<3, 1>>({6, 13}).passes ==
        pp::make_timetable<pp::ZeroBubbleInterleaved<3>>({6, 13}).passes);
  CHECK(pp::make_timetable<pp::Seq1F1BZeroBubbleInterleaved<1, 4>>({6, 13}).passes ==
        pp::make_timetable<pp::Seq1F1BZeroBubbleH1<4>>({6, 13}).passes);
}
