// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/planner/search/frontier.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace pp = pipelining;

namespace {

std::vector<pp::block_choice> blocks_of(int devices, pp::block_choice::options const& how) {
  std::vector<pp::block_choice> all;
  pp::for_each_block(devices, how, [&](pp::block_choice const& each) { all.push_back(each); });
  return all;
}

//! The least bubble among blocks within so much memory.
double least_bubble(std::vector<pp::block_choice> const& all, int legs, double memory) {
  double least = 1;
  for (pp::block_choice const& each : all)
    if (each.legs == legs && each.memory <= memory + 1e-9)
      least = std::min(least, each.bubble);
  return least;
}

//! The lives of all activations of a block over its interval, per device, in microbatches of all
//! stages of a device: counted pass by pass from the slots of every unit of a sequence.
template <int Legs, class Placement>
double counted_memory(pp::block_choice const& choice, int devices) {
  pp::shape const extents = Placement::arrange(devices, 1, choice.chunks, Legs);
  std::vector<int> slots(static_cast<std::size_t>(3 * extents.stages()));
  pp::building_block block{.extents = extents, .slots = slots.data()};
  pp::detail::strides_of<Legs>(choice).lay_out(block);
  double lives = 0;
  for (int stage = 0; stage < extents.stages(); ++stage)
    for (int chunk = 0; chunk < choice.chunks; ++chunk) {
      // Chunk c goes forward as unit c, and its backward passes are those of unit 2 C - 2 - c.
      int const turns = choice.chunks - 1 + choice.chunks - 1 - chunk;
      lives += block.freed(stage) + turns * choice.interval -
               (block.forward(stage) + chunk * choice.interval);
    }
  return lives / choice.chunks / choice.interval / devices / (Legs * choice.chunks);
}

} // namespace

TEST_CASE("no block holds less in the mean than the law of its interval says, whatever it is") {
  for (int devices = 1; devices <= 12; ++devices) {
    pp::block_choice::options const how{.most_legs = 4, .chunks = {1, 2, 3}, .microbatches = 1};
    pp::for_each_block(devices, how, [&](pp::block_choice const& each) {
      double const least = each.least_memory(devices) - 1e-9;
      if (each.legs == 2 && each.where == pp::placement::wave)
        CHECK(counted_memory<2, pp::waves>(each, devices) >= least);
      if (each.legs == 3 && each.where == pp::placement::wave)
        CHECK(counted_memory<3, pp::waves>(each, devices) >= least);
      if (each.legs == 4 && each.where == pp::placement::looped)
        CHECK(counted_memory<4, pp::loops>(each, devices) >= least);
    });
  }
}

TEST_CASE("the law is met by blocks whose passes follow each other at once") {
  // One leg, and an interval in which no other unit is in the way.
  for (int devices = 1; devices <= 8; ++devices)
    for (int chunks = 1; chunks <= 3; ++chunks) {
      pp::block_choice const alone{.chunks = chunks, .interval = 2 * devices + 1};
      CHECK(counted_memory<1, pp::loops>(alone, devices) ==
            doctest::Approx(alone.least_memory(devices)));
    }
  CHECK(pp::block_choice{.legs = 2, .interval = 6}.least_memory(8) ==
        doctest::Approx(3.0)); // P/3 + 1/3
  CHECK(pp::block_choice{.legs = 6, .interval = 18}.least_memory(32) ==
        doctest::Approx(32.0 / 3 + 2.0 / 18));
  CHECK(pp::block_choice{.legs = 2, .chunks = 4, .interval = 6}.least_memory(8) ==
        doctest::Approx((3.0 + 3) / 4));
}

TEST_CASE("blocks of all lengths have the bubbles that are known of some") {
  auto const all = blocks_of(8, {.longest_interval = 1.25});
  CHECK(least_bubble(all, 1, 8) == doctest::Approx(7.0 / 103));            // 1F1B's, split
  CHECK(least_bubble(all, 2, 4) == doctest::Approx(0.107).epsilon(0.005)); // V-Min
  CHECK(least_bubble(all, 3, 3) == doctest::Approx(0.193).epsilon(0.005));
  CHECK(least_bubble(all, 4, 3.5) == doctest::Approx(0.096).epsilon(0.006)); // W
  CHECK(least_bubble(all, 4, 5) == doctest::Approx(0.047).epsilon(0.01));
  CHECK(least_bubble(all, 5, 3.6) == doctest::Approx(0.094).epsilon(0.01));
  // Longer waves hold less, and P/3 is not passed at a bubble below a tenth.
  for (int legs = 1; legs <= 6; ++legs)
    CHECK(least_bubble(all, legs, 8.0 / 3) > 0.1);
}

TEST_CASE("chunks go below a third of P") {
  auto const all = blocks_of(8, {.most_legs = 4, .chunks = {2}});
  CHECK(least_bubble(all, 2, 8.0 / 3) < 0.06);
  CHECK(least_bubble(all, 4, 2) < 0.12);
}

TEST_CASE("the frontier has what nothing beats, and whatever it leaves out is beaten") {
  auto const all = blocks_of(5, {.most_legs = 3, .chunks = {1, 2}});
  auto const best = pp::block_frontier(all, 5);
  auto const beats = [](pp::block_choice const& a, pp::block_choice const& b) {
    return a.chunks <= b.chunks && pp::detail::crossings(a, 5) <= pp::detail::crossings(b, 5) &&
           a.memory <= b.memory && a.bubble <= b.bubble;
  };
  for (pp::block_choice const& each : all) {
    bool const kept = std::find(best.begin(), best.end(), each) != best.end();
    bool beaten = false;
    for (pp::block_choice const& other : best)
      beaten = beaten || (!(other == each) && beats(other, each));
    CHECK(kept != beaten);
  }
  CHECK(best.size() < all.size());
}

TEST_CASE("a crossing is counted for every hop from device to device") {
  for (int legs = 1; legs <= 4; ++legs)
    for (int devices = 1; devices <= 5; ++devices)
      for (auto const where : {pp::placement::looped, pp::placement::wave}) {
        pp::shape const extents{.devices = devices, .stages_per_device = legs, .where = where};
        int hops = 0;
        for (int stage = 0; stage + 1 < extents.stages(); ++stage)
          hops += pp::device_of(extents, stage) != pp::device_of(extents, stage + 1) ? 1 : 0;
        if (devices > 1)
          CHECK(pp::detail::crossings({.legs = legs, .where = where}, devices) == hops);
      }
}

TEST_CASE("options of blocks that cannot be are refused") {
  auto const ignore = [](pp::block_choice const&) {};
  CHECK_THROWS_AS(pp::for_each_block(0, {}, ignore), std::invalid_argument);
  CHECK_THROWS_AS(pp::for_each_block(2, {.most_legs = 7}, ignore), std::invalid_argument);
  CHECK_THROWS_AS(pp::for_each_block(2, {.chunks = {0}}, ignore), std::invalid_argument);
  CHECK_THROWS_AS(pp::for_each_block(2, {.longest_stride = 0}, ignore), std::invalid_argument);
  CHECK_THROWS_AS(pp::for_each_block(2, {.longest_interval = 0.5}, ignore), std::invalid_argument);
}
