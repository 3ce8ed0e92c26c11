// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/flow/array_of.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace pp = pipelining;

TEST_CASE("a list that grows keeps what was added, in order") {
  pp::detail::owned_list<std::string> list;
  CHECK(list.empty());
  for (int i = 0; i < 100; ++i)
    list.push_back("a text that is longer than any string keeps within itself: " +
                   std::to_string(i));
  CHECK(list.size() == 100);
  int next = 0;
  for (std::string const& each : list)
    CHECK(each.ends_with(": " + std::to_string(next++)));
  CHECK(next == 100);
  list.pop_back();
  CHECK(list.back().ends_with(": 98"));
  list.clear();
  CHECK(list.empty());
  CHECK(list.begin() == list.end());
}

TEST_CASE("an element of a list can be added to it, whether or not it grows") {
  pp::detail::owned_list<std::string> list;
  list.push_back("the first of all, which every other one is a copy of");
  for (std::size_t i = 0; i < 20; ++i)
    list.push_back(list[i]);
  for (std::string const& each : list)
    CHECK(each == list[0]);
}

TEST_CASE("a list holds what can only be moved, and can be moved itself") {
  pp::detail::owned_list<std::unique_ptr<int>> list;
  for (int i = 0; i < 9; ++i)
    list.push_back(std::make_unique<int>(i));
  pp::detail::owned_list<std::unique_ptr<int>> const moved = std::move(list);
  CHECK(list.empty());
  REQUIRE(moved.size() == 9);
  CHECK(*moved[8] == 8);
}
