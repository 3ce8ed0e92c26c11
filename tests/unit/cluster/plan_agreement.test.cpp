// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/plan_agreement.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <tests/support/raw_store.hpp>

namespace pp = pipelining;

namespace {
using support::patience;

//! What rank 1 is told when rank 0 has `first` and it has `second`; empty when they agree.
std::string disagreement(pp::plan const& first, pp::plan const& second, char const* types = "f32") {
  pp::store_server server({});
  pp::store zero({.port = server.port()}, 0, patience);
  pp::store one({.port = server.port()}, 1, patience);
  pp::detail::agree_on_plan(zero, first, 0, "f32", "run", patience);
  try {
    pp::detail::agree_on_plan(one, second, 1, types, "run", patience);
    return {};
  } catch (std::runtime_error const& error) {
    return error.what();
  }
}
} // namespace

TEST_CASE("equal plans agree, and the first difference of others is named") {
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 4});
  auto const one = pp::lower(table, pp::uniform_sizes{.message = 8});
  CHECK(disagreement(one, pp::lower(table, pp::uniform_sizes{.message = 8})).empty());
  std::string const advice = "; start all ranks with the same program and options";
  CHECK(disagreement(one, pp::lower(pp::make_timetable<pp::OneFOneB>({3, 5}))) ==
        "devices 0 and 1 disagree: microbatches 4 vs 5" + advice);
  CHECK(disagreement(one, one, "bf16") ==
        "devices 0 and 1 disagree: elements 'f32' vs 'bf16'" + advice);
  CHECK(disagreement(
          one, pp::lower(pp::make_timetable<pp::GPipe>({3, 4}), pp::uniform_sizes{.message = 8})) ==
        "devices 0 and 1 disagree on the order of passes" + advice);
  CHECK(disagreement(one, pp::lower(table, pp::uniform_sizes{.message = 16})) ==
        "devices 0 and 1 disagree on the sizes of messages" + advice);
}

TEST_CASE("a rank of another version is told so") {
  pp::store_server server({});
  pp::store zero({.port = server.port()}, 0, patience);
  pp::store one({.port = server.port()}, 1, patience);
  zero.set("run/plan", "something shorter");
  CHECK_THROWS_WITH_AS(
    pp::detail::agree_on_plan(
      one, pp::lower(pp::make_timetable<pp::OneFOneB>({3, 4})), 1, "f32", "run", patience),
    "rank 0 has another version of the library",
    std::runtime_error);
}

namespace {

//! What rank 2 is told when rank 0 says `first` and it says `second`; empty when they agree.
std::string text_disagreement(std::string const& first, std::string const& second) {
  pp::store_server server({});
  pp::store zero({.port = server.port()}, 0, patience);
  pp::store two({.port = server.port()}, 2, patience);
  pp::agree_on_text(zero, first, 0, "run", patience);
  try {
    pp::agree_on_text(two, second, 2, "run", patience);
    return {};
  } catch (std::runtime_error const& error) {
    return error.what();
  }
}

} // namespace

TEST_CASE("the first line of a run's text that differs is named with both ranks") {
  std::string const advice = "; start all ranks with the same program and options";
  CHECK(text_disagreement("", "").empty());
  CHECK(text_disagreement("seed=1\nsteps=5\n", "seed=1\nsteps=5\n").empty());
  CHECK(text_disagreement("layers=8\nseed=1\nsteps=5\n", "layers=8\nseed=7\nsteps=9\n") ==
        "rank 0 has seed=1, rank 2 has seed=7" + advice);
  CHECK(text_disagreement("seed=1\nclip=2\nsteps=5", "seed=1\nsteps=5") ==
        "rank 0 has clip=2, rank 2 has no clip" + advice);
  CHECK(text_disagreement("", "seed=1") == "rank 0 has no seed, rank 2 has seed=1" + advice);
}

TEST_CASE("a rank of another version of the library is told so by its text") {
  pp::store_server server({});
  pp::store zero({.port = server.port()}, 0, patience);
  pp::store one({.port = server.port()}, 1, patience);
  zero.set("run/about", "pipelining=0.0.9\nseed=1");
  std::string said;
  try {
    pp::agree_on_text(one, "seed=1", 1, "run", patience);
  } catch (std::runtime_error const& error) {
    said = error.what();
  }
  CHECK(said.starts_with("rank 0 has pipelining=0.0.9, rank 1 has pipelining="));
}

TEST_CASE("the first difference of two texts is a sentence") {
  auto const said = [](char const* one, char const* other) {
    return pp::detail::differing_lines("A", one, "B", other);
  };
  CHECK(said("a=1\nb=2", "a=1\nb=2\n").empty());
  CHECK(said("a=1\nb=2", "a=1\nc=3\nb=2") == "A has no c, B has c=3");
  CHECK(said("a=1\nb=2\nc=3", "a=1\nc=4") == "A has b=2, B has no b");
  CHECK(said("a=1\nb=2", "b=2\na=1") == "A has a=1, B has b=2");
  CHECK(said("a=1\nb=2", "b=3\na=1") == "A has b=2, B has b=3");
  CHECK(said("8 layers", "9 layers") == "A has 8 layers, B has 9 layers");
  CHECK(said("8 layers", "") == "A has 8 layers, B has no 8 layers");
  CHECK(said("", "\n9 layers") == "A has no 9 layers, B has 9 layers");
  CHECK(said("a=1", "a=1\n\n\n").empty());
  CHECK(said("a=\x1b[2J", "a=\xff") == "A has a=?[2J, B has a=?"); // what a file may have
  CHECK(said("a=1=2", "a=1=3") == "A has a=1=2, B has a=1=3");
}
