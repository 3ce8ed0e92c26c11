// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/search/zero_bubble_within.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <tests/support/capped_1f1b.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! One of so many numbers from 0.
double draw(std::mt19937& random, unsigned count) {
  return static_cast<double>(random() % count);
}

pp::cost_table random_times(std::mt19937& random, pp::shape const& extents) {
  pp::cost_table cost(extents, {.communication = 0.5});
  for (int stage = 0; stage < extents.devices; ++stage)
    for (pp::pass_kind const kind :
         {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight})
      cost.set(kind, stage, 0, 1 + draw(random, 6));
  return cost;
}

} // namespace

TEST_CASE("no device holds more bytes than its room, and more room is used where it is") {
  double gained = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    int const devices = static_cast<int>(2 + random() % 5);
    pp::shape const extents{.devices = devices,
                            .microbatches = devices + static_cast<int>(random() % 9)};
    pp::cost_table const cost = random_times(random, extents);
    pp::ZeroBubbleWithin within;
    std::vector<int> limits;
    for (int device = 0; device < devices; ++device) {
      limits.push_back(1 + static_cast<int>(random() % static_cast<unsigned>(devices + 2)));
      within.memory.activation.push_back(10 + draw(random, 90));
      within.memory.weight_input.push_back(within.memory.activation.back() * draw(random, 5) / 4);
      within.memory.resident.push_back(1000 + draw(random, 500));
      within.room.push_back(within.memory.resident.back() +
                            within.memory.activation.back() * (limits.back() + 0.3));
    }
    pp::pipeline_size const size{devices, extents.microbatches};
    auto const table = pp::make_timetable(within, size, cost);
    CHECK(pp::verify(table));
    std::vector<double> const held = pp::device_bytes(table, within.memory);
    for (std::size_t device = 0; device < held.size(); ++device)
      CHECK(held[device] <= within.room[device] * (1 + 1e-9));
    auto const plain = support::capped_1f1b(size, limits, cost);
    CHECK(pp::verify(plain));
    CHECK(pp::makespan(table) <= pp::makespan(plain) * (1 + 1e-12));
    // The same limit for all is that of the device with the least.
    int const least = *std::min_element(limits.begin(), limits.end());
    gained += pp::makespan(pp::make_timetable(pp::ZeroBubbleAuto<>{least}, size, cost)) /
                pp::makespan(table) -
              1;
  }
  CHECK(gained / 200 > 0.1);
}

TEST_CASE("with room for as many on every device the order is that of ZeroBubbleAuto") {
  std::mt19937 random(3);
  for (int limit = 1; limit <= 9; ++limit) {
    pp::shape const extents{.devices = 4, .microbatches = 9};
    pp::cost_table const cost = random_times(random, extents);
    pp::ZeroBubbleWithin const within{
      {.activation = {10, 20, 30, 40}, .weight_input = {5, 10, 15, 20}, .resident = {1, 2, 3, 4}},
      {10.0 * limit + 1, 20.0 * limit + 2, 30.0 * limit + 3, 40.0 * limit + 4}};
    auto const one = pp::make_orders(within, {4, 9}, cost);
    auto const other = pp::make_orders(pp::ZeroBubbleAuto<>{limit, 0.5}, {4, 9}, cost);
    CHECK(one.offsets == other.offsets);
    CHECK(std::equal(one.passes.begin(), one.passes.end(), other.passes.begin()));
  }
}

TEST_CASE("room that is missing is refused with the device") {
  pp::ZeroBubbleWithin within{{.activation = {1, 2}}, {1, 1}};
  CHECK_THROWS_WITH((void)pp::make_orders(within, {2, 2}),
                    "ZeroBubbleWithin: device 1 has no room for one microbatch");
  within.room = {1};
  CHECK_THROWS_WITH((void)pp::make_orders(within, {2, 2}),
                    "ZeroBubbleWithin: give room and bytes for each of the 2 devices");
  within = {{.activation = {1, 2}, .weight_input = {2, 2}}, {2, 2}};
  CHECK_THROWS_WITH((void)pp::make_orders(within, {2, 2}),
                    "ZeroBubbleWithin: what waits for backward_weight is a part of the activation, "
                    "but not on device 0");
}
