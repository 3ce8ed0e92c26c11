// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <utility>

namespace pp = pipelining;

namespace {

// Device 1 runs its first backward before the forward it belongs to.
struct circular {
  constexpr pp::shape arrange(int devices, int microbatches) const {
    return pp::OneFOneB{}.arrange(devices, microbatches);
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    pp::OneFOneB{}.order(extents, device, out);
    if (device == 1)
      std::swap(out.passes[0], out.passes[1]);
  }
};

struct forward_only {
  constexpr pp::shape arrange(int devices, int microbatches) const {
    return pp::OneFOneB{}.arrange(devices, microbatches);
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    for (int m = 0; m < extents.microbatches; ++m)
      out.forward(device, m);
  }
};

} // namespace

TEST_CASE("a circular order is named, not waited for") {
  CHECK_THROWS_WITH_AS(
    pp::make_timetable<circular>({2, 4}),
    "timetable: a pass waits for ever: the order of passes is circular (device 0, entry 2: "
    "backward of stage 0, microbatch 0)",
    std::invalid_argument);
}

TEST_CASE("an order without backward passes is named") {
  CHECK_THROWS_WITH_AS(pp::make_timetable<forward_only>({2, 4}),
                       "timetable: a pass is missing (device 0: backward of stage 0, microbatch 0)",
                       std::invalid_argument);
}

TEST_CASE("costs per stage and chunk take effect") {
  pp::shape const extents = pp::OneFOneB{}.arrange(2, 1);
  pp::cost_table cost(extents, {1, 1, 1, 0.5});
  cost.set(pp::pass_kind::forward, 1, 0, 4);
  auto const table = pp::make_timetable<pp::OneFOneB>({2, 1}, cost);
  // F on stage 0, message, F on stage 1, B on stage 1, message, B on stage 0
  CHECK(pp::makespan(table) == 1 + 0.5 + 4 + 2 + 0.5 + 2);
  CHECK_THROWS_AS(cost.set(pp::pass_kind::forward, 2, 0, 1), std::out_of_range);
  CHECK_THROWS_AS(cost.set(pp::pass_kind::backward, 1, 0, 1), std::invalid_argument);
  CHECK_THROWS_AS(cost.set(pp::pass_kind::forward, 1, 0, -1), std::invalid_argument);
}
