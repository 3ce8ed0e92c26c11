// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "simulators/ptx/memory.hpp"

#include <doctest/doctest.h>

#include <array>
#include <stdexcept>

TEST_CASE("addresses are found in the allocation that holds them and nowhere else") {
  std::array<char, 64> place{};
  ptx::memory m;
  m.add(place.data() + 16, 16, false, "a");
  m.add(place.data() + 32, 8, true, "b");
  auto const base = reinterpret_cast<std::uintptr_t>(place.data());
  CHECK(m.find(base + 15) == nullptr);
  REQUIRE(m.find(base + 16) != nullptr);
  CHECK(m.find(base + 31)->name == "a");
  CHECK(m.find(base + 32)->name == "b");
  CHECK(m.find(base + 40) == nullptr);
  CHECK(m.nearest(base + 50)->name == "b");
  CHECK_THROWS_AS(m.add(place.data() + 8, 9), std::invalid_argument);
  CHECK_THROWS_AS(m.add(place.data() + 39, 4), std::invalid_argument);
  m.add(place.data() + 8, 8);
  CHECK_THROWS_AS(m.remove(place.data() + 9), std::invalid_argument);
  m.remove(place.data() + 16);
  CHECK(m.find(base + 20) == nullptr);
}

TEST_CASE("initialisation is tracked per byte") {
  std::array<char, 32> place{};
  ptx::memory m;
  m.add(place.data(), 32);
  CHECK_FALSE(m.initialised(place.data(), 1));
  m.mark(place.data() + 4, 8, true);
  CHECK(m.initialised(place.data() + 4, 8));
  CHECK_FALSE(m.initialised(place.data() + 4, 9));
  m.mark(place.data() + 5, 1, false);
  CHECK_FALSE(m.initialised(place.data() + 4, 8));
  CHECK_FALSE(m.initialised(place.data() + 30, 4));
}

TEST_CASE("a range is marked in all allocations that it meets, and nowhere else") {
  std::array<char, 64> place{};
  ptx::memory m;
  for (std::size_t const at : {8U, 16U, 32U, 48U}) {
    m.add(place.data() + at, 8);
  }
  m.mark(place.data() + 12, 32, true);
  CHECK_FALSE(m.initialised(place.data() + 11, 1));
  CHECK(m.initialised(place.data() + 12, 4));
  CHECK(m.initialised(place.data() + 16, 8));
  CHECK(m.initialised(place.data() + 32, 8));
  CHECK_FALSE(m.initialised(place.data() + 48, 1));
  m.mark(place.data(), 17, false);
  CHECK_FALSE(m.initialised(place.data() + 12, 1));
  CHECK_FALSE(m.initialised(place.data() + 16, 1));
  CHECK(m.initialised(place.data() + 17, 7));
}

TEST_CASE("touched bytes come back as merged ranges, once") {
  std::array<char, 32> place{};
  ptx::memory m;
  m.add(place.data(), 16);
  m.add(place.data() + 16, 16);
  auto const base = reinterpret_cast<std::uintptr_t>(place.data());
  auto const touch = [&m](std::uintptr_t address, ptx::state how) {
    ptx::allocation& a = *m.find(address);
    a.reach(address - a.begin, 1);
    a.state[address - a.begin] |= how;
  };
  for (std::size_t const i : {2U, 3U, 5U, 15U, 16U}) {
    touch(base + i, ptx::state_written);
  }
  touch(base + 3, ptx::state_read);
  touch(base + 20, ptx::state_read);
  auto const touched = m.take_touched();
  CHECK(touched.writes == std::vector<ptx::range>{{base + 2, base + 4},
                                                  {base + 5, base + 6},
                                                  {base + 15, base + 16},
                                                  {base + 16, base + 17}});
  CHECK(touched.reads == std::vector<ptx::range>{{base + 3, base + 4}, {base + 20, base + 21}});
  CHECK(m.take_touched().writes.empty());
  touch(base + 7, ptx::state_written);
  CHECK(m.take_touched().writes == std::vector<ptx::range>{{base + 7, base + 8}});
}
