// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <tests/support/golden_lines.hpp>

namespace pp = pipelining;

namespace {

template <pp::pairs How>
pp::dynamic_timetable
make(std::string const& name, pp::pipeline_size size, pp::uniform_cost const& cost = {}) {
  return name == "dualpipe" ? pp::make_timetable<pp::DualPipe<How>>(size, cost)
                            : pp::make_timetable<pp::DualPipeV<How>>(size, cost);
}

double least_busy(pp::timetable_view table) {
  double least = pp::busy(table, 0);
  for (int device = 1; device < table.over.extents.devices; ++device)
    least = std::min(least, pp::busy(table, device));
  return least;
}

// Unit costs and pairs of time `pair`; `ranks` devices from an entrance to the middle.
template <pp::pairs How>
void check_closed_forms(std::string const& name, int ranks, pp::pipeline_size size, int passes) {
  for (double const pair : {3.0, 2.5, 2.0}) {
    auto const table = make<How>(name, size, {1, 1, 1, 0, pair});
    double const bubble =
      How == pp::pairs::overlapped ? (ranks - 1) * (pair + 2 - 3) : (ranks - 1) * 1.0;
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
      auto const folded = make<pp::pairs::overlapped>("dualpipev", size);
      CHECK(pp::makespan(folded) >= 6 * microbatches);
      if (microbatches >= 2 * devices) {
        check_closed_forms<pp::pairs::overlapped>("dualpipev", devices, size, 2 * microbatches);
        check_closed_forms<pp::pairs::in_turn>("dualpipev", devices, size, 2 * microbatches);
      }
      if (devices % 2 != 0)
        continue;
      auto const dual = make<pp::pairs::in_turn>("dualpipe", size);
      CHECK(pp::makespan(dual) >= 3 * microbatches);
      if (microbatches % 2 == 0 && microbatches >= 2 * devices) {
        check_closed_forms<pp::pairs::overlapped>("dualpipe", devices / 2, size, microbatches);
        check_closed_forms<pp::pairs::in_turn>("dualpipe", devices / 2, size, microbatches);
      }
    }
}

TEST_CASE("DualPipe and DualPipeV have the figures of the reference") {
  for (std::string const& line : support::golden_lines("golden/dual_pipe/figures.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    std::string name;
    pp::pipeline_size size;
    pp::uniform_cost cost;
    double makespan = 0;
    double busy = 0;
    double makespan_in_turn = 0;
    int peak = 0;
    in >> name >> size.devices >> size.microbatches >> cost.forward >> cost.backward_input >>
      cost.backward_weight >> cost.overlapped_pair >> cost.communication >> makespan >> busy >>
      makespan_in_turn >> peak;
    auto const table = make<pp::pairs::overlapped>(name, size, cost);
    CHECK(pp::makespan(table) == makespan);
    CHECK(least_busy(table) == busy);
    CHECK(pp::makespan(make<pp::pairs::in_turn>(name, size, cost)) == makespan_in_turn);
    CHECK(pp::peak_activations(table) == pp::ratio{peak, 1});
  }
}

TEST_CASE("DualPipe and DualPipeV have the orders of the reference") {
  for (std::string const& line : support::golden_lines("golden/dual_pipe/orders.txt")) {
    std::istringstream in(line);
    std::string name;
    pp::pipeline_size size;
    int device = 0;
    in >> name >> size.devices >> size.microbatches >> device;
    CHECK(support::row_text(make<pp::pairs::overlapped>(name, size), device) ==
          line.substr(line.find(": ") + 2));
  }
}

TEST_CASE("DualPipe refuses an odd number of devices") {
  CHECK_THROWS_WITH(pp::make_timetable<pp::DualPipe<>>({3, 8}),
                    "DualPipe: the number of devices must be even, because device d and device P - "
                    "1 - d hold the same two stages; DualPipeV takes any number");
}
