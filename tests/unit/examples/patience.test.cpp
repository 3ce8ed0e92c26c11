// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

#include <doctest/doctest.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <tools/timetable/patience.hpp>
#include <vector>

using examples::with_patience;

TEST_CASE("a search that ends in time gives its result or its error") {
  for (double const bound : {0.0, 1000.0}) {
    CHECK(with_patience<int>("short", bound, [] { return 7; }) == 7);
    CHECK_THROWS_WITH_AS(
      with_patience<int>(
        "short", bound, []() -> int { throw std::invalid_argument("no such order"); }),
      "no such order",
      std::invalid_argument);
  }
}

TEST_CASE("a search beyond its bound is given up, and its thread left alone") {
  auto const end = std::make_shared<std::promise<void>>();
  auto const ended = std::make_shared<std::promise<void>>();
  CHECK_THROWS_WITH_AS(
    with_patience<int>("a search",
                       0.001,
                       [end, ended] {
                         end->get_future().wait();
                         ended->set_value();
                         return 1;
                       }),
    "a search was given up after 0.001 s; allow more with --limit-seconds, or ask "
    "for less",
    examples::too_long);
  end->set_value();
  ended->get_future().wait();
}
