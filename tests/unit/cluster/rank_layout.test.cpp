// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/rank_layout.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace pp = pipelining;
using enum pp::rank_axis;

namespace {

constexpr std::array<std::array<pp::rank_axis, 3>, 6> orders{{{tensor, data, pipeline},
                                                              {tensor, pipeline, data},
                                                              {data, tensor, pipeline},
                                                              {data, pipeline, tensor},
                                                              {pipeline, tensor, data},
                                                              {pipeline, data, tensor}}};

//! Calls visit with every layout of small extents in every order.
template <class Visit>
void for_each_layout(Visit visit) {
  for (int devices = 1; devices <= 4; ++devices)
    for (int replicas = 1; replicas <= 4; ++replicas)
      for (int shards = 1; shards <= 3; ++shards)
        for (auto const& order : orders)
          visit(pp::rank_layout{devices, replicas, shards, order});
}

//! In how many coordinates two places differ, and whether those of an axis do.
int distance(pp::rank_place const& a, pp::rank_place const& b) {
  return (a.device != b.device ? 1 : 0) + (a.replica != b.replica ? 1 : 0) +
         (a.shard != b.shard ? 1 : 0);
}

constexpr pp::rank_layout two_by_three_by_two{.devices = 2, .replicas = 3, .shards = 2};

// The compiler knows it too.
static_assert(pp::ranks_of(two_by_three_by_two) == 12);
static_assert(pp::place_of(two_by_three_by_two, 7) == pp::rank_place{1, 0, 1});
static_assert(pp::rank_of(two_by_three_by_two, {1, 2, 0}) == 10);
static_assert(pp::groups_of(two_by_three_by_two, data) == 4);

} // namespace

TEST_CASE("ranks count through the places, the first axis fastest") {
  for_each_layout([](pp::rank_layout const& layout) {
    // Nested loops, the slowest axis outside, number the ranks independently.
    int const extents[] = {layout.shards, layout.replicas, layout.devices};
    auto const of = [&](std::size_t i) { return static_cast<std::size_t>(layout.order[i]); };
    int rank = 0;
    int at[3] = {};
    for (at[of(2)] = 0; at[of(2)] < extents[of(2)]; ++at[of(2)])
      for (at[of(1)] = 0; at[of(1)] < extents[of(1)]; ++at[of(1)])
        for (at[of(0)] = 0; at[of(0)] < extents[of(0)]; ++at[of(0)], ++rank) {
          pp::rank_place const place{at[2], at[1], at[0]};
          REQUIRE(pp::place_of(layout, rank) == place);
          REQUIRE(pp::rank_of(layout, place) == rank);
        }
    REQUIRE(pp::ranks_of(layout) == rank);
  });
}

TEST_CASE("the groups of an axis cut the run into equal parts that differ in that axis alone") {
  for_each_layout([](pp::rank_layout const& layout) {
    int const ranks = pp::ranks_of(layout);
    for (pp::rank_axis const axis : {tensor, data, pipeline}) {
      std::map<int, std::vector<int>> parts;
      std::map<int, std::string> names;
      for (int rank = 0; rank < ranks; ++rank) {
        pp::rank_group const group = pp::group_of(layout, axis, rank);
        auto const [known, first] = parts.try_emplace(group.number, group.ranks);
        REQUIRE(known->second == group.ranks);
        REQUIRE(names.try_emplace(group.number, group.name).first->second == group.name);
        // New groups come in the order of their lowest ranks.
        REQUIRE((!first || group.number + 1 == static_cast<int>(parts.size())));
        REQUIRE(group.ranks.at(static_cast<std::size_t>(group.index)) == rank);
        REQUIRE(std::is_sorted(group.ranks.begin(), group.ranks.end()));
        for (int const other : group.ranks) {
          auto const here = pp::place_of(layout, rank);
          auto const there = pp::place_of(layout, other);
          REQUIRE(distance(here, there) == (other == rank ? 0 : 1));
          bool const same = axis == tensor ? here.shard == there.shard
                            : axis == data ? here.replica == there.replica
                                           : here.device == there.device;
          REQUIRE(same == (other == rank));
        }
      }
      int const extent = axis == tensor ? layout.shards
                         : axis == data ? layout.replicas
                                        : layout.devices;
      REQUIRE(static_cast<int>(parts.size()) == pp::groups_of(layout, axis));
      std::set<int> all;
      std::set<std::string> different;
      for (auto const& [number, members] : parts) {
        REQUIRE(static_cast<int>(members.size()) == extent);
        all.insert(members.begin(), members.end());
        different.insert(names[number]);
      }
      REQUIRE(static_cast<int>(all.size()) == ranks);
      REQUIRE(different.size() == parts.size());
    }
  });
}

TEST_CASE("the table of the page about data and tensor parallelism is what the code says") {
  std::ifstream file("../docs/how_to/data_and_tensor_parallel.md");
  std::string const page{std::istreambuf_iterator<char>(file), {}};
  REQUIRE(!page.empty());
  // Two machines of four GPUs.
  constexpr pp::rank_layout layout{.devices = 2, .replicas = 2, .shards = 2};
  for (int rank = 0; rank < 8; ++rank) {
    pp::rank_place const place = pp::place_of(layout, rank);
    std::string row = "| " + std::to_string(rank) + " | " + std::to_string(place.device) + " | " +
                      std::to_string(place.replica) + " | " + std::to_string(place.shard) + " |";
    for (pp::rank_axis const axis : {pipeline, data, tensor}) {
      pp::rank_group const group = pp::group_of(layout, axis, rank);
      row += " `" + group.name + "`: " + std::to_string(group.ranks.at(0)) + ", " +
             std::to_string(group.ranks.at(1)) + " |";
    }
    CAPTURE(row);
    CHECK(page.find(row + '\n') != std::string::npos);
  }
}

TEST_CASE("as many replicas as the ranks make") {
  CHECK(pp::layout_of(16, 4, 2) == pp::rank_layout{.devices = 4, .replicas = 2, .shards = 2});
  CHECK(pp::layout_of(4, 4) == pp::rank_layout{.devices = 4});
  CHECK_THROWS_WITH_AS((void)pp::layout_of(6, 4),
                       "layout: 6 ranks cannot be replicas of a pipeline of 4 devices; start a "
                       "multiple of 4 ranks",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)pp::layout_of(12, 4, 2),
                       "layout: 12 ranks cannot be replicas of a pipeline of 4 devices with 2 "
                       "shards each; start a multiple of 8 ranks",
                       std::invalid_argument);
  CHECK_THROWS_AS((void)pp::layout_of(0, 4), std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)pp::layout_of(4, 0),
                       "layout: the pipeline axis has 0 ranks; it must have at least one",
                       std::invalid_argument);
}

TEST_CASE("what a layout has not is refused") {
  pp::rank_layout const layout{.devices = 3, .replicas = 2};
  CHECK_THROWS_WITH_AS(
    (void)pp::place_of(layout, 6), "layout: there is no rank 6 among 6", std::out_of_range);
  CHECK_THROWS_AS((void)pp::place_of(layout, -1), std::out_of_range);
  CHECK_THROWS_WITH_AS((void)pp::rank_of(layout, {.device = 3}),
                       "layout: there is no number 3 on the pipeline axis, which has 3",
                       std::out_of_range);
  CHECK_THROWS_WITH_AS((void)pp::ranks_of({.order = {tensor, tensor, data}}),
                       "layout: the order must name tensor, data and pipeline once each",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS((void)pp::ranks_of({.devices = 65536, .replicas = 65536}),
                       "layout: more ranks than an int counts",
                       std::invalid_argument);
}
