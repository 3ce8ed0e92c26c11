// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The published numbers of CUDA and NCCL calls. They may only go down; when one does, so does the
// table.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/view/plan_tables.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace pp = pipelining;

namespace {

//! "name policy P M" -> calls of one iteration.
std::map<std::string, int> published() {
  std::ifstream file("golden/plan/calls.txt");
  REQUIRE(file.good());
  std::map<std::string, int> table;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, policy, devices, microbatches;
    int calls = 0;
    if (words >> name && name[0] != '#' && words >> policy >> devices >> microbatches >> calls)
      table[name + " " + policy + " " + devices + " " + microbatches] = calls;
  }
  return table;
}

template <class Policy>
void gate(std::map<std::string, int>& table, pp::registry::schedule_choice const& choice) {
  pp::plan const work =
    pp::lower<Policy>(pp::registry::make_named_timetable(choice, pp::uniform_cost{}));
  std::string const key = choice.name + " " + Policy::name + " " + std::to_string(choice.devices) +
                          " " + std::to_string(choice.microbatches);
  int const calls = pp::detail::count_calls(work).total();
  auto const known = table.find(key);
  if (known == table.end())
    FAIL_CHECK("golden/plan/calls.txt lacks the line: " << key << " " << calls);
  else if (calls > known->second)
    FAIL_CHECK(key << " takes " << calls << " calls, more than " << known->second);
  else if (calls < known->second)
    FAIL_CHECK("well done; put into golden/plan/calls.txt: " << key << " " << calls);
  if (known != table.end())
    table.erase(known);
}

} // namespace

TEST_CASE("no schedule takes more calls than published") {
  std::map<std::string, int> table = published();
  for (pp::registry::named_schedule const& schedule : pp::registry::named_schedules())
    for (int const devices : {4, 8}) {
      pp::registry::schedule_choice choice;
      choice.name = schedule.name;
      choice.devices = devices;
      choice.microbatches = 4 * devices;
      if (has(schedule.needs, pp::registry::option::memory_limit))
        choice.memory_limit = 2 * devices;
      gate<pp::communicators::one>(table, choice);
      gate<pp::communicators::per_pair>(table, choice);
      gate<pp::communicators::per_edge>(table, choice);
    }
  CHECK(table.empty()); // lines of schedules that no longer exist
}
