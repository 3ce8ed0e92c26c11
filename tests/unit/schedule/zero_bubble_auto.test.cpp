// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <sstream>
#include <string>
#include <tests/support/capped_1f1b.hpp>
#include <tests/support/golden_lines.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

// What no order can go below, for stages of different cost.
pp::detail::zero_bubble_figures bound_of(pp::pipeline_size size,
                                         pp::ZeroBubbleAuto<> const& plan,
                                         std::vector<pp::uniform_cost> const& stages) {
  std::vector<double> times;
  for (double pp::uniform_cost::*kind : {&pp::uniform_cost::forward,
                                         &pp::uniform_cost::backward_input,
                                         &pp::uniform_cost::backward_weight})
    for (pp::uniform_cost const& stage : stages)
      times.insert(times.end(), static_cast<std::size_t>(size.microbatches), stage.*kind);
  std::vector<double> const limits(stages.size(), plan.memory_limit);
  std::vector<double> const shares(stages.size(), plan.kept_for_weight);
  return pp::detail::zero_bubble_bound({size.devices,
                                        size.microbatches,
                                        limits.data(),
                                        shares.data(),
                                        stages.front().communication,
                                        times.data()});
}

pp::detail::zero_bubble_figures
bound_of(pp::pipeline_size size, pp::ZeroBubbleAuto<> const& plan, pp::uniform_cost const& cost) {
  return bound_of(
    size, plan, std::vector<pp::uniform_cost>(static_cast<std::size_t>(size.devices), cost));
}

pp::cost_table table_of(pp::pipeline_size size, std::vector<pp::uniform_cost> const& stages) {
  pp::cost_table table({.devices = size.devices, .microbatches = size.microbatches},
                       {1, 1, 1, stages.front().communication});
  for (int stage = 0; stage < size.devices; ++stage) {
    pp::uniform_cost const& cost = stages[static_cast<std::size_t>(stage)];
    table.set(pp::pass_kind::forward, stage, 0, cost.forward);
    table.set(pp::pass_kind::backward_input, stage, 0, cost.backward_input);
    table.set(pp::pass_kind::backward_weight, stage, 0, cost.backward_weight);
  }
  return table;
}

// The most that any device holds, when backward_input gives back all but `kept`.
double peak_held(pp::timetable_view table, double kept) {
  double peak = 0;
  for (int device = 0; device < table.over.extents.devices; ++device) {
    double held = 0;
    for (pp::pass const& what : table.row(device)) {
      held += what.kind == pp::pass_kind::forward          ? 1
              : what.kind == pp::pass_kind::backward_input ? kept - 1
                                                           : -kept;
      peak = std::max(peak, held);
    }
  }
  return peak;
}

} // namespace

TEST_CASE("the automatic scheduler keeps every rule, its memory limit and the lower bound") {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 1; microbatches <= 30; ++microbatches)
      for (int const limit : {1, devices / 2, devices, 2 * devices}) {
        pp::ZeroBubbleAuto<> const plan{std::max(limit, 1)};
        pp::uniform_cost const cost{10, 12, 8, 0.5};
        pp::pipeline_size const size{devices, microbatches};
        auto const table = pp::make_timetable(plan, size, cost);
        CHECK(pp::verify(table, plan.memory_limit));
        CHECK(
          pp::verify(pp::make_timetable(pp::ZeroBubbleAuto<>{plan.memory_limit, 0.5}, size, cost)));
        auto const bound = bound_of(size, plan, cost);
        CHECK(pp::span_of(table) >= bound.span);
        CHECK(pp::makespan(table) >= bound.makespan);
      }
}

TEST_CASE("with equal stages and limit P it has the bubble of ZB-H1") {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = devices; microbatches <= 30; ++microbatches) {
      auto const table = pp::make_timetable<pp::ZeroBubbleAuto<1>>({devices, microbatches},
                                                                   pp::uniform_cost{10, 12, 8});
      CHECK(pp::span_of(table) - 30 * microbatches == (devices - 1) * (10 + 12 - 8));
      CHECK(pp::makespan(table) == pp::span_of(table));
    }
}

TEST_CASE("with limit 2P and unit costs there is no bubble") {
  for (int devices = 1; devices <= 12; ++devices)
    for (int microbatches = 2 * devices; microbatches <= 30; ++microbatches) {
      auto const table = pp::make_timetable<pp::ZeroBubbleAuto<2>>({devices, microbatches});
      CHECK(pp::span_of(table) == 3 * microbatches);
      CHECK(pp::makespan(table) == 3 * microbatches + devices - 1);
    }
}

TEST_CASE("it is nowhere worse than the reference, and better at some points") {
  int better = 0;
  int proven = 0;
  for (std::string const& line :
       support::golden_lines("golden/zero_bubble/automatic_figures.txt")) {
    CAPTURE(line);
    std::istringstream in(line);
    int times_devices = 0;
    int taken = 0;
    int given_by_input = 0;
    int given_by_weight = 0;
    pp::pipeline_size size;
    pp::uniform_cost cost;
    double span = 0;
    double makespan = 0;
    int peak = 0;
    in >> times_devices >> taken >> given_by_input >> given_by_weight >> size.devices >>
      size.microbatches >> cost.forward >> cost.backward_input >> cost.backward_weight >>
      cost.communication >> span >> makespan >> peak;
    double const kept = -static_cast<double>(given_by_weight) / taken;
    pp::ZeroBubbleAuto<> const plan{times_devices * size.devices, kept};
    auto const table = pp::make_timetable(plan, size, cost);
    CHECK(pp::span_of(table) <= span);
    CHECK(pp::makespan(table) <= makespan);
    CHECK(peak_held(table, kept) <= times_devices * size.devices);
    better += pp::span_of(table) < span || pp::makespan(table) < makespan ? 1 : 0;
    proven += pp::span_of(table) == bound_of(size, plan, cost).span ? 1 : 0;
  }
  CHECK(better >= 17);
  CHECK(proven >= 303);
}

TEST_CASE("a limit above P is never longer than limit P") {
  std::mt19937 random(7);
  auto const between = [&random](int least, int most) {
    return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
  };
  for (int draw = 0; draw < 2000; ++draw) {
    pp::pipeline_size const size{between(2, 8), between(2, 24)};
    std::vector<pp::uniform_cost> stages;
    int const latency = between(0, 3);
    for (int stage = 0; stage < size.devices; ++stage)
      stages.push_back(
        {1.0 * between(1, 8), 1.0 * between(1, 8), 1.0 * between(1, 8), 1.0 * latency});
    pp::cost_table const cost = table_of(size, stages);
    double const most = pp::makespan(pp::make_timetable<pp::ZeroBubbleAuto<1>>(size, cost));
    CAPTURE(draw);
    CHECK(pp::makespan(pp::make_timetable<pp::ZeroBubbleAuto<2>>(size, cost)) <=
          most * (1 + 1e-12));
    int const limit = between(size.devices, 3 * size.devices);
    CHECK(pp::makespan(pp::make_timetable(pp::ZeroBubbleAuto<>{limit}, size, cost)) <=
          most * (1 + 1e-12));
  }
}

TEST_CASE("known headroom: P = 4, limit 2P, costs 10/12/8 has a bubble of 10, not 12") {
  for (int const microbatches : {12, 16, 32}) {
    auto const table =
      pp::make_timetable<pp::ZeroBubbleAuto<2>>({4, microbatches}, pp::uniform_cost{10, 12, 8});
    CHECK(pp::span_of(table) - 30 * microbatches == 10);
  }
}

TEST_CASE("the times of every stage make better orders than their mean") {
  std::mt19937 random(7);
  double with_times = 0;
  double with_mean = 0;
  for (int round = 0; round < 100; ++round) {
    pp::pipeline_size const size{2 + static_cast<int>(random() % 9),
                                 8 + static_cast<int>(random() % 30)};
    std::vector<pp::uniform_cost> stages;
    for (int stage = 0; stage < size.devices; ++stage) {
      auto const scaled = [&](double time) {
        return time * (0.6 + 0.001 * static_cast<double>(random() % 800));
      };
      stages.push_back({scaled(10), scaled(12), scaled(8), 0.5});
    }
    int const limit = size.devices + static_cast<int>(random() % 2) * size.devices;
    pp::ZeroBubbleAuto<> const plan{limit};
    auto const cost = table_of(size, stages);
    auto const ours = pp::make_timetable(plan, size, cost);
    auto const blind =
      pp::simulate(pp::make_orders(plan, size, pp::uniform_cost{10, 12, 8, 0.5}), cost);
    CHECK(pp::verify(ours, limit));
    CHECK(pp::span_of(ours) >= bound_of(size, plan, stages).span * (1 - 1e-12));
    with_times += pp::span_of(ours);
    with_mean += pp::span_of(blind);
  }
  CHECK(with_times < 0.995 * with_mean);
}

TEST_CASE("below P microbatches of memory the pipeline still flows") {
  // Each of the `limit` places of device 0 is taken for a whole round trip.
  for (int const limit : {2, 4, 6}) {
    auto const table =
      pp::make_timetable(pp::ZeroBubbleAuto<>{limit}, {8, 48}, pp::uniform_cost{10, 12, 8});
    double const round_trip = 8 * (10 + 12) + 8;
    double const rounds = 48.0 / limit;
    CHECK(pp::span_of(table) >= rounds * round_trip);
    CHECK(pp::span_of(table) <= 1.25 * std::max(rounds * round_trip, 48 * 30 + 14.0 * 7));
  }
}

TEST_CASE("the compiler makes the same timetable") {
  constexpr auto table = pp::timetable<pp::ZeroBubbleAuto<2>, 4, 8>;
  static_assert(pp::verify<8>(table));
  static_assert(pp::span_of(table) == 24);
  auto const same = pp::make_timetable<pp::ZeroBubbleAuto<2>>({4, 8});
  pp::timetable_view const view = table;
  CHECK(std::equal(same.passes.begin(), same.passes.end(), view.passes, view.passes + view.size()));
}

TEST_CASE("limits that no schedule can keep are refused") {
  CHECK_THROWS_WITH(pp::make_timetable(pp::ZeroBubbleAuto<>{}, {4, 8}),
                    "ZeroBubbleAuto: the memory limit must be at least 1 microbatch, because a "
                    "device cannot run a forward pass without keeping its activation");
  CHECK_THROWS_WITH(pp::make_timetable(pp::ZeroBubbleAuto<>{4, 1.5}, {4, 8}),
                    "ZeroBubbleAuto: the share kept for backward_weight must be between 0 and 1");
}

TEST_CASE("it is never slower than the plain schedule where microbatches take unlike times") {
  struct scaled_cost {
    std::vector<double> factors;
    double weight;
    double wait;

    double duration(pp::pass const& what) const {
      double const time = what.kind == pp::pass_kind::backward          ? 1 + weight
                          : what.kind == pp::pass_kind::backward_weight ? weight
                                                                        : 1;
      return time * factors[what.microbatch];
    }
    double latency() const { return wait; }
  };
  double gained = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    int const devices = static_cast<int>(2 + random() % 5);
    int const microbatches = devices + static_cast<int>(random() % 9);
    scaled_cost cost{{}, seed % 2 == 0 ? 1 : 0.5, seed % 3 == 0 ? 0.5 : 0};
    for (int i = 0; i < microbatches; ++i)
      cost.factors.push_back(static_cast<double>(1 + random() % 8));
    pp::pipeline_size const size{devices, microbatches};
    auto const plain = pp::make_timetable<pp::ZeroBubbleH1>(size, cost);
    auto const found = pp::make_timetable<pp::ZeroBubbleAuto<1>>(size, cost);
    CHECK(pp::verify(found, devices));
    CHECK(pp::makespan(found) <= pp::makespan(plain) * (1 + 1e-12));
    gained += pp::makespan(plain) / pp::makespan(found) - 1;
    auto const doubled = pp::make_timetable<pp::ZeroBubbleAuto<2>>(size, cost);
    CHECK(pp::verify(doubled, 2 * devices));
    CHECK(pp::makespan(doubled) <=
          pp::makespan(pp::make_timetable<pp::ZeroBubbleH2>(size, cost)) * (1 + 1e-12));
    // With less memory: 1F1B whose forward passes run ahead as far as the limit allows.
    int const limit = 1 + static_cast<int>(random() % static_cast<unsigned>(devices));
    std::vector<int> const limits(static_cast<std::size_t>(devices), limit);
    auto const slow = support::capped_1f1b(size, limits, cost);
    CHECK(pp::verify(slow, limit));
    auto const fast = pp::make_timetable(pp::ZeroBubbleAuto<>{limit}, size, cost);
    CHECK(pp::verify(fast, limit));
    CHECK(pp::makespan(fast) <= pp::makespan(slow) * (1 + 1e-12));
  }
  CHECK(gained / 200 > 0.02);
}
