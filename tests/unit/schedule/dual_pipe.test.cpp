// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>

namespace pp = pipelining;

namespace {

double least_busy(pp::timetable_view table) {
  double least = pp::busy(table, 0);
  for (int device = 1; device < table.over.extents.devices; ++device)
    least = std::min(least, pp::busy(table, device));
  return least;
}

// Unit costs and pairs of time `pair`; `ranks` devices from an entrance to the middle.
template <class Schedule>
void check_closed_forms(int ranks, pp::pipeline_size size, int passes, bool overlapped) {
  for (double const pair : {3.0, 2.5, 2.0}) {
    auto const table = pp::make_timetable<Schedule>(size, pp::uniform_cost{1, 1, 1, 0, pair});
    double const bubble = overlapped ? (ranks - 1) * (pair + 2 - 3) : (ranks - 1) * 1.0;
    CHECK(pp::makespan(table) - least_busy(table) == bubble);
    CHECK(pp::peak_activations(table) == pp::ratio{2 * ranks + 1, 1});
    CHECK(pp::busy(table, 0) <= passes * 3);
  }
}

} // namespace

TEST_CASE("DualPipe and DualPipeV keep every rule for any size, and their closed forms") {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 1; microbatches <= 30; ++microbatches) {
      pp::pipeline_size const size{devices, microbatches};
      auto const folded = pp::make_timetable<pp::DualPipeV<>>(size);
      CHECK(pp::makespan(folded) >= 6 * microbatches);
      if (microbatches >= 2 * devices) {
        check_closed_forms<pp::DualPipeV<pp::pairs::overlapped>>(
          devices, size, 2 * microbatches, true);
        check_closed_forms<pp::DualPipeV<pp::pairs::in_turn>>(
          devices, size, 2 * microbatches, false);
      }
      if (devices % 2 != 0)
        continue;
      auto const dual = pp::make_timetable<pp::DualPipe<pp::pairs::in_turn>>(size);
      CHECK(pp::makespan(dual) >= 3 * microbatches);
      if (microbatches % 2 == 0 && microbatches >= 2 * devices) {
        check_closed_forms<pp::DualPipe<pp::pairs::overlapped>>(
          devices / 2, size, microbatches, true);
        check_closed_forms<pp::DualPipe<pp::pairs::in_turn>>(
          devices / 2, size, microbatches, false);
      }
    }
}

TEST_CASE("DualPipe refuses an odd number of devices") {
  CHECK_THROWS_WITH(pp::make_timetable<pp::DualPipe<>>({3, 8}),
                    "DualPipe: the number of devices must be even, because device d and device P - "
                    "1 - d hold the same two stages; DualPipeV takes any number");
}
