// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/planner/search/exact.hpp>
#include <pipe/planner/search/order_search.hpp>
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/schedule/zero_bubble_auto.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace pp = pipelining;

namespace {

using orders_list = std::vector<pp::device_orders>;

int peak_of(pp::timetable_view table) {
  int peak = 0;
  for (int device = 0; device < table.over.extents.devices; ++device)
    peak = std::max(peak, pp::peak_activation_chunks(table, device));
  return peak;
}

//! A time per kind and stage, whole numbers, so that sums are exact in any order.
pp::cost_table random_costs(pp::shape const& extents, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  pp::cost_table table(extents, {.communication = static_cast<double>(random() % 3)});
  for (pp::pass_kind const kind :
       {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight})
    for (int stage = 0; stage < pp::stages(extents); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        table.set(kind, stage, chunk, static_cast<double>(4 + random() % 9));
  return table;
}

orders_list v_starts(pp::pipeline_size size, pp::uniform_cost const& cost, int limit) {
  return {pp::make_orders(pp::VMin{}, size, cost),
          pp::make_orders(pp::VHalf{}, size, cost),
          pp::make_orders(pp::ZeroBubbleV{}, size, cost),
          pp::make_orders(
            pp::VAuto<pp::dynamic>{.memory_limit = static_cast<double>(limit)}, size, cost)};
}
orders_list linear_starts(pp::pipeline_size size, pp::uniform_cost const& cost, int limit) {
  return {pp::make_orders(pp::OneFOneB{}, size, cost),
          pp::make_orders(pp::ZeroBubbleH1{}, size, cost),
          pp::make_orders(pp::ZeroBubbleH2{}, size, cost),
          pp::make_orders(pp::ZeroBubbleAuto<pp::dynamic>{.memory_limit = limit}, size, cost)};
}

TEST_CASE("searches find what a minute of annealing from reference orders found, and more") {
  std::ifstream file("golden/search/headroom.txt");
  int lines = 0;
  int shorter = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.front() == '#')
      continue;
    std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '/' || c == ':'; }, ' ');
    std::istringstream words(line);
    std::string name;
    pp::pipeline_size size;
    pp::uniform_cost cost;
    int limit = 0;
    double reference = 0;
    double reference_makespan = 0;
    double annealed = 0;
    words >> name >> size.devices >> size.microbatches >> cost.forward >> cost.backward_input >>
      cost.backward_weight >> cost.communication >> limit >> reference >> reference_makespan >>
      annealed;
    REQUIRE(words);
    CAPTURE(line);
    bool const linear = name.substr(0, 3) == "ZB-";
    orders_list const starts =
      linear ? linear_starts(size, cost, limit) : v_starts(size, cost, limit);
    double const work = (cost.forward + cost.backward_input + cost.backward_weight) *
                        size.microbatches * (linear ? 1 : 2);
    pp::found_order const found =
      pp::search_order(std::span<pp::device_orders const>(starts),
                       cost,
                       {.memory_limit = limit, .goal = pp::search_goal::span, .most_moves = 40000});
    CHECK(pp::verify(found.table, limit));
    CHECK(found.time == pp::span_of(found.table));
    CHECK(found.time >= found.bound);
    CHECK(found.time - work <= annealed);
    if (annealed < reference)
      CHECK(found.time - work < reference);
    shorter += found.time - work < annealed ? 1 : 0;
    ++lines;
  }
  CHECK(lines == 17);
  CHECK(shorter >= 4);
}

TEST_CASE("small searches end at the proven optimum") {
  int equal = 0;
  int all = 0;
  for (int devices = 2; devices <= 3; ++devices)
    for (int limit = 1; limit <= 3; ++limit)
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        pp::pipeline_size const size{devices, 4};
        orders_list const starts{pp::make_orders(pp::ZeroBubbleH1{}, size)};
        pp::cost_table const cost = random_costs(starts[0].over.extents, seed);
        pp::exact_order const optimum =
          pp::shortest_order(starts[0].over.extents, cost, {.memory_limit = limit});
        REQUIRE(optimum.optimal);
        pp::found_order const found =
          pp::search_order(std::span<pp::device_orders const>(starts),
                           cost,
                           {.memory_limit = limit, .most_moves = 20000});
        CAPTURE(devices);
        CAPTURE(limit);
        CAPTURE(seed);
        CHECK(found.time >= optimum.makespan * (1 - 1e-9));
        equal += found.time <= optimum.makespan * (1 + 1e-9) ? 1 : 0;
        ++all;
      }
  CHECK(equal == all);
}

TEST_CASE("the length that moves keep up is that of a whole simulation, and so is what is held") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    pp::pipeline_size const size{4, 6};
    pp::device_orders const start = seed % 2 == 0
                                      ? pp::make_orders(pp::VHalf{}, size)
                                      : pp::make_orders(pp::Seq1F1BZeroBubbleH1<2>{}, size);
    pp::cost_table const cost = random_costs(start.over.extents, seed);
    int const limit = peak_of(pp::simulate(start, cost)) + static_cast<int>(seed % 3);
    auto const rows = pp::detail::plain_rows(start, true);
    auto const graph = pp::detail::make_graph(start.over, cost, rows, limit);
    pp::detail::order_walk walk(graph, {seed});
    REQUIRE(walk.start(pp::detail::nodes_of(start.over, graph, rows)));
    int made = 0;
    for (int i = 0; i < 4000; ++i) {
      double const before = walk.length();
      bool const moved = walk.step(i % 7 == 0 ? 30 : 1);
      if (!moved) {
        CHECK(walk.length() == before);
        continue;
      }
      ++made;
      // Checks the times and the limit.
      pp::dynamic_timetable const table =
        pp::detail::table_of(start, graph, walk.rows(), cost, limit);
      REQUIRE(pp::makespan(table) == walk.length());
    }
    CHECK(made > 200);
  }
}

TEST_CASE("nothing found is longer than a start that keeps the limit, and every find can be run") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    pp::pipeline_size const size{3 + static_cast<int>(seed % 2), 5};
    orders_list starts;
    if (seed % 3 == 0)
      starts = {pp::make_orders(pp::VMin{}, size), pp::make_orders(pp::ZeroBubbleV{}, size)};
    else if (seed % 3 == 1)
      starts = {pp::make_orders(pp::Seq1F1B<2>{}, size),
                pp::make_orders(pp::Seq1F1BZeroBubbleH2<2>{}, size)};
    else
      starts = {pp::make_orders(pp::Interleaved<2>{}, size)};
    pp::cost_table const cost = random_costs(starts[0].over.extents, seed);
    for (pp::device_orders const& start : starts) {
      pp::dynamic_timetable const table = pp::simulate(start, cost);
      pp::order_search_options const options{.memory_limit = peak_of(table), .most_moves = 4000};
      for (pp::search_goal const goal : {pp::search_goal::makespan, pp::search_goal::span}) {
        pp::order_search_options own = options;
        own.goal = goal;
        pp::found_order const found =
          pp::search_order(std::span<pp::device_orders const>(starts), cost, own);
        CHECK(found.start <= pp::detail::time_of(table, goal));
        CHECK(found.time <= found.start);
        CHECK(found.time >= found.bound * (1 - 1e-12));
        CHECK(found.time == pp::detail::time_of(found.table, goal));
        CHECK(pp::verify(found.table, options.memory_limit));
        CHECK(pp::prove(pp::lower(found.table, pp::uniform_sizes{.message = 8, .activation = 8})));
      }
    }
  }
}

TEST_CASE("a seed gives one order, whoever watches; whoever watches may end it") {
  pp::pipeline_size const size{4, 8};
  orders_list const starts{pp::make_orders(pp::ZeroBubbleH1{}, size)};
  pp::cost_table const cost = random_costs(starts[0].over.extents, 5);
  pp::order_search_options options{.memory_limit = 3, .most_moves = 30000};
  std::span<pp::device_orders const> const list(starts);
  pp::found_order const first = pp::search_order(list, cost, options);
  std::vector<std::int64_t> told;
  double best = std::numeric_limits<double>::infinity();
  auto const watch = [&](pp::order_search_progress const& at) {
    CHECK(at.best <= best);
    CHECK(at.bound == first.bound);
    best = at.best;
    told.push_back(at.moves);
    return true;
  };
  pp::found_order const second = pp::search_order(list, cost, options, watch);
  CHECK(first.table.passes == second.table.passes);
  CHECK(first.moves == 30000);
  CHECK(second.moves == first.moves);
  CHECK(best == first.time);
  CHECK(told.size() >= 10);
  CHECK(std::is_sorted(told.begin(), told.end()));

  pp::found_order const ended = pp::search_order(
    list, cost, options, [](pp::order_search_progress const& at) { return at.moves < 5000; });
  CHECK(ended.moves < 10000);
  CHECK(ended.time >= first.time);
  options.memory_limit = 4;
  options.own_starts = false;
  pp::found_order const one = pp::search_order(list, cost, options);
  options.seed = 2;
  CHECK(pp::search_order(list, cost, options).table.passes != one.table.passes);
}

TEST_CASE("whoever watches may end it before any order keeps the limit") {
  orders_list const starts{pp::make_orders(pp::VHalf{}, {4, 8})};
  int told = 0;
  auto const watch = [&told](pp::order_search_progress const& at) {
    CHECK(at.best == std::numeric_limits<double>::infinity());
    ++told;
    return false;
  };
  CHECK_THROWS_WITH_AS(
    pp::search_order(
      std::span<pp::device_orders const>(starts), pp::uniform_cost{}, {.memory_limit = 1}, watch),
    "search_order: it was ended before any order kept the memory limit; let it "
    "go on, or allow more memory",
    std::invalid_argument);
  CHECK(told == 1);
}

TEST_CASE("whole backward passes stay whole where they must") {
  pp::pipeline_size const size{4, 8};
  orders_list const starts{pp::make_orders(pp::OneFOneB{}, size)};
  pp::cost_table const cost = random_costs(starts[0].over.extents, 3);
  std::span<pp::device_orders const> const list(starts);
  pp::found_order const whole =
    pp::search_order(list, cost, {.memory_limit = 4, .split_backward = false, .most_moves = 20000});
  CHECK(std::count_if(whole.table.passes.begin(), whole.table.passes.end(), [](pp::pass const& p) {
          return p.kind == pp::pass_kind::backward;
        }) == 32);
  pp::found_order const halves =
    pp::search_order(list, cost, {.memory_limit = 4, .most_moves = 20000});
  CHECK(halves.time < whole.time);
}

TEST_CASE("pipelines of both directions are searched as they are") {
  orders_list const starts{pp::make_orders(pp::DualPipe<>{}, {4, 8})};
  pp::found_order const found = pp::search_order(std::span<pp::device_orders const>(starts),
                                                 pp::uniform_cost{10, 12, 8, 1},
                                                 {.memory_limit = 5, .most_moves = 20000});
  CHECK(found.time < found.start);
  CHECK(pp::verify(found.table, 5));
}

TEST_CASE("what cannot be searched is said") {
  pp::pipeline_size const size{4, 8};
  orders_list starts;
  auto const search = [&](int limit) {
    (void)pp::search_order(
      std::span<pp::device_orders const>(starts), pp::uniform_cost{}, {.memory_limit = limit});
  };
  CHECK_THROWS_WITH_AS(
    search(4), "search_order: give at least one order to start from", std::invalid_argument);
  starts = {pp::make_orders(pp::OneFOneB{}, size)};
  CHECK_THROWS_WITH_AS(
    search(0), "search_order: the memory limit must be at least 1 chunk", std::invalid_argument);
  starts.push_back(pp::make_orders(pp::VHalf{}, size));
  CHECK_THROWS_WITH_AS(search(4),
                       "search_order: the orders to start from are of different pipelines; search "
                       "each pipeline by itself",
                       std::invalid_argument);
  starts = {pp::make_orders(pp::VHalf{}, size)};
  CHECK_THROWS_WITH_AS(
    search(1),
    "search_order: no order keeps the memory limit of 1 chunk; a microbatch takes 2 on a device",
    std::invalid_argument);
  starts = {pp::make_orders(pp::with_offload<pp::OneFOneB>{}, size)};
  CHECK_THROWS_WITH_AS(search(4),
                       "search_order: orders of several engines per device cannot be searched; "
                       "give the schedule without copies",
                       std::invalid_argument);
}

} // namespace

TEST_CASE("orders of a stage graph are searched along its edges") {
  // Two encoders: 1F1B fills its pipeline as if the second waited for the first.
  pp::with_stage_graph<pp::OneFOneB> const graph{{}, {{0, 2}, {1, 2}, {2, 3}, {1, 3}}};
  orders_list const starts{pp::make_orders(graph, {4, 8})};
  pp::order_search_options const options{
    .memory_limit = 3, .split_backward = false, .most_moves = 20'000};
  auto const found = pp::search_order(starts, pp::uniform_cost{}, options);
  CHECK(pp::verify(found.table, 3));
  CHECK(found.table.over.edges == starts.front().over.edges);
  // What no order beats: two forward passes before the last stage's first, which has 24 to do, and
  // two backward passes behind its last.
  CHECK(found.time == 2 + 24 + 2 * 2);
  auto const chain = pp::search_order(
    orders_list{pp::make_orders(pp::OneFOneB{}, {4, 8})}, pp::uniform_cost{}, options);
  CHECK(chain.time > found.time);

  orders_list const mixed{pp::make_orders(graph, {4, 8}), pp::make_orders(pp::OneFOneB{}, {4, 8})};
  CHECK_THROWS_WITH_AS((void)pp::search_order(mixed, pp::uniform_cost{}),
                       "search_order: the orders to start from are of different pipelines; search "
                       "each pipeline by itself",
                       std::invalid_argument);
}
