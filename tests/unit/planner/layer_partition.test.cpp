// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/planner/cut/layer_partition.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <tests/support/uneven_layers.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! The times of stages that hold these layers.
//! @param cut [S] layers of each stage. @param latency time of a message between two devices.
//! @throws std::invalid_argument when the cut does not hold every layer once.
pp::cost_table layer_costs(pp::shape const& extents,
                           std::span<pp::layer_cost const> layers,
                           std::span<int const> cut,
                           double latency = 0) {
  std::int64_t sum = 0;
  for (int const each : cut)
    sum += each;
  if (cut.size() != static_cast<std::size_t>(extents.stages()) || extents.chunks != 1 ||
      sum != static_cast<std::int64_t>(layers.size()))
    throw std::invalid_argument(
      "layer_costs: give one number of layers per stage that sum up to all layers, and one chunk");
  pp::cost_table table(extents, {.communication = latency});
  std::size_t layer = 0;
  for (int stage = 0; stage < extents.stages(); ++stage) {
    pp::layer_cost all{0, 0, 0};
    for (int i = 0; i < cut[static_cast<std::size_t>(stage)]; ++i, ++layer)
      all += layers[layer];
    table.set(pp::role::forward, stage, 0, all.forward);
    table.set(pp::role::input, stage, 0, all.backward_input);
    table.set(pp::role::weights, stage, 0, all.backward_weight);
  }
  return table;
}

//! A cut of layers into stages, and what a schedule takes with it.
struct layer_cut {
  std::vector<int> layers_per_stage;                         //!< [S], 0 allowed
  double makespan = std::numeric_limits<double>::infinity(); //!< of the schedule with this cut
  bool exact = false;                                        //!< all cuts were tried
};

//! The cut with which a schedule has the least makespan.
//!
//! Tries all cuts where there are at most `most_cuts`; else starts from the balanced one and moves
//! single layers between neighbouring stages as long as that helps. Every cut that it looks at is
//! simulated.
//!
//! @throws std::invalid_argument for a bad time, or for a schedule with chunks.
//! @complexity O(n) per cut for n passes.
layer_cut best_layers(pp::schedule auto const& plan,
                      pp::pipeline_size size,
                      std::span<pp::layer_cost const> layers,
                      double latency = 0,
                      std::int64_t most_cuts = 20000) {
  pp::shape const extents = plan.arrange(size.devices, size.microbatches);
  pp::detail::check_extents(extents);
  int const all = extents.stages();
  pp::detail::check_layers(layers);
  layer_cut best;
  auto const look_at = [&](std::vector<int> const& cut) {
    double const time =
      pp::makespan(pp::make_timetable(plan, size, layer_costs(extents, layers, cut, latency)));
    if (!(time < best.makespan))
      return false;
    best.makespan = time;
    best.layers_per_stage = cut;
    return true;
  };
  best.exact = pp::detail::try_cuts(static_cast<int>(layers.size()), all, most_cuts, look_at, [&] {
    return pp::balanced_layers(layers, all);
  });
  return best;
}

double slowest(std::vector<pp::layer_cost> const& layers, std::vector<int> const& cut) {
  double most = 0;
  std::size_t layer = 0;
  for (int const count : cut) {
    double sum = 0;
    for (int i = 0; i < count; ++i)
      sum += layers[layer++].sum();
    most = std::max(most, sum);
  }
  return most;
}

//! The most that a device does for one microbatch; a stage on two devices counts half on each.
double slowest_device(std::vector<pp::layer_cost> const& layers,
                      pp::pipeline_view const& over,
                      std::vector<int> const& cut,
                      pp::layer_ends const& ends) {
  std::vector<double> work(static_cast<std::size_t>(over.extents.devices));
  std::size_t layer = 0;
  for (std::size_t stage = 0; stage < cut.size(); ++stage) {
    double sum = stage == 0 ? ends.first.sum() : 0;
    sum += stage + 1 == cut.size() ? ends.last.sum() : 0;
    for (int i = 0; i < cut[stage]; ++i)
      sum += layers[layer++].sum();
    std::vector<int> const holders = pp::holders_of(over, static_cast<int>(stage));
    for (int const device : holders)
      work[static_cast<std::size_t>(device)] += sum / static_cast<double>(holders.size());
  }
  return *std::max_element(work.begin(), work.end());
}

//! All cuts, by recursion.
void all_cuts(int layers, int stages, std::vector<int>& now, std::vector<std::vector<int>>& out) {
  if (stages == 1) {
    now.push_back(layers);
    out.push_back(now);
    now.pop_back();
    return;
  }
  for (int first = 0; first <= layers; ++first) {
    now.push_back(first);
    all_cuts(layers - first, stages - 1, now, out);
    now.pop_back();
  }
}

} // namespace

TEST_CASE("uneven layers are cut as well as the best of all cuts") {
  for (std::string const& line : support::golden_lines("golden/search/uneven_layers.txt")) {
    CAPTURE(line);
    auto const [size, layers, makespan, cut] = support::read_uneven_layers(line);
    REQUIRE(static_cast<int>(cut.size()) == size.devices);
    layer_cut const best = best_layers(pp::OneFOneB{}, size, layers);
    CHECK(best.exact);
    CHECK(best.makespan == makespan);
    pp::shape const extents{.devices = size.devices, .microbatches = size.microbatches};
    CHECK(pp::makespan(pp::make_timetable<pp::OneFOneB>(size, layer_costs(extents, layers, cut))) ==
          makespan);
    // The moves from the balanced cut find a cut within a few per cent, and say that it is no
    // proof.
    layer_cut const moved = best_layers(pp::OneFOneB{}, size, layers, 0, 1);
    CHECK(!moved.exact);
    CHECK(moved.makespan >= makespan);
    CHECK(moved.makespan <= 1.05 * makespan);
  }
}

TEST_CASE("no cut has a faster slowest stage than the balanced one") {
  std::mt19937 random(3);
  for (int count : {3, 7, 9})
    for (int stages : {1, 2, 3}) {
      std::vector<pp::layer_cost> layers(static_cast<std::size_t>(count));
      for (pp::layer_cost& layer : layers)
        layer.forward = 1 + static_cast<double>(random() % 9);
      std::vector<int> now;
      std::vector<std::vector<int>> cuts;
      all_cuts(count, stages, now, cuts);
      std::vector<int> const balanced = pp::balanced_layers(layers, stages);
      CHECK(std::accumulate(balanced.begin(), balanced.end(), 0) == count);
      CHECK(std::find(cuts.begin(), cuts.end(), balanced) != cuts.end());
      for (std::vector<int> const& cut : cuts)
        CHECK(slowest(layers, balanced) <= slowest(layers, cut));
      layer_cut const best = best_layers(pp::OneFOneB{}, {stages, 4}, layers, 0.5);
      double least = 1e300;
      pp::shape const extents{.devices = stages, .microbatches = 4};
      for (std::vector<int> const& cut : cuts)
        least = std::min(least,
                         pp::makespan(pp::make_timetable<pp::OneFOneB>(
                           {stages, 4}, layer_costs(extents, layers, cut, 0.5))));
      CHECK(best.makespan == least);
    }
  std::vector<pp::layer_cost> const equal(32);
  CHECK(pp::balanced_layers(equal, 8) == std::vector<int>(8, 4));
}

TEST_CASE("on devices of different speed the slowest stage is as fast as any cut makes it") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    int const stages = 1 + static_cast<int>(random() % 4);
    std::vector<pp::layer_cost> layers;
    for (int i = 0; i < static_cast<int>(random() % 9); ++i)
      layers.push_back({1.0 + static_cast<double>(random() % 5), 1, 1});
    std::vector<double> speeds;
    for (int i = 0; i < stages; ++i)
      speeds.push_back(0.25 + static_cast<double>(random() % 8) / 4);
    auto const slowest = [&](std::vector<int> const& cut) {
      double most = 0;
      std::size_t layer = 0;
      for (std::size_t stage = 0; stage < cut.size(); ++stage) {
        double work = 0;
        for (int i = 0; i < cut[stage]; ++i, ++layer)
          work += layers[layer].forward + 2;
        most = std::max(most, work / speeds[stage]);
      }
      return most;
    };
    std::vector<int> cut(static_cast<std::size_t>(stages));
    cut.back() = static_cast<int>(layers.size());
    double least = slowest(cut);
    while (pp::detail::next_cut(cut))
      least = std::min(least, slowest(cut));
    CHECK(slowest(pp::balanced_layers(layers, stages, speeds)) == doctest::Approx(least));
  }
  std::vector<pp::layer_cost> const three(3, {1, 1, 1});
  std::vector<double> const bad{1, 0};
  CHECK_THROWS_WITH((void)pp::balanced_layers(three, 2, bad),
                    doctest::Contains("one speed above 0"));
}

TEST_CASE("a stage may have the output layer only, or nothing") {
  std::vector<pp::layer_cost> const layers(61, {1, 0, 0});
  pp::layer_ends const ends{{0.05, 0, 0}, {2.8, 0, 0}};
  std::vector<int> const cut = pp::balanced_layers(layers, 32, {}, ends);
  CHECK(std::accumulate(cut.begin(), cut.end(), 0) == 61);
  CHECK(cut.back() == 0);
  CHECK(*std::max_element(cut.begin(), cut.end()) == 2);
  CHECK(cut.front() == 1); // the one that is not 2 has the embedding
  CHECK(pp::balanced_layers(std::vector<pp::layer_cost>(2), 4).size() == 4);
  CHECK(pp::balanced_layers({}, 2) == std::vector<int>{0, 0});
  layer_cut const best = best_layers(pp::OneFOneB{}, {3, 4}, std::vector<pp::layer_cost>(2));
  CHECK(best.exact);
  CHECK(best.makespan == 4 * 3 + 3); // as on two devices
}

TEST_CASE("no cut has a faster slowest device where layers are equal, whatever the placement") {
  std::mt19937 random(5);
  double worst = 1; // of unlike layers
  for (int round = 0; round < 300; ++round) {
    bool const equal = round % 2 == 0;
    int const devices = 1 + static_cast<int>(random() % 3);
    pp::placement const where = std::vector{
      pp::placement::looped, pp::placement::wave, pp::placement::bidirectional}[random() % 3];
    bool const both_ways = where == pp::placement::bidirectional;
    pp::shape const extents{.devices = both_ways ? 2 * devices : devices,
                            .microbatches = 4,
                            .stages_per_device = both_ways ? 1 : 2,
                            .where = where};
    std::vector<pp::layer_cost> layers(random() % 9);
    for (pp::layer_cost& layer : layers)
      layer = {equal ? 1 : 1 + static_cast<double>(random() % 4), 1, 1};
    pp::layer_ends const ends{{static_cast<double>(random() % 3), 0, 0},
                              {static_cast<double>(random() % 90) / 10, 0, 0}};
    std::vector<int> now;
    std::vector<std::vector<int>> cuts;
    all_cuts(static_cast<int>(layers.size()), extents.stages(), now, cuts);
    double least = 1e300;
    for (std::vector<int> const& cut : cuts)
      least = std::min(least, slowest_device(layers, {extents}, cut, ends));
    std::vector<int> const cut = pp::balanced_devices(layers, {extents}, {}, ends);
    REQUIRE(std::find(cuts.begin(), cuts.end(), cut) != cuts.end());
    double const found = slowest_device(layers, {extents}, cut, ends);
    CAPTURE(round);
    if (equal)
      CHECK(found == doctest::Approx(least));
    else
      worst = std::max(worst, least > 0 ? found / least : 1);
  }
  CHECK(worst < 1.2);
}

TEST_CASE("of 61 layers and an output layer no device has more than four") {
  std::vector<pp::layer_cost> const layers(61, {1, 1, 1});
  pp::layer_ends const ends{{0, 0, 0}, {2.8, 2.8, 2.8}};
  for (pp::placement const where : {pp::placement::looped, pp::placement::wave}) {
    pp::shape const extents{
      .devices = 16, .microbatches = 64, .stages_per_device = 2, .where = where};
    std::vector<int> const cut = pp::balanced_devices(layers, {extents}, {}, ends);
    CHECK(slowest_device(layers, {extents}, cut, ends) == doctest::Approx(3 * 4));
    CHECK(cut.back() == 0); // next to the one layer of its device
  }
}

// The makespans that a cut by hand reaches, which has the output layer alone next to one layer.
TEST_CASE("61 layers and an output layer take as long as in the best cut by hand") {
  std::vector<pp::layer_cost> const layers(61, {1, 1, 1});
  pp::layer_ends const ends{{0, 0, 0}, {2.8, 2.8, 2.8}};
  pp::pipeline_size const size{16, 64};
  auto const makespan_of = [&](auto const& schedule) {
    pp::shape const extents = schedule.arrange(size.devices, size.microbatches);
    std::vector<int> const cut = pp::balanced_devices(layers, {extents}, {}, ends);
    pp::cost_table cost(extents, pp::uniform_cost{});
    for (int stage = 0; stage < extents.stages(); ++stage) {
      double const time = cut[static_cast<std::size_t>(stage)] + (stage == 31 ? 2.8 : 0);
      for (pp::pass_kind const kind :
           {pp::pass_kind::forward, pp::pass_kind::backward_input, pp::pass_kind::backward_weight})
        cost.set(kind, stage, 0, time);
    }
    return pp::makespan(pp::make_timetable(schedule, size, cost));
  };
  CHECK(makespan_of(pp::ZeroBubbleV{}) <= 802.2 + 1e-9);
  CHECK(makespan_of(pp::VHalf{}) <= 850.2 + 1e-9);
  CHECK(makespan_of(pp::ZeroBubbleInterleaved<2>{}) <= 849.8 + 1e-9);
  CHECK(makespan_of(pp::Interleaved<2>{}) <= 993.6 + 1e-9);
}

TEST_CASE("layers that cannot be cut are refused") {
  std::vector<pp::layer_cost> layers(3);
  CHECK_THROWS_WITH(pp::balanced_layers(layers, 0), doctest::Contains("at least one stage"));
  CHECK_THROWS_WITH(best_layers(pp::Seq1F1B<2>{}, {2, 2}, layers), doctest::Contains("one chunk"));
  layers[1].forward = -1;
  CHECK_THROWS_WITH(pp::balanced_layers(layers, 2), doctest::Contains("negative"));
}
