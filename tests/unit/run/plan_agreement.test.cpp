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

namespace pp = pipelining;

namespace {
constexpr auto patience = std::chrono::seconds(20);

//! What rank 1 is told when rank 0 has `first` and it has `second`; empty when they agree.
std::string disagreement(pp::plan const& first, pp::plan const& second) {
  pp::store_server server({});
  pp::store zero({.port = server.port()}, 0, patience);
  pp::store one({.port = server.port()}, 1, patience);
  pp::agree_on_plan(zero, first, 0, "run", patience);
  try {
    pp::agree_on_plan(one, second, 1, "run", patience);
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
  CHECK(disagreement(one, pp::lower(pp::make_timetable<pp::OneFOneB>({3, 5}))) ==
        "its plan has 'microbatches 5', that of rank 0 has 'microbatches 4'; start all ranks with "
        "the same program, options and sizes");
  CHECK(
    disagreement(one, pp::lower<pp::communicator_per_edge>(table, pp::uniform_sizes{.message = 8}))
      .find("its plan has 'communication policy edge', that of rank 0 has 'communication "
            "policy pair'") == 0);
  CHECK(disagreement(one, pp::lower_evaluation(table)).find("'purpose evaluation'") !=
        std::string::npos);
  // Only what passes and messages are, and in which order, is left to the digest.
  for (auto const& other :
       {pp::lower(pp::make_timetable<pp::GPipe>({3, 4}), pp::uniform_sizes{.message = 8}),
        pp::lower(table, pp::uniform_sizes{.message = 16})})
    CHECK(disagreement(one, other).find("its plan has 'program of device 0: ") == 0);
}
