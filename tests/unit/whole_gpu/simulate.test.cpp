// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The simulated GPU against closed forms and a naive cache.
#include "simulators/whole_gpu/simulate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "simulators/whole_gpu/cache.hpp"
#include "simulators/whole_gpu/work.hpp"

namespace {

using namespace whole_gpu;

constexpr std::int64_t much = 1'000'000'000; // bytes each microsecond, and bytes

//! Without memory that takes time.
speeds fast() {
  speeds s;
  s.visit = 100;
  s.masked = 150;
  s.start = 7;
  s.between = 5;
  s.end = 3;
  s.hand_on = 11;
  s.memory_rate = s.cache_rate = s.cache_bytes = much;
  return s;
}

//! Pieces of some visits each, one after the other by the blocks that are free.
work handed_out(std::vector<int> const& visits, int blocks) {
  work w;
  for (int const count : visits) {
    auto const begin = static_cast<std::int64_t>(w.visits.size());
    w.visits.resize(w.visits.size() + static_cast<std::size_t>(count));
    w.pieces.push_back({begin, begin + count});
  }
  w.blocks = blocks;
  w.visited_objects = w.own_objects = w.result_objects = 1;
  auto const taken = std::make_shared<int>(0);
  w.next = [taken](int, int) { return (*taken)++; };
  return w;
}

//! The cache as a list, newest first.
struct naive_cache {
  struct entry {
    std::size_t object;
    std::int64_t bytes;
    bool changed;
  };
  std::int64_t room;
  std::vector<entry> entries{};

  std::int64_t touch(std::size_t object, std::int64_t bytes, usage how) {
    std::int64_t moved = how == usage::write ? 0 : bytes;
    entry now{object, bytes, how != usage::read};
    auto const found = std::find_if(
      entries.begin(), entries.end(), [&](entry const& e) { return e.object == object; });
    if (found != entries.end()) {
      moved = 0;
      now.changed = now.changed || found->changed;
      entries.erase(found);
    }
    entries.insert(entries.begin(), now);
    auto const used = [&] {
      std::int64_t sum = 0;
      for (auto const& e : entries) {
        sum += e.bytes;
      }
      return sum;
    };
    while (used() > room) {
      moved += entries.back().changed ? entries.back().bytes : 0;
      entries.pop_back();
    }
    return moved;
  }
};

} // namespace

TEST_CASE("whole GPU: the cache drops the object that was used longest ago") {
  std::mt19937 random(1);
  cache mine(1000, 40);
  naive_cache naive{1000};
  for (int n = 0; n < 5000; ++n) {
    auto const object = static_cast<std::size_t>(random() % 40);
    auto const how = static_cast<usage>(random() % 3);
    auto const bytes = static_cast<std::int64_t>(20 + object * 3);
    REQUIRE(mine.touch(object, bytes, how) == naive.touch(object, bytes, how));
  }
}

TEST_CASE("whole GPU: pieces, starts and ends add up") {
  auto const one = simulate(handed_out({4}, 1), 1, fast());
  CHECK(one.picoseconds == 7 + 400 + 3);
  CHECK(one.busiest == 4);
  auto const two = simulate(handed_out({4, 2}, 1), 1, fast());
  CHECK(two.picoseconds == 7 + 400 + 3 + 5 + 200 + 3);
  auto const side_by_side =
    simulate(handed_out({4, 2, 1}, 2), 2, fast()); // the third after the second
  CHECK(side_by_side.picoseconds == 7 + 400 + 3);
  CHECK(side_by_side.busiest == 4);
  auto masked = handed_out({2}, 1);
  masked.visits[0].masked = true;
  CHECK(simulate(masked, 1, fast()).picoseconds == 7 + 250 + 3);
}

TEST_CASE("whole GPU: a block that starts late finds pieces taken, or does the share that was "
          "dealt to it") {
  auto held = handed_out({1, 1, 1, 1}, 4); // four blocks, three multiprocessors
  CHECK(simulate(held, 3, fast()).busiest == 2);
  held = handed_out({1, 1, 1, 1, 1, 1, 1, 1}, 4);
  held.next = [](int block, int last) { return last < 0 ? block : last + 4; };
  CHECK(simulate(held, 3, fast()).busiest == 4); // two shares of two
}

TEST_CASE("whole GPU: what the next piece reads comes while results leave, or after them") {
  auto w = handed_out({1, 1}, 1);
  w.own_objects = 2;
  w.pieces[1].own = 1;
  w.bytes.own = 2;
  auto s = fast();
  s.memory_rate = 1'000'000; // a byte takes a picosecond
  CHECK(simulate(w, 1, s).picoseconds == 7 + 2 + 100 + 3 + 5 + 2 + 100 + 3);
  auto const early = [](std::int64_t bytes) {
    auto of = handed_out({1, 1}, 1);
    of.own_objects = 2;
    of.pieces[1].own = 1;
    of.bytes.own = bytes;
    of.brings_early = true;
    return of;
  };
  CHECK(simulate(early(2), 1, s).picoseconds == 7 + 2 + 100 + 3 + 5 + 100 + 3);
  CHECK(simulate(early(10), 1, s).picoseconds == 7 + 10 + 100 + 10 + 100 + 3); // longer than both
}

TEST_CASE("whole GPU: sums in a kept order wait, and so do parts") {
  auto w = handed_out({1, 1}, 2);
  w.visits[1].before = 0;
  CHECK(simulate(w, 2, fast()).picoseconds == 7 + 100 + 11 + 3);
  w = handed_out({5, 1}, 2);
  w.pieces[1].before = 0;
  CHECK(simulate(w, 2, fast()).picoseconds == 7 + 500 + 3 + 11 + 3);
  w = handed_out({5, 1}, 2);
  w.pieces[1].before = 0;
  w.result_slices = 3; // each after the same one of the part before
  CHECK(simulate(w, 2, fast()).picoseconds == 7 + 500 + 3 + 11 + 1);
}

TEST_CASE("whole GPU: a piece rounds the sums that are complete, as fast as its results leave") {
  auto w = handed_out({3}, 1);
  w.bytes.result = 100;
  w.bytes.summed = 200;
  w.pieces[0].rounded = 2;
  auto const out = simulate(w, 1, fast());
  CHECK(out.picoseconds == 7 + 300 + 3 + 3 * 2 * 300 / 100);
  CHECK(out.memory_bytes == 200 + 2 * 100); // read once, and half of each written
}

TEST_CASE("whole GPU: in a free order sums wait for who clears them, and who rounds for all") {
  auto w = handed_out({3, 3}, 2);
  w.starts_at_0 = false;
  w.visited_objects = 5;
  int const objects[] = {0, 1, 2, 2, 3, 4};
  for (std::size_t n = 0; n < w.visits.size(); ++n) {
    w.visits[n].object = objects[n];
    w.visits[n].clears = n != 3; // visit 2 does, a stage before it begins
  }
  CHECK(simulate(w, 2, fast()).picoseconds == 7 + 100 + 11 + 200 + 3);
  w = handed_out({3, 1}, 2);
  w.starts_at_0 = false;
  w.visited_objects = 3;
  w.visits[0].object = 1;
  w.visits[1].object = 2;
  w.visits[0].clears = w.visits[1].clears = w.visits[3].clears = true;
  w.bytes.result = 3;
  w.bytes.summed = 2;
  w.pieces[1].rounded = 1; // of object 0, to which the first piece adds last
  CHECK(simulate(w, 2, fast()).picoseconds == 7 + 300 + 11 + 3);
}

TEST_CASE("whole GPU: between pieces, what is asked for early comes early") {
  CHECK(between_pieces(handover::late, 60, 20, 15) == 60);
  CHECK(between_pieces(handover::early, 60, 20, 15) == 20);
  CHECK(between_pieces(handover::overlapped, 60, 20, 15) == 5);
  CHECK(between_pieces(handover::overlapped, 60, 20, 25) == 0);
}

TEST_CASE("whole GPU: bytes that miss the cache pass memory one after the other") {
  auto const reading = [] {
    auto w = handed_out({3}, 1);
    w.visited_objects = 2;
    w.visits[1].object = 1;
    w.bytes.visited = 1000;
    return w;
  };
  auto s = fast();
  s.memory_rate = 1'000'000; // a byte takes a picosecond
  auto const all = simulate(reading(), 1, s);
  CHECK(all.memory_bytes == 2000);
  // The second is asked for when the first is there; the third is in the cache.
  CHECK(all.picoseconds == 7 + 1000 + 1000 + 100 + 100 + 3);
  s.cache_bytes = 1000; // the first is gone when it is wanted again
  CHECK(simulate(reading(), 1, s).memory_bytes == 3000);
}
