// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tests/simulators/ptx/memory.hpp"

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

TEST_CASE("touched bytes come back as merged ranges, once") {
  std::array<char, 32> place{};
  ptx::memory m;
  m.add(place.data(), 16);
  m.add(place.data() + 16, 16);
  auto const base = reinterpret_cast<std::uintptr_t>(place.data());
  for (std::size_t const i : {2U, 3U, 5U, 15U}) {
    m.find(base)->state[i] |= ptx::state_written;
  }
  m.find(base + 16)->state[0] |= ptx::state_written;
  CHECK(m.take_touched(ptx::state_written) == std::vector<ptx::range>{{base + 2, base + 4},
                                                                      {base + 5, base + 6},
                                                                      {base + 15, base + 16},
                                                                      {base + 16, base + 17}});
  CHECK(m.take_touched(ptx::state_written).empty());
}
