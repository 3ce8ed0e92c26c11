// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/run/plan_agreement.hpp>
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
  pp::agree_on_plan(zero, first, 0, "f32", "run", patience);
  try {
    pp::agree_on_plan(one, second, 1, types, "run", patience);
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
    pp::agree_on_plan(
      one, pp::lower(pp::make_timetable<pp::OneFOneB>({3, 4})), 1, "f32", "run", patience),
    "rank 0 has another version of the library",
    std::runtime_error);
}
