// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/planner/search/exact.hpp>
#include <pipe/planner/search/order_search.hpp>
#include <pipe/planner/search/v_auto.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
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
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace pp = pipelining;

namespace {

using orders_list = std::vector<pp::device_orders>;
//! One type for all, since a search compiles for every type of watcher.
using order_watcher = std::function<bool(pp::found_order::progress const&)>;

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
    for (int stage = 0; stage < extents.stages(); ++stage)
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

TEST_CASE("orders of unlike microbatches are as short as a constraint solver's, where all fit") {
  // Proven by CP-SAT of OR-Tools 9.15, with the model of benchmarks/solver_peers.py.
  constexpr int proven[] = {147, 176, 161, 168, 183, 167, 177, 170, 166, 178, 165, 158};
  pp::pipeline_size const size{4, 6};
  orders_list const starts{pp::make_orders(pp::ZeroBubbleH1{}, size)};
  for (std::uint64_t number = 0; number < std::size(proven); ++number) {
    CAPTURE(number);
    std::mt19937_64 random(number);
    pp::cost_table cost =
      pp::cost_table(starts[0].over.extents, {.communication = 1}).by_microbatch(size.microbatches);
    for (pp::pass_kind const kind :
         {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight})
      for (int stage = 0; stage < size.devices; ++stage)
        for (int microbatch = 0; microbatch < size.microbatches; ++microbatch)
          cost.set(pp::row_writer::make(kind, stage, microbatch),
                   static_cast<double>(4 + random() % 9));
    pp::found_order const found =
      pp::search_order(std::span<pp::device_orders const>(starts),
                       cost,
                       {.memory_limit = size.microbatches, .most_moves = 60000});
    CHECK(found.time == proven[number]);
    CHECK(found.time == pp::makespan(found.table));
    CHECK(pp::verify(found.table, size.microbatches));
  }
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

namespace {

//! The least makespan of all orders of a chain whose devices hold no more than they may, by looking
//! at every order of every device.
class every_order {
public:
  every_order(int devices, int microbatches, bool split, pp::cost_table const& cost)
      : devices_(devices), microbatches_(microbatches), split_(split), cost_(cost) {}

  [[nodiscard]] double least(pp::stage_memory const& memory, std::vector<double> const& room) {
    std::vector<std::vector<row>> all(static_cast<std::size_t>(devices_));
    for (int device = 0; device < devices_; ++device) {
      auto const at = static_cast<std::size_t>(device);
      grow({}, std::vector<int>(static_cast<std::size_t>(microbatches_)), [&](row const& one) {
        if (peak(one, memory, device) <= room[at])
          all[at].push_back(one);
      });
    }
    double best = std::numeric_limits<double>::infinity();
    std::vector<row const*> chosen;
    choose(all, chosen, best);
    return best;
  }

private:
  struct step {
    int part; //!< 0 forward, 1 backward or backward_input, 2 backward_weight
    int microbatch;
  };
  using row = std::vector<step>;

  void grow(row one, std::vector<int> done, auto const& use) {
    int const parts = split_ ? 3 : 2;
    if (static_cast<int>(one.size()) == parts * microbatches_)
      return use(one);
    for (int i = 0; i < microbatches_; ++i)
      if (int& part = done[static_cast<std::size_t>(i)]; part < parts) {
        one.push_back({part++, i});
        grow(one, done, use);
        one.pop_back();
        --part;
      }
  }
  [[nodiscard]] double peak(row const& one, pp::stage_memory const& memory, int device) const {
    auto const at = static_cast<std::size_t>(device);
    double held = memory.resident[at];
    double most = held;
    double const all = memory.activation[at];
    double const waits = memory.weight_input[at];
    for (step const& each : one) {
      held += each.part == 0 ? all : 0;
      most = std::max(most, held);
      held -= each.part == 0 ? 0 : !split_ ? all : each.part == 1 ? all - waits : waits;
    }
    return most;
  }
  void
  choose(std::vector<std::vector<row>> const& all, std::vector<row const*>& chosen, double& best) {
    if (chosen.size() == all.size()) {
      best = std::min(best, makespan(chosen));
      return;
    }
    for (row const& one : all[chosen.size()]) {
      chosen.push_back(&one);
      choose(all, chosen, best);
      chosen.pop_back();
    }
  }
  [[nodiscard]] double time(step const& what, int device) const {
    pp::pass_kind const kinds[] = {pp::pass_kind::forward,
                                   split_ ? pp::pass_kind::backward_input : pp::pass_kind::backward,
                                   pp::pass_kind::backward_weight};
    return cost_.duration(pp::row_writer::make(kinds[what.part], device, what.microbatch));
  }
  [[nodiscard]] double makespan(std::vector<row const*> const& rows) const {
    double ends[3][3][3]; // [part][device][microbatch]; negative: not yet
    std::fill_n(&ends[0][0][0], 27, -1.0);
    std::vector<std::size_t> at(rows.size());
    std::vector<double> free(rows.size());
    std::size_t left = rows.size() * rows.front()->size();
    for (bool moved = true; moved && left > 0;) {
      moved = false;
      for (int device = 0; device < devices_; ++device) {
        auto const d = static_cast<std::size_t>(device);
        while (at[d] < rows[d]->size()) {
          step const what = (*rows[d])[at[d]];
          int const before = what.part == 0 ? device - 1 : what.part == 1 ? device + 1 : device;
          double ready = 0;
          if (what.part < 2 && before >= 0 && before < devices_) {
            double const sent = ends[what.part][before][what.microbatch];
            if (sent < 0)
              break;
            ready = sent + cost_.latency();
          }
          free[d] = std::max(free[d], ready) + time(what, device);
          ends[what.part][device][what.microbatch] = free[d];
          ++at[d];
          --left;
          moved = true;
        }
      }
    }
    return left > 0 ? std::numeric_limits<double>::infinity()
                    : *std::max_element(free.begin(), free.end());
  }

  int devices_;
  int microbatches_;
  bool split_;
  pp::cost_table const& cost_;
};

} // namespace

TEST_CASE(
  "with limits in bytes no device holds more than it may, and small orders are the shortest") {
  std::mt19937_64 random(5);
  for (auto const& [devices, microbatches, split] :
       {std::tuple{2, 2, true}, std::tuple{2, 3, false}, std::tuple{3, 2, false}})
    for (int draw = 0; draw < 20; ++draw) {
      CAPTURE(devices);
      CAPTURE(draw);
      orders_list const starts{
        pp::make_orders(pp::OneFOneB{}, pp::pipeline_size{devices, microbatches})};
      pp::cost_table cost =
        random_costs(starts[0].over.extents, random()).by_microbatch(microbatches);
      pp::stage_memory memory;
      std::vector<double> room;
      for (int device = 0; device < devices; ++device) {
        for (int i = 0; i < microbatches; ++i)
          cost.set(pp::row_writer::make(pp::pass_kind::forward, device, i),
                   static_cast<double>(3 + random() % 9));
        memory.activation.push_back(static_cast<double>(10 + random() % 20));
        memory.weight_input.push_back(static_cast<double>(1 + random() % 10));
        memory.resident.push_back(static_cast<double>(random() % 50));
        room.push_back(memory.resident.back() +
                       memory.activation.back() * (1 + static_cast<double>(random() % 8) / 4));
      }
      double const least = every_order(devices, microbatches, split, cost).least(memory, room);
      pp::found_order::options const options{
        .room = room, .memory = memory, .split_backward = split, .most_moves = 20000};
      pp::found_order const found =
        pp::search_order(std::span<pp::device_orders const>(starts), cost, options);
      std::vector<double> const held = pp::device_bytes(found.table, memory);
      for (std::size_t device = 0; device < room.size(); ++device)
        CHECK(held[device] <= room[device]);
      CHECK(pp::makespan(found.table) >= least * (1 - 1e-12));
      CAPTURE(split);
      CHECK(pp::makespan(found.table) <= least * (1 + 1e-12));
    }
}

TEST_CASE("limits in bytes that cannot be are refused") {
  orders_list const starts{pp::make_orders(pp::OneFOneB{}, pp::pipeline_size{2, 4})};
  auto const message = [&](pp::found_order::options const& options) -> std::string {
    try {
      (void)pp::search_order(
        std::span<pp::device_orders const>(starts), pp::uniform_cost{}, options);
    } catch (std::invalid_argument const& error) {
      return error.what();
    }
    return "it was found";
  };
  pp::stage_memory const memory{{100, 100}, {40, 40}, {50, 70}};
  CHECK(message({.room = {150, 170}, .memory = memory}) == "it was found");
  CHECK(message({.room = {150, 169}, .memory = memory}) ==
        "search_order: no order keeps the limit of device 1, which has 99 bytes next to what is "
        "always there; a microbatch takes 100 of them");
  CHECK(message({.memory_limit = 2, .room = {150, 170}, .memory = memory}) ==
        "search_order: the limit is in slots or in bytes; give one of them");
  CHECK(message({.room = {150}, .memory = memory}).find("give room for each device") !=
        std::string::npos);
  CHECK(message({.room = {150, 170}, .memory = {{100}, {}, {}}}).find("give room for each") !=
        std::string::npos);
  CHECK(message({.room = {150, 170}, .memory = {{100, 100}, {40, 101}, {}}})
          .find("is a part of the activation") != std::string::npos);
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
      pp::found_order::options const options{.memory_limit = peak_of(table), .most_moves = 4000};
      for (pp::search_goal const goal : {pp::search_goal::makespan, pp::search_goal::span}) {
        pp::found_order::options own = options;
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
  pp::found_order::options options{.memory_limit = 3, .most_moves = 30000};
  std::span<pp::device_orders const> const list(starts);
  pp::found_order const first = pp::search_order(list, cost, options);
  std::vector<std::int64_t> told;
  double best = std::numeric_limits<double>::infinity();
  order_watcher const watch = [&](pp::found_order::progress const& at) {
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

  order_watcher const until_5000 = [](pp::found_order::progress const& at) {
    return at.moves < 5000;
  };
  pp::found_order const ended = pp::search_order(list, cost, options, until_5000);
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
  order_watcher const watch = [&told](pp::found_order::progress const& at) {
    CHECK(at.best == std::numeric_limits<double>::infinity());
    ++told;
    return false;
  };
  CHECK_THROWS_WITH_AS(pp::search_order(std::span<pp::device_orders const>(starts),
                                        pp::cost_table(starts[0].over.extents, {}),
                                        {.memory_limit = 1},
                                        watch),
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
  pp::found_order::options const options{
    .memory_limit = 3, .split_backward = false, .most_moves = 20'000};
  auto const found = pp::search_order(starts, pp::uniform_cost{}, options);
  CHECK(pp::verify(found.table, 3));
  CHECK(found.table.over.edges == starts.front().over.edges);
  // What no order beats: two forward passes before the last stage's first, which has 24 to do, and
  // two backward passes after its last.
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

TEST_CASE("orders around frozen stages are searched: they hold nothing, and go forward only") {
  for (int const limit : {1, 2, 5}) {
    CAPTURE(limit);
    pp::with_frozen_stages<pp::GPipe> const schedule{{}, {0, 1}};
    std::vector<pp::device_orders> const starts{
      pp::make_orders(schedule, {.devices = 3, .microbatches = 5})};
    pp::uniform_cost const cost{2, 3, 2, 0.5};
    pp::found_order const found =
      pp::search_order(starts, cost, {.memory_limit = limit, .most_moves = 20000});
    // Two forward passes and messages, then the third device works without a pause.
    CHECK(found.time == 2 * 2.5 + 5 * 7);
    CHECK(pp::makespan(found.table) == found.time);
    CHECK(pp::verify(found.table));
    CHECK(peak_of(found.table) <= limit);
    CHECK(found.table.passes.size() == 5 * (1 + 1 + 3));
  }
}
