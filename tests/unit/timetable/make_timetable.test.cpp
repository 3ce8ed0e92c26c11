// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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

// Device 1 runs all forward passes first, device 0 one microbatch after the other.
struct circle_of_two {
  constexpr pp::shape arrange(int devices, int microbatches) const {
    return pp::OneFOneB{}.arrange(devices, microbatches);
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    for (int m = 0; m < extents.microbatches; ++m) {
      out.forward(device, m);
      if (device != 1)
        out.backward(device, m);
    }
    for (int m = 0; m < extents.microbatches && device == 1; ++m)
      out.backward(device, m);
  }
};

struct overfull {
  constexpr pp::shape arrange(int devices, int microbatches) const {
    return pp::OneFOneB{}.arrange(devices, microbatches);
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    pp::OneFOneB{}.order(extents, device, out);
    for (int again = 0; again < 20 && device == 1; ++again)
      out.backward(1, 3);
  }
};

//! The fewest devices that wait in a circle, each at its first pass that does not run; 0 for none.
//! By the rules of 1F1B: stage s is on device s, and all run what they can.
int shortest_circle(pp::timetable_view table) {
  int const devices = table.over.extents.devices;
  std::vector<std::vector<int>> waits(static_cast<std::size_t>(devices));
  auto const find = [&](pp::pass_kind kind, int stage, int microbatch) {
    for (int i = table.offsets[stage]; i < table.offsets[stage + 1]; ++i)
      if (table.passes[i].kind == kind && table.passes[i].microbatch == microbatch)
        return i;
    return -1;
  };
  for (int device = 0; device < devices; ++device)
    for (int i = table.offsets[device]; i < table.offsets[device + 1]; ++i)
      if (table.starts[i] < 0) {
        pp::pass const what = table.passes[i];
        bool const forward = what.kind == pp::pass_kind::forward;
        int const from = device + (forward ? -1 : 1);
        if (from >= 0 && from < devices && table.starts[find(what.kind, from, what.microbatch)] < 0)
          waits[static_cast<std::size_t>(device)].push_back(from);
        bool const last = device == devices - 1; // whose backward waits for its own forward
        if (!forward && last &&
            table.starts[find(pp::pass_kind::forward, device, what.microbatch)] < 0)
          waits[static_cast<std::size_t>(device)].push_back(device);
        break;
      }
  int least = 0;
  for (int first = 0; first < devices; ++first) {
    std::vector<int> here{first}; // after so many steps
    for (int steps = 1; steps <= devices; ++steps) {
      std::vector<int> next;
      for (int const device : here)
        for (int const to : waits[static_cast<std::size_t>(device)])
          next.push_back(to);
      here = next;
      if (std::find(here.begin(), here.end(), first) != here.end()) {
        least = least == 0 ? steps : std::min(least, steps);
        break;
      }
    }
  }
  return least;
}

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

TEST_CASE("a circular order is named with its circle, not waited for") {
  CHECK_THROWS_WITH_AS(
    pp::make_timetable<circular>({2, 4}),
    "timetable: a pass waits for ever: the order of passes is circular (device 1, entry 0: "
    "backward of stage 1, microbatch 0, waits for device 1, entry 1: forward of stage 1, "
    "microbatch 0)",
    std::invalid_argument);
  // Device 2 waits too, but nobody in the circle waits for it.
  CHECK_THROWS_WITH_AS(
    pp::make_timetable<circle_of_two>({3, 2}),
    "timetable: a pass waits for ever: the order of passes is circular (device 0, entry 1: "
    "backward of stage 0, microbatch 0, waits for device 1, entry 2: backward of stage 1, "
    "microbatch 0; device 1, entry 1: forward of stage 1, microbatch 1, waits for device 0, entry "
    "2: forward of stage 0, microbatch 1)",
    std::invalid_argument);
}

TEST_CASE("each step of a circle is a wait, and no circle is shorter") {
  std::mt19937 random(7);
  int circles = 0;
  for (int trial = 0; trial < 400; ++trial) {
    auto const devices = 2 + static_cast<int>(random() % 3);
    pp::device_orders orders = pp::make_orders(pp::OneFOneB{}, {devices, 4});
    for (int swaps = 0; swaps < 3; ++swaps) {
      std::size_t const at = random() % (orders.passes.size() - 1);
      if (orders.passes[at].stage == orders.passes[at + 1].stage)
        std::swap(orders.passes[at], orders.passes[at + 1]);
    }
    pp::dynamic_timetable const table = pp::simulate(orders, pp::uniform_cost{});
    pp::report const verdict = pp::verify(table);
    int const least = shortest_circle(table);
    CHECK((verdict.broken == pp::report::rule::waits_for_ever) == (least > 0));
    if (least == 0)
      continue;
    ++circles;
    std::string const text = pp::describe(verdict, table);
    int steps = -1; // "a pass waits for ever"
    for (std::size_t i = text.find(" waits for "); i != text.npos;
         i = text.find(" waits for ", i + 1))
      ++steps;
    CAPTURE(text);
    CHECK(steps == least);
  }
  CHECK(circles > 100);
}

TEST_CASE("a row with too many passes is named") {
  CHECK_THROWS_WITH_AS(
    pp::make_timetable<overfull>({2, 4}),
    "timetable: a device has more passes than its stages can have: each unit has one forward and "
    "one backward, or one forward and the two halves (device 1, entry 12: backward of stage 1, "
    "microbatch 3)",
    std::invalid_argument);
  CHECK_THROWS_WITH_AS(pp::make_orders(overfull{}, {2, 4}),
                       doctest::Contains("a device has more passes than its stages can have"),
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
