// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/cut/layer_partition.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <tests/support/golden_lines.hpp>
#include <tests/support/uneven_layers.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

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

//! All cuts, by recursion.
void all_cuts(int layers, int stages, std::vector<int>& now, std::vector<std::vector<int>>& out) {
  if (stages == 1) {
    now.push_back(layers);
    out.push_back(now);
    now.pop_back();
    return;
  }
  for (int first = 1; first <= layers - stages + 1; ++first) {
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
    pp::layer_cut const best = pp::best_layers(pp::OneFOneB{}, size, layers);
    CHECK(best.exact);
    CHECK(best.makespan == makespan);
    pp::shape const extents{.devices = size.devices, .microbatches = size.microbatches};
    CHECK(pp::makespan(pp::make_timetable<pp::OneFOneB>(
            size, pp::layer_costs(extents, layers, cut))) == makespan);
    // The moves from the balanced cut find a cut within a few per cent, and say that it is no
    // proof.
    pp::layer_cut const moved = pp::best_layers(pp::OneFOneB{}, size, layers, 0, 1);
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
      pp::layer_cut const best = pp::best_layers(pp::OneFOneB{}, {stages, 4}, layers, 0.5);
      double least = 1e300;
      pp::shape const extents{.devices = stages, .microbatches = 4};
      for (std::vector<int> const& cut : cuts)
        least = std::min(least,
                         pp::makespan(pp::make_timetable<pp::OneFOneB>(
                           {stages, 4}, pp::layer_costs(extents, layers, cut, 0.5))));
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
    for (int i = 0; i < stages + static_cast<int>(random() % 6); ++i)
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
    std::vector<int> cut(static_cast<std::size_t>(stages), 1);
    cut.back() = static_cast<int>(layers.size()) - stages + 1;
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

TEST_CASE("layers that cannot be cut are refused") {
  std::vector<pp::layer_cost> layers(3);
  CHECK_THROWS_WITH(pp::balanced_layers(layers, 4), doctest::Contains("every stage needs a layer"));
  CHECK_THROWS_WITH(pp::best_layers(pp::Seq1F1B<2>{}, {2, 2}, layers),
                    doctest::Contains("one chunk"));
  layers[1].forward = -1;
  CHECK_THROWS_WITH(pp::balanced_layers(layers, 2), doctest::Contains("negative"));
}
