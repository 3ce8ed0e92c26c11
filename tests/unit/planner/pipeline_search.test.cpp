// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/cut/layer_partition.hpp>
#include <pipe/planner/search/exact.hpp>
#include <pipe/planner/search/pipeline_search.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <tests/support/uneven_layers.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! Calls `with` for every cut of the layers.
void each_cut(int layers, int stages, std::function<void(std::vector<int> const&)> const& with) {
  std::vector<int> cut;
  auto const go = [&](auto const& self, int left, int open) -> void {
    if (open == 1) {
      cut.push_back(left);
      with(cut);
      cut.pop_back();
      return;
    }
    for (int first = 0; first <= left; ++first) {
      cut.push_back(first);
      self(self, left - first, open - 1);
      cut.pop_back();
    }
  };
  go(go, layers, stages);
}

//! Layers whose microbatches take different times: the first is four times as long as the others.
struct one_long_microbatch {
  pp::layered_devices base;

  struct times {
    pp::cost_table table;

    [[nodiscard]] double duration(pp::pass const& what) const {
      return table.duration(what) * (what.microbatch == 0 ? 4 : 1);
    }
    [[nodiscard]] double latency() const { return table.latency(); }
  };

  [[nodiscard]] int layers() const { return base.layers(); }
  [[nodiscard]] bool equal_devices() const { return true; }
  //! The worst cut there is.
  [[nodiscard]] std::vector<int> start(pp::pipeline_view const& over,
                                       std::vector<int> const&) const {
    std::vector<int> cut(static_cast<std::size_t>(over.extents.stages()), 1);
    cut.back() += layers() - over.extents.stages();
    return cut;
  }
  [[nodiscard]] times costs(pp::pipeline_view const& over, pp::arrangement const& how) const {
    return {base.costs(over, how)};
  }
  [[nodiscard]] double excess(pp::timetable_view table, pp::arrangement const& how) const {
    return base.excess(table, how);
  }
  [[nodiscard]] double least_time(pp::pipeline_view const&) const { return 0; }
};

static_assert(pp::layered_model<one_long_microbatch>);

//! The search with one type of watcher, since it compiles for every type; of
//! `one_long_microbatch` nobody watches it.
pp::found_pipeline searched(
  pp::layered_devices const& model,
  std::vector<pp::device_orders> const& starts,
  pp::found_pipeline::options const& options = {},
  std::function<bool(pp::found_pipeline::progress const&)> const& watch = [](auto const&) {
    return true;
  }) {
  return pp::search_pipeline(model, starts, options, watch);
}

//! Times of stages by hand, with a loop of its own.
pp::cost_table costs_by_hand(pp::pipeline_view const& over,
                             std::vector<pp::detail::layer_load> const& layers,
                             std::vector<pp::detail::device_power> const& devices,
                             pp::arrangement const& how) {
  pp::cost_table table(over.extents, {});
  int first = 0;
  for (int stage = 0; stage < over.extents.stages(); ++stage) {
    int const last = first + how.cut[static_cast<std::size_t>(stage)];
    double speed = HUGE_VAL;
    for (int microbatch = 0; microbatch < over.extents.microbatches; ++microbatch) {
      int const place = pp::device_of(over, stage, microbatch);
      int const device = how.places[static_cast<std::size_t>(place)];
      speed = std::min(speed, devices[static_cast<std::size_t>(device)].speed);
    }
    double forward = 0;
    double input = 0;
    double weight = 0;
    for (int i = first; i < last; ++i) {
      forward += layers[static_cast<std::size_t>(i)].time.forward;
      input += layers[static_cast<std::size_t>(i)].time.backward_input;
      weight += layers[static_cast<std::size_t>(i)].time.backward_weight;
    }
    for (int chunk = 0; chunk < over.extents.chunks; ++chunk) {
      table.set(pp::pass_kind::forward, stage, chunk, forward / speed / over.extents.chunks);
      table.set(pp::pass_kind::backward_input, stage, chunk, input / speed / over.extents.chunks);
      table.set(pp::pass_kind::backward_weight, stage, chunk, weight / speed / over.extents.chunks);
    }
    first = last;
  }
  return table;
}

//! Bytes of the fullest device by hand: every moment at which a pass begins.
bool fits(pp::dynamic_timetable const& table,
          std::vector<pp::detail::layer_load> const& layers,
          std::vector<pp::detail::device_power> const& devices,
          pp::arrangement const& how) {
  std::vector<int> first{0};
  for (int const count : how.cut)
    first.push_back(first.back() + count);
  auto const sum_of = [&](int stage, double pp::detail::layer_load::*what) {
    double sum = 0;
    for (int i = first[static_cast<std::size_t>(stage)];
         i < first[static_cast<std::size_t>(stage) + 1];
         ++i)
      sum += layers[static_cast<std::size_t>(i)].*what;
    return sum;
  };
  for (int place = 0; place < table.over.extents.devices; ++place) {
    double resident = 0;
    for (int stage = 0; stage < table.over.extents.stages(); ++stage) {
      bool here = false;
      for (int microbatch = 0; microbatch < table.over.extents.microbatches; ++microbatch)
        here = here || pp::device_of(table, stage, microbatch) == place;
      resident += here ? sum_of(stage, &pp::detail::layer_load::resident) : 0;
    }
    double held = 0;
    double most = 0;
    for (pp::pass const& what : table.view().row(place)) {
      double const bytes =
        sum_of(what.stage, &pp::detail::layer_load::activation) / table.over.extents.chunks;
      if (what.kind == pp::pass_kind::forward)
        held += bytes;
      most = std::max(most, held);
      if (what.kind == pp::pass_kind::backward || what.kind == pp::pass_kind::backward_weight)
        held -= bytes;
    }
    int const device = how.places[static_cast<std::size_t>(place)];
    if (resident + most > devices[static_cast<std::size_t>(device)].memory * (1 + 1e-12))
      return false;
  }
  return true;
}

std::vector<pp::detail::layer_load> some_layers(std::mt19937& random, int count) {
  std::vector<pp::detail::layer_load> layers;
  for (int i = 0; i < count; ++i) {
    layers.push_back({{1.0 + static_cast<double>(random() % 5),
                       1.0 + static_cast<double>(random() % 5),
                       1.0 + static_cast<double>(random() % 3)},
                      1.0 + static_cast<double>(random() % 3),
                      1.0 + static_cast<double>(random() % 3)});
  }
  return layers;
}

} // namespace

TEST_CASE("microbatches that take different times are searched as well") {
  one_long_microbatch const model{pp::layered_devices(std::vector<pp::detail::layer_load>(8),
                                                      std::vector<pp::detail::device_power>(2))};
  pp::device_orders const start = pp::make_orders(pp::OneFOneB{}, {2, 6}, pp::uniform_cost{});
  double least = HUGE_VAL;
  each_cut(8, 2, [&](std::vector<int> const& cut) {
    pp::arrangement const how{cut, {0, 1}};
    least = std::min(least, pp::makespan(pp::simulate(start, model.costs(start.over, how))));
  });
  pp::found_pipeline const found =
    pp::search_pipeline(model, std::vector{start}, {.rounds = 0, .order_moves = 0});
  CHECK(found.makespan == doctest::Approx(least));
}

TEST_CASE("the search ends with the proven cuts of uneven layers, and with better orders below") {
  for (std::string const& line : support::golden_lines("golden/search/uneven_layers.txt")) {
    CAPTURE(line);
    auto const [size, costs, makespan, cut] = support::read_uneven_layers(line);
    std::vector<pp::detail::layer_load> layers;
    for (pp::layer_cost const& each : costs)
      layers.push_back({each, 1, 0});
    pp::layered_devices const model(
      layers, std::vector<pp::detail::device_power>(static_cast<std::size_t>(size.devices)));
    std::vector<pp::device_orders> const starts{pp::make_orders(pp::OneFOneB{}, size, {})};
    pp::found_pipeline const plain = searched(model, starts, {.order_moves = 0});
    CHECK(plain.makespan == makespan);
    CHECK(pp::makespan(pp::make_timetable<pp::OneFOneB>(
            size,
            costs_by_hand(pp::pipeline_view{starts.front().over.extents},
                          layers,
                          std::vector<pp::detail::device_power>(cut.size()),
                          {cut, plain.how.places}))) == makespan);
    pp::found_pipeline const free = searched(model, starts);
    CHECK(free.makespan <= makespan);
    CHECK(free.makespan >= free.bound);
  }
}

TEST_CASE("on devices that differ, the search agrees with all cuts, places and given orders") {
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    int const devices = 2 + static_cast<int>(random() % 2);
    pp::pipeline_size const size{devices, 2 * devices};
    int const count = 2 * devices + static_cast<int>(random() % 3);
    std::vector<pp::detail::layer_load> const layers = some_layers(random, count);
    std::vector<pp::detail::device_power> powers;
    bool const tight = round % 2 == 1;
    for (int i = 0; i < devices; ++i)
      powers.push_back({1.0 + static_cast<double>(random() % 3),
                        tight ? 8.0 * count / devices + static_cast<double>(random() % 20) : 1e9});
    std::vector<pp::device_orders> starts{pp::make_orders(pp::GPipe{}, size, {}),
                                          pp::make_orders(pp::OneFOneB{}, size, {}),
                                          pp::make_orders(pp::ZeroBubbleH1{}, size, {}),
                                          pp::make_orders(pp::Interleaved<2>{}, size, {}),
                                          pp::make_orders(pp::ZeroBubbleV{}, size, {})};
    if (devices == 2)
      starts.push_back(pp::make_orders(pp::Chimera{}, size, {}));
    double least = HUGE_VAL;
    std::vector<int> places(static_cast<std::size_t>(devices));
    std::iota(places.begin(), places.end(), 0);
    do
      for (pp::device_orders const& each : starts)
        each_cut(count, each.over.extents.stages(), [&](std::vector<int> const& cut) {
          pp::arrangement const how{cut, places};
          pp::dynamic_timetable const table =
            pp::simulate(each, costs_by_hand(each.over, layers, powers, how));
          if (fits(table, layers, powers, how))
            least = std::min(least, pp::makespan(table));
        });
    while (std::next_permutation(places.begin(), places.end()));
    pp::layered_devices const model(layers, powers);
    pp::found_pipeline const plain = searched(model, starts, {.order_moves = 0});
    if (least == HUGE_VAL) {
      CHECK(plain.excess > 0);
      continue;
    }
    CHECK(plain.excess == 0);
    CHECK(plain.makespan == doctest::Approx(least).epsilon(1e-12));
    pp::found_pipeline const free = searched(model, starts, {.rounds = 2, .order_moves = 3000});
    CHECK(free.makespan <= least * (1 + 1e-12));
    CHECK(free.makespan >= free.bound * (1 - 1e-12));
    CHECK(fits(free.table, layers, powers, free.how));
    CHECK(pp::makespan(free.table) == free.makespan);
    CHECK(bool(pp::verify(free.table)));
  }
}

TEST_CASE("with orders free as well, tiny pipelines get the shortest of all cuts") {
  std::mt19937 random(11);
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    int const devices = 2 + static_cast<int>(random() % 2);
    pp::pipeline_size const size{devices, 3};
    std::vector<pp::detail::layer_load> const layers = some_layers(random, devices + 2);
    std::vector<pp::detail::device_power> const powers(static_cast<std::size_t>(devices));
    std::vector<pp::device_orders> const starts{pp::make_orders(pp::ZeroBubbleH1{}, size, {})};
    double least = HUGE_VAL;
    pp::arrangement how{{}, {0, 1, 2}};
    each_cut(devices + 2, devices, [&](std::vector<int> const& cut) {
      how.cut = cut;
      pp::cost_table const cost = costs_by_hand(starts.front().over, layers, powers, how);
      pp::exact_order const best = pp::shortest_order(starts.front().over.extents, cost);
      REQUIRE(best.optimal);
      least = std::min(least, best.makespan);
    });
    pp::layered_devices const model(layers, powers);
    pp::found_pipeline const found = searched(model, starts, {.rounds = 40});
    CHECK(found.makespan == doctest::Approx(least).epsilon(1e-9));
    CHECK(found.bound <= least * (1 + 1e-12));
  }
}

TEST_CASE("the same seed finds the same pipeline, and whoever watches ends it") {
  std::mt19937 random(2);
  std::vector<pp::detail::layer_load> const layers = some_layers(random, 24);
  std::vector<pp::detail::device_power> powers;
  for (int i = 0; i < 6; ++i)
    powers.push_back({1.0 + 0.25 * i, 400});
  pp::layered_devices const model(layers, powers);
  pp::pipeline_size const size{6, 12};
  std::vector<pp::device_orders> const starts{pp::make_orders(pp::OneFOneB{}, size, {}),
                                              pp::make_orders(pp::ZeroBubbleH1{}, size, {})};
  pp::found_pipeline::options const options{
    .seed = 7, .rounds = 2, .most_cuts = 100, .order_moves = 3000};
  pp::found_pipeline const one = searched(model, starts, options);
  pp::found_pipeline const other = searched(model, starts, options);
  CHECK(one.makespan == other.makespan);
  CHECK(one.how == other.how);
  CHECK(one.looks == other.looks);
  CHECK(one.excess == 0);
  CHECK(one.makespan <
        searched(model, starts, {.rounds = 0, .most_cuts = 100, .order_moves = 0}).makespan);
  CHECK(one.makespan >= one.bound);
  int told = 0;
  pp::found_pipeline const early =
    searched(model, starts, options, [&](pp::found_pipeline::progress const& at) {
      CHECK(at.bound == one.bound);
      return ++told < 5;
    });
  CHECK(early.looks <= 5);
  pp::found_pipeline const first =
    searched(model, starts, options, [](pp::found_pipeline::progress const&) { return false; });
  CHECK(first.looks == 1);
  CHECK(first.makespan >= one.makespan);
  CHECK(early.makespan >= one.makespan);
}

TEST_CASE("more stages than layers are searched, and so is an output layer in a stage of its own") {
  pp::layered_devices const few({{{1, 1, 1}}, {{1, 1, 1}}}, {{}, {}});
  std::vector<pp::device_orders> const many{pp::make_orders(pp::Interleaved<2>{}, {2, 2}, {})};
  pp::found_pipeline const found = searched(few, many);
  CHECK(std::accumulate(found.how.cut.begin(), found.how.cut.end(), 0) == 2);
  CHECK(found.makespan >= found.bound);
  std::vector<pp::detail::layer_load> layers(7, {{1, 1, 1}});
  layers.push_back({{2.8, 2.8, 2.8}});
  pp::layered_devices const model(layers, std::vector<pp::detail::device_power>(4));
  std::vector<pp::device_orders> const starts{pp::make_orders(pp::OneFOneB{}, {4, 32}, {})};
  pp::found_pipeline const cut = searched(model, starts, {.order_moves = 0});
  CHECK(cut.how.cut.back() == 1);
}

TEST_CASE("what cannot be searched is refused in a sentence") {
  pp::layered_devices const model({{{1, 1, 1}}, {{1, 1, 1}}}, {{}, {}});
  std::vector<pp::device_orders> const none;
  CHECK_THROWS_WITH(searched(model, none), doctest::Contains("at least one order"));
  CHECK_THROWS_WITH(pp::layered_devices({}, {{}}), doctest::Contains("at least one layer"));
  std::vector<pp::device_orders> const differ{pp::make_orders(pp::OneFOneB{}, {2, 2}, {}),
                                              pp::make_orders(pp::OneFOneB{}, {2, 3}, {})};
  CHECK_THROWS_WITH(searched(model, differ), doctest::Contains("as many devices"));
  CHECK_THROWS_WITH(pp::layered_devices({{{1, 1, 1}, -1}}, {{}}), doctest::Contains("bytes"));
  CHECK_THROWS_WITH(pp::layered_devices({{{1, 1, 1}}}, {{0}}), doctest::Contains("speed"));
}
