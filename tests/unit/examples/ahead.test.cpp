// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What other threads make is taken in order, whatever the number of threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <tools/support/ahead.hpp>
#include <vector>

namespace {

//! Takes as long as its number says, and refuses each seventh.
std::size_t square(std::size_t i) {
  std::size_t sum = 0;
  for (std::size_t k = 0; k < i * (i % 5) * 1000; ++k)
    sum += k % 2;
  if (i % 7 == 6)
    throw std::invalid_argument(std::to_string(i) + " is refused");
  return i * i + 0 * sum;
}

std::vector<std::string> taken_with(std::size_t ahead) {
  std::vector<std::string> taken;
  std::size_t last = 0; // what is wanted depends on what was taken
  examples::take_in_order(
    40,
    ahead,
    [&](std::size_t i) { return i % 3 != last % 3 || i < 4; },
    square,
    [&](std::size_t i, std::future<std::size_t> made) {
      try {
        last = made.get();
        taken.push_back(std::to_string(i) + ": " + std::to_string(last));
      } catch (std::invalid_argument const& error) {
        taken.emplace_back(error.what());
      }
    });
  return taken;
}

} // namespace

TEST_CASE("what is taken is the same for any number that is begun ahead") {
  std::vector<std::string> expected;
  std::size_t last = 0;
  for (std::size_t i = 0; i < 40; ++i) {
    if (i % 3 == last % 3 && i >= 4)
      continue;
    if (i % 7 == 6) {
      expected.push_back(std::to_string(i) + " is refused");
      continue;
    }
    last = i * i;
    expected.push_back(std::to_string(i) + ": " + std::to_string(last));
  }
  REQUIRE(expected.size() > 15);
  REQUIRE(expected.size() < 40);
  for (std::size_t ahead = 0; ahead < 50; ahead += ahead < 5 ? 1 : 22) {
    CAPTURE(ahead);
    CHECK(taken_with(ahead) == expected);
  }
}

TEST_CASE("those that take longest are begun before all others, and taken in their turn") {
  std::promise<void> begun;
  std::future<void> const longest = begun.get_future();
  bool met = false;
  std::vector<std::size_t> taken;
  std::size_t const early[] = {17};
  examples::take_in_order(
    20,
    1,
    [](std::size_t) { return true; },
    [&](std::size_t i) {
      if (i == 17)
        begun.set_value();
      if (i == 0) // 17 tasks before the turn of the longest
        met = longest.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
      return i;
    },
    [&](std::size_t i, std::future<std::size_t> made) {
      CHECK(made.get() == i);
      taken.push_back(i);
    },
    early);
  CHECK(met);
  CHECK(taken.size() == 20);
  CHECK(std::is_sorted(taken.begin(), taken.end()));
}

TEST_CASE("results are made on other threads, or on this one where nothing is begun ahead") {
  for (std::size_t const ahead : {std::size_t{0}, std::size_t{3}}) {
    CAPTURE(ahead);
    std::vector<std::thread::id> makers(10);
    examples::take_in_order(
      makers.size(),
      ahead,
      [](std::size_t) { return true; },
      [](std::size_t) { return std::this_thread::get_id(); },
      [&](std::size_t i, std::future<std::thread::id> made) { makers[i] = made.get(); });
    for (std::thread::id const& each : makers)
      CHECK((each == std::this_thread::get_id()) == (ahead == 0));
  }
}

TEST_CASE("no more is begun than was asked for, and an exception of the taker waits for it") {
  std::atomic<int> begun = 0;
  CHECK_THROWS_AS(examples::take_in_order(
                    100,
                    4,
                    [](std::size_t) { return true; },
                    [&](std::size_t) { return ++begun; },
                    [](std::size_t i, std::future<int> made) {
                      (void)made.get();
                      if (i == 9)
                        throw std::runtime_error("enough");
                    }),
                  std::runtime_error);
  CHECK(begun == 13);
}
