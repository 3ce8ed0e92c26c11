// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace pp = pipelining;

namespace {

int frontier(int devices, int peak) {
  return std::max({6 * devices - 1 - 3 * peak, 4 * devices - 3 * peak + 2 * ((peak + 1) / 2), 0});
}

template <class Schedule>
void check_unit_costs(int devices, int peak) {
  for (int const microbatches : {2 * devices, 2 * devices + 5, 4 * devices}) {
    auto const table = pp::make_timetable<Schedule>({devices, microbatches});
    CHECK(pp::peak_activations(table) <= pp::ratio{peak, 1});
    CHECK(pp::span_of(table) - 6 * microbatches == frontier(devices, peak));
  }
}

} // namespace

TEST_CASE("V shapes are shorter than their references where room was known") {
  struct known {
    int devices;
    int microbatches;
    double bubble;
  };
  pp::uniform_cost const cost{10, 12, 8};
  for (auto const& [devices, microbatches, bubble] :
       {known{4, 8, 162}, known{5, 10, 136}, known{8, 16, 346}}) {
    auto const table = pp::make_timetable<pp::VMin>({devices, microbatches}, cost);
    CHECK(pp::span_of(table) - 60 * microbatches <= bubble);
  }
  for (auto const& [devices, microbatches, bubble] : {known{4, 8, 70}, known{8, 16, 216}}) {
    auto const table = pp::make_timetable<pp::VHalf>({devices, microbatches}, cost);
    CHECK(pp::span_of(table) - 60 * microbatches <= bubble);
  }
  auto const tight = pp::make_timetable<pp::VMin>({5, 10}, pp::uniform_cost{10, 10, 10});
  CHECK(pp::span_of(tight) - 600 <= 110);
}

TEST_CASE("memory and bubble of V-Min, V-Half and ZB-V keep their closed forms for unit costs") {
  for (int devices = 2; devices <= 32; ++devices) {
    CAPTURE(devices);
    check_unit_costs<pp::VMin>(devices, 2 * ((devices + 4) / 3));
    check_unit_costs<pp::VHalf>(devices, 2 * ((devices + 2) / 2));
    check_unit_costs<pp::VZeroBubble>(devices, 2 * devices);
    check_unit_costs<pp::ZeroBubbleV>(devices, 2 * devices);
  }
}

TEST_CASE("V shapes keep every rule and their memory for any size") {
  // make_timetable throws when verify finds a broken rule.
  for (int devices = 1; devices <= 16; ++devices)
    for (int microbatches = 1; microbatches <= 40; ++microbatches) {
      pp::pipeline_size const size{devices, microbatches};
      int const most = std::max(devices, 2);
      CHECK(pp::peak_activations(pp::make_timetable<pp::VMin>(size)) <=
            pp::ratio{2 * ((devices + 4) / 3), 1});
      CHECK(pp::peak_activations(pp::make_timetable<pp::VHalf>(size)) <=
            pp::ratio{2 * ((devices + 2) / 2), 1});
      CHECK(pp::peak_activations(pp::make_timetable<pp::ZeroBubbleV>(size)) <=
            pp::ratio{2 * devices, 1});
      CHECK(pp::peak_activations(pp::make_timetable<pp::OneFOneBV>(size)) <=
            pp::ratio{2 * ((2 * devices + 3) / 3), 1});
      if (microbatches % 8 != 1) // a search each
        continue;
      CHECK(pp::peak_activations(pp::make_timetable(
              pp::VAuto<>{.memory_limit = static_cast<double>(most)}, size)) <= pp::ratio{most, 1});
    }
}

TEST_CASE("chunks on a V hold less and wait less than whole sequences") {
  for (int devices = 1; devices <= 8; ++devices)
    for (int chunks = 1; chunks <= 6; ++chunks)
      for (int const microbatches : {1, 2, devices, 2 * devices + 1}) {
        CAPTURE(devices);
        CAPTURE(chunks);
        CAPTURE(microbatches);
        pp::pipeline_size const size{devices, microbatches};
        auto const whole = pp::make_timetable<pp::VHalf>(size);
        auto const cut =
          pp::make_timetable(pp::VShape<pp::v_half_offsets, pp::dynamic>{.chunks = chunks}, size);
        double const work = 6.0 * microbatches;
        CHECK((pp::span_of(cut) - work * chunks) / chunks <= pp::span_of(whole) - work);
        CHECK(pp::peak_activations(cut) <=
              pp::ratio{2 * ((devices + 2) / 2) + 2 * (chunks - 1), chunks});
        auto const least = pp::make_timetable(pp::VMinChunked<pp::dynamic>{.chunks = chunks}, size);
        CHECK(pp::peak_activations(least) <=
              pp::ratio{2 * ((devices + 4) / 3) + 2 * (chunks - 1), chunks});
        auto const zero =
          pp::make_timetable(pp::ZeroBubbleVChunked<pp::dynamic>{.chunks = chunks}, size);
        CHECK(pp::peak_activations(zero) <= pp::ratio{2 * devices + 2 * (chunks - 1), chunks});
      }
}

// CP-SAT proves that no order there has a smaller sum of 8 spans and a makespan, and none a
// makespan below 50 M + 14.
TEST_CASE("on two devices the span of v-auto gets ahead of the hand-made order") {
  pp::uniform_cost const cost{10, 10, 5, 1};
  for (int const microbatches : {4, 6, 16}) {
    pp::pipeline_size const size{2, microbatches};
    auto const table = pp::make_timetable(pp::VAuto<>{.memory_limit = 4}, size, cost);
    CHECK(pp::span_of(table) <= 50 * microbatches + 11);
    CHECK(pp::makespan(table) <= 50 * microbatches + 15);
    CHECK(pp::peak_activations(table) <= pp::ratio{4, 1});
    CHECK(pp::makespan(pp::make_timetable<pp::ZeroBubbleV>(size, cost)) <= 50 * microbatches + 14);
  }
}

TEST_CASE("searches see costs that differ between stages and chunks") {
  pp::pipeline_size const size{4, 8};
  pp::shape const extents = pp::VHalf{}.arrange(4, 8);
  pp::cost_table cost(extents, {10, 12, 8, 2});
  cost.set(pp::pass_kind::forward, 7, 0, 16); // the head of the model is heavier
  cost.set(pp::pass_kind::backward_input, 7, 0, 18);
  cost.set(pp::pass_kind::backward_weight, 7, 0, 14);
  auto const blind = pp::simulate(pp::make_orders<pp::VHalf>(pp::VHalf{}, size), cost);
  auto const seeing = pp::make_timetable<pp::VHalf>(size, cost);
  CHECK(pp::span_of(seeing) < pp::span_of(blind));
  CHECK(pp::peak_activations(seeing) <= pp::peak_activations(blind));
}

TEST_CASE("the same order comes from every call") {
  pp::uniform_cost const cost{10, 12, 8, 1};
  auto const first = pp::make_orders(pp::VMin{}, {4, 8}, cost);
  auto const second = pp::make_orders(pp::VMin{}, {4, 8}, cost);
  CHECK(first.passes == second.passes);
}

TEST_CASE("offsets, limits and times that cannot work are refused") {
  using broken = pp::VShape<pp::offsets{.forward_down = 0}>;
  CHECK_THROWS_WITH_AS(static_cast<void>(pp::make_timetable<broken>({4, 8})),
                       doctest::Contains("strides of at least 1"),
                       std::invalid_argument);
  // Both legs down advance by 3 and both legs up by 3: with 6 slots they meet on some device.
  using meeting = pp::VShape<pp::offsets{
    .forward_down = 2, .forward_up = 1, .backward_down = 1, .backward_up = 2}>;
  CHECK_THROWS_WITH_AS(static_cast<void>(pp::make_timetable<meeting>({8, 8})),
                       doctest::Contains("share a slot"),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(
    static_cast<void>(pp::make_timetable(pp::VAuto<>{.memory_limit = 1.5}, {4, 8})),
    doctest::Contains("at least 2 activations"),
    std::invalid_argument);
  CHECK_THROWS_WITH_AS(
    static_cast<void>(pp::make_timetable<pp::VMin>({4, 8}, pp::uniform_cost{-1, 1, 1, 0})),
    "cost model: the time of forward on stage 0 for chunk 0 must be a finite number and not "
    "negative",
    std::invalid_argument);
}

namespace {

struct unlike_cost {
  std::vector<double> lengths; // of microbatches
  bool first_alone = false;    // what orders looked at once

  double duration(pp::pass const& what) const {
    double const length = first_alone ? lengths.front() : lengths[what.microbatch];
    return what.kind == pp::pass_kind::backward ? 2 * length : length;
  }
  static double latency() { return 0.25; }
};

// Unlike microbatches in the order of a schedule for the first of them alone, over the same in the
// order for all.
template <class Schedule>
double gain(Schedule const& plan, pp::pipeline_size size, unlike_cost const& cost, int limit) {
  auto const table = pp::make_timetable(plan, size, cost);
  unlike_cost first = cost;
  first.first_alone = true;
  auto const blind = pp::simulate(pp::make_orders(plan, size, first), cost);
  CHECK(pp::verify(table, limit));
  CHECK(pp::makespan(table) <= pp::makespan(blind) * (1 + 1e-9));
  return pp::makespan(blind) / pp::makespan(table);
}

} // namespace

TEST_CASE("orders of V shapes see the times of every microbatch") {
  double gained = 0;
  int tried = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    int const devices = static_cast<int>(2 + random() % 4);
    int const microbatches = devices + static_cast<int>(random() % 6);
    unlike_cost cost;
    for (int i = 0; i < microbatches; ++i)
      cost.lengths.push_back(static_cast<double>(1 + random() % 8));
    pp::pipeline_size const size{devices, microbatches};
    for (double const one : {gain(pp::VHalf{}, size, cost, (devices + 2) / 2 * 2),
                             gain(pp::ZeroBubbleV{}, size, cost, 2 * devices),
                             gain(pp::OneFOneBV{}, size, cost, (2 * devices + 3) / 3 * 2),
                             gain(pp::VAuto<>{devices + 2.0}, size, cost, devices + 2)}) {
      gained += one - 1;
      ++tried;
    }
  }
  CHECK(gained / tried > 0.015);
}

TEST_CASE("a search goes on where it has just found something") {
  // The reference's order of 1F1B on a V takes 1636 here.
  auto const table = pp::make_timetable<pp::OneFOneBV>({6, 24}, pp::uniform_cost{10, 12, 6, 1});
  CHECK(pp::makespan(table) <= 1636);
}
