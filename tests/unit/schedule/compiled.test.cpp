// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The type that the registry writes down for a schedule is what it makes, and the compiler makes
// the same timetable as the program. The types come from written_types.cpp.
#include <pipe/planner/registry/published.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace pp = pipelining;

namespace {

int checked = 0;

//! Compares the constant of a type with what the registry makes of a choice.
//! @param chunks 0: not said
template <class Schedule>
void check(char const* name, int chunks, bool eager) {
  constexpr auto compiled = pp::timetable<Schedule, 2, 8>;
  static_assert(pp::verify(compiled));
  CAPTURE(std::string(name));
  CAPTURE(chunks);
  pp::registry::schedule_choice choice;
  choice.name = name;
  choice.devices = 2;
  choice.microbatches = 8;
  choice.eager = eager;
  if (chunks > 0)
    choice.chunks = chunks;
  pp::dynamic_timetable const made = pp::registry::make_named_timetable(choice, pp::uniform_cost{});
  pp::timetable_view const view = compiled;
  REQUIRE(made.passes.size() == view.size());
  CHECK(std::equal(made.passes.begin(), made.passes.end(), view.passes));
  CHECK(std::equal(made.starts.begin(), made.starts.end(), view.starts));
  CHECK(made.over.extents == view.over.extents);
  ++checked;
}

} // namespace

TEST_CASE("the compiler makes the timetable of every schedule that has a type") {
#include <written_types.inc>
  CHECK(checked >= 40);
}
