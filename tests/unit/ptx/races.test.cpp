// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "simulators/ptx/races.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <tuple>

namespace {

using ptx::u32;

// Knowledge of `count` actors, nothing seen.
ptx::vector_clock nobody(std::size_t count) {
  ptx::vector_clock c;
  c.seen.resize(count);
  c.fenced.resize(count);
  return c;
}

ptx::access by(u32 actor, u32 now, ptx::vector_clock const& known, bool write) {
  ptx::access a;
  a.who = a.issuer = actor;
  a.now = now;
  a.known = &known;
  a.write = write;
  return a;
}

} // namespace

TEST_CASE("joining keeps the most, the common part the least of two clocks") {
  auto a = std::make_shared<ptx::vector_clock>(nobody(3));
  auto b = std::make_shared<ptx::vector_clock>(nobody(3));
  a->seen = {5, 0, 2};
  b->seen = {1, 4, 2};
  auto const seen = [](std::vector<u32> const& counts) {
    return std::make_shared<std::vector<u32> const>(counts);
  };
  a->elsewhere = {{7, seen({3, 2})}};
  b->elsewhere = {{7, seen({9, 1})}, {8, seen({1, 0})}};
  auto const known = [](ptx::clock_pointer const& of) {
    std::map<u32, std::vector<u32>> blocks;
    for (auto const& [block, counts] : of->elsewhere) {
      blocks[block] = *counts;
    }
    return blocks;
  };
  using blocks = std::map<u32, std::vector<u32>>;
  CHECK(ptx::joined(a, b)->seen == std::vector<u32>{5, 4, 2});
  CHECK(known(ptx::joined(a, b)) == blocks{{7, {9, 2}}, {8, {1, 0}}});
  CHECK(ptx::common(a, b)->seen == std::vector<u32>{1, 0, 2});
  CHECK(known(ptx::common(a, b)) == blocks{{7, {3, 1}}});
  CHECK(ptx::joined(a, nullptr) == ptx::clock_pointer(a));
  CHECK(ptx::joined(nullptr, b) == ptx::clock_pointer(b));
}

TEST_CASE("a write must follow every reader, however many there are") {
  for (u32 const forgotten : {0U, 33U, 70U, 100U}) {
    ptx::shadow s(64);
    auto const none = nobody(128);
    u32 now = 1;
    for (u32 const reader : {0U, 1U, 33U, 70U, 100U}) {
      CHECK_FALSE(s.touch(16, 4, by(reader, now++, none, false)));
    }
    auto known = nobody(128);
    known.seen.assign(128, now);
    known.seen[forgotten] = 0;
    auto const found = s.touch(16, 4, by(5, now, known, true));
    REQUIRE(found);
    CHECK(found->earlier == forgotten);
    CHECK_FALSE(found->earlier_write);
    CHECK_FALSE(s.touch(16, 4, by(5, now, known, true))); // its own write is not in its way
  }
}

TEST_CASE("an accesses' size and place decide, not the cells they are kept in") {
  // Against a checker that keeps every byte on its own: the last writer of each byte.
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    ptx::shadow s(64);
    auto const none = nobody(64);
    std::vector<int> writer(64, -1);
    std::vector<std::set<int>> readers(64);
    for (u32 step = 1; step < 40; ++step) {
      u32 const size = 1U << random() % 6;
      u32 const at = static_cast<u32>(random() % (64 / size)) * size;
      int const who = static_cast<int>(random() % 3) * 20;
      bool const write = random() % 3 == 0;
      bool expected = false;
      for (u32 k = at; k < at + size; ++k) {
        expected = expected || (writer[k] >= 0 && writer[k] != who);
        if (write) {
          expected = expected || readers[k].size() > (readers[k].contains(who) ? 1U : 0U);
          writer[k] = who;
          readers[k].clear();
        } else {
          readers[k].insert(who);
        }
      }
      CAPTURE(round);
      CAPTURE(step);
      REQUIRE(s.touch(at, size, by(static_cast<u32>(who), step, none, write)).has_value() ==
              expected);
    }
  }
}

TEST_CASE("an unfinished copy is in everybody's way, also in its own") {
  ptx::shadow s(64);
  auto const none = nobody(8);
  CHECK_FALSE(s.touch(0, 16, by(1, 1, none, true)));
  s.pending(0, 16, true);
  auto const found = s.touch(4, 4, by(1, 2, none, false));
  REQUIRE(found);
  CHECK(found->what == ptx::conflict::in_flight);
  s.pending(0, 16, false);
  CHECK_FALSE(s.touch(4, 4, by(1, 3, none, false)));
}
