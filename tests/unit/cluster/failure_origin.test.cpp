// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/failure_origin.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pp = pipelining;
using kind = pp::detail::failure_origin::kind;

namespace {

//! A store in which everything has been said already.
struct said_store {
  std::map<std::string, std::string> values{};
  int questions = 0;

  void set(std::string const& key, std::string const& value) { values[key] = value; }
  std::string get(std::string const& key, std::chrono::nanoseconds) { return values.at(key); }
  std::optional<std::string> look_up(std::string const& key, std::chrono::nanoseconds) {
    ++questions;
    auto const found = values.find(key);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  }
  void barrier(std::string const&, int, std::chrono::nanoseconds) {}
  void abort(std::string const&) {}
  std::optional<std::string> failure() { return std::nullopt; }
};

struct said {
  int rank;
  std::vector<int> waits_for;
  pp::detail::failure_cause cause = pp::detail::failure_cause::told;
};

pp::detail::failure_origin origin_of(std::vector<said> const& all, int named) {
  said_store line;
  for (said const& each : all)
    pp::detail::tell_standing(
      line, "run", each.rank, {"is at " + std::to_string(each.rank), each.waits_for, each.cause});
  return pp::detail::trace_origin(line, "run", named, std::chrono::seconds(1));
}

constexpr auto deadline = pp::detail::failure_cause::deadline;
constexpr auto library = pp::detail::failure_cause::library;
constexpr auto ended = pp::detail::failure_cause::ended;

} // namespace

TEST_CASE("a deadline began with the rank at the end of the chain that waits for nobody") {
  auto const found = origin_of({{0, {1}, deadline}, {1, {2}}, {2, {}}, {3, {2}}}, 0);
  CHECK(found.rank == 2);
  CHECK(found.found == kind::busy);
  CHECK(pp::describe(found) == "\n  rank 2 is where it began: it is at 2");
}

TEST_CASE("a rank that is waited for and does not answer is where it began") {
  for (pp::detail::failure_cause const cause : {deadline, library}) {
    auto const found = origin_of({{0, {1, 3}, cause}, {1, {0}}}, 0);
    CHECK(found.rank == 3);
    CHECK(found.found == kind::silent);
    CHECK(pp::describe(found).find("\n  rank 3 is where it began: it does not answer") == 0);
  }
}

TEST_CASE("ranks that wait for each other are all told") {
  auto const found = origin_of({{4, {2}, deadline}, {2, {4, 5}}, {5, {2}}}, 4);
  CHECK(found.rank == 4);
  CHECK(found.found == kind::circle);
  CHECK(pp::describe(found) == "\n  rank 2 is at 2\n  rank 5 is at 5");
}

TEST_CASE("a rank's own failure, a library's with all alive, and a peer that has ended: the rank") {
  CHECK(origin_of({{1, {0}, pp::detail::failure_cause::own}, {0, {}}}, 1).rank == 1);
  CHECK(origin_of({{1, {0}, library}, {0, {}}}, 1).rank == 1);
  CHECK(origin_of({{1, {0}, deadline}, {0, {}, ended}}, 1).rank == 1);
  CHECK(origin_of({}, 1).rank == 1);
  CHECK(origin_of({}, -1).rank == -1);
  CHECK(pp::describe(origin_of({}, 1)).empty());
}

TEST_CASE("answers are asked for once per rank, through a real store too") {
  said_store line;
  for (int rank = 0; rank < 6; ++rank)
    pp::detail::tell_standing(
      line, "run", rank, {"waits", {(rank + 1) % 6, (rank + 2) % 6}, deadline});
  (void)pp::detail::trace_origin(line, "run", 3, std::chrono::seconds(1));
  CHECK(line.questions == 6);

  pp::store_server server({});
  pp::store one({.port = server.port()}, 0, std::chrono::seconds(20));
  pp::store other({.port = server.port()}, 1, std::chrono::seconds(20));
  pp::detail::tell_standing(one, "run", 0, {"has not ended item 3", {1}, deadline});
  one.abort("rank 0 failed: the iteration took longer than the deadline");
  pp::detail::tell_standing(other, "run", 1, {"runs a pass", {}, pp::detail::failure_cause::told});
  for (pp::store* each : {&one, &other}) {
    auto const found = pp::detail::trace_origin(*each, "run", 0, std::chrono::seconds(20));
    CHECK(found.rank == 1);
    CHECK(found.text == "runs a pass");
  }
  CHECK_FALSE(one.look_up("nobody has said this", std::chrono::milliseconds(1)));
}

TEST_CASE("words of a rank that nobody wrote so are read to their end") {
  CHECK(pp::detail::read_standing("d1,20,|late").waits_for == std::vector<int>{1, 20});
  CHECK(pp::detail::read_standing("d|late, by 3").waits_for.empty());
  CHECK(pp::detail::read_standing("d|late, by 3").text == "late, by 3");
  CHECK(pp::detail::read_standing("d12|late").waits_for.empty()); // no comma after the rank
  CHECK(pp::detail::read_standing("d1,x,|").waits_for == std::vector<int>{1, -1});
  for (char const* const nothing : {"", "|", "d", "d1,"}) {
    CHECK(pp::detail::read_standing(nothing).waits_for.empty());
    CHECK(pp::detail::read_standing(nothing).text.empty());
  }
}
