// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/with_recompute.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/static_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>
#include <tests/support/golden_figures.hpp>
#include <tests/support/golden_lines.hpp>

namespace pp = pipelining;

namespace {

constexpr auto compiled = pp::timetable<pp::HelixPipe<2, 1>, 3, 6>;
static_assert(pp::verify(compiled));
static_assert(pp::stages(pp::timetable_view(compiled).extents) == 13);

//! Times by stage: N_0 takes pre, the last N post, the others both; backward `ratio` times as long.
struct helix_times {
  double pre, post, attention, ratio, message = 0;
  int stages = 3;

  [[nodiscard]] double duration(pp::pass const& what) const {
    double const forward = what.stage % 2 == 1        ? attention
                           : what.stage == 0          ? pre
                           : what.stage + 1 == stages ? post
                                                      : pre + post;
    return what.kind == pp::pass_kind::backward ? ratio * forward : forward;
  }
  [[nodiscard]] double latency() const { return message; }
};

struct size {
  int devices, layers, folds, loops;

  [[nodiscard]] pp::dynamic_timetable timetable(helix_times cost) const {
    cost.stages = 2 * layers + 1;
    return pp::make_timetable(
      pp::HelixPipe<>{layers / devices, folds}, {devices, devices * folds * loops}, cost);
  }
};

//! The most passes of stages of a parity that a device holds at once.
int peak(pp::timetable_view table, int device, int parity) {
  int held = 0;
  int most = 0;
  for (pp::pass const& what : table.row(device))
    if (what.stage % 2 == parity) {
      held += what.kind == pp::pass_kind::forward ? 1 : -1;
      most = std::max(most, held);
    }
  return most;
}

} // namespace

TEST_CASE("HelixPipe has the figures of the golden file") {
  for (std::string const& line : support::golden_lines("golden/families/helix.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    size of{};
    helix_times cost{};
    double makespan = 0;
    double span = 0;
    double busy = 0;
    in >> of.devices >> of.layers >> of.folds >> of.loops >> cost.pre >> cost.post >>
      cost.attention >> cost.message >> makespan >> span >> busy;
    cost.ratio = 2;
    auto const table = of.timetable(cost);
    CHECK(pp::makespan(table) == makespan);
    CHECK(pp::span_of(table) == span);
    for (int parity : {0, 1})
      for (int device = 0; device < of.devices; ++device) {
        int expected = 0;
        in >> expected;
        CHECK(peak(table, device, parity) == expected);
        CHECK(pp::busy(table, device) == busy);
      }
    CHECK(in);
  }
}

TEST_CASE("HelixPipe has the orders of the golden file") {
  for (auto const& expected :
       support::golden_orders("golden/families/helix_orders.txt", false, 4)) {
    auto const& key = expected.key; // p, layers, folds, m
    support::check_order(pp::HelixPipe<>{key[1] / key[0], key[2]}, {key[0], key[3]}, expected);
  }
}
