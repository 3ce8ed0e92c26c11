// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <doctest/doctest.h>

#include <examples/timetable/patience.hpp>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using examples::patience;
using examples::with_patience;

TEST_CASE("a short search is waited for in silence") {
  patience const how{.first_seconds = 1000, .say = [](double) { FAIL("nothing to say"); }};
  CHECK(with_patience<int>("short", how, [] { return 7; }) == 7);
  CHECK_THROWS_WITH_AS(
    with_patience<int>("short", how, []() -> int { throw std::invalid_argument("no such order"); }),
    "no such order",
    std::invalid_argument);
}

TEST_CASE("a long search says that it goes on, until it is done") {
  // The search ends when it has been spoken of: no clock decides.
  std::promise<void> spoken;
  std::vector<double> said;
  int done = 0;
  patience const how{.first_seconds = 0.001,
                     .say =
                       [&](double seconds) {
                         said.push_back(seconds);
                         if (said.size() == 1)
                           spoken.set_value();
                       },
                     .done = [&] { ++done; }};
  CHECK(with_patience<int>("long", how, [future = spoken.get_future().share()] {
          future.wait();
          return 5;
        }) == 5);
  REQUIRE(!said.empty());
  CHECK(said[0] >= 0.001);
  CHECK(done == 1);
}

TEST_CASE("a search beyond its bound is given up, and its thread left alone") {
  auto const end = std::make_shared<std::promise<void>>();
  auto const ended = std::make_shared<std::promise<void>>();
  patience const how{.most_seconds = 0.001, .first_seconds = 1000, .say = [](double) {}};
  CHECK_THROWS_WITH_AS(with_patience<int>("v-auto",
                                          how,
                                          [end, ended] {
                                            end->get_future().wait();
                                            ended->set_value();
                                            return 1;
                                          }),
                       "v-auto was given up after 0.001 s; allow more with --limit-seconds, or ask "
                       "for less",
                       examples::too_long);
  end->set_value();
  ended->get_future().wait();
}
