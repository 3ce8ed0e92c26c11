// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Prints a check for each type that the registry writes down: what compiled.test.cpp includes.
#include <pipe/planner/registry/named_schedules.hpp>

#include <cstdio>
#include <string>

namespace registry = pipelining::registry;
using registry::option;

namespace {

void print(registry::schedule_choice const& choice) {
  std::string const type = registry::written_type(choice);
  if (!type.empty())
    std::printf("  check<pipelining::%s>(\"%s\", %d, %s);\n",
                type.c_str(),
                choice.name.c_str(),
                choice.chunks.value_or(0),
                choice.eager ? "true" : "false");
}

} // namespace

int main() {
  for (registry::named_schedule const& schedule : registry::named_schedules()) {
    if (has(schedule.takes, option::memory_limit))
      continue; // no part of its type, or a search that takes a program
    registry::schedule_choice choice;
    choice.name = schedule.name;
    choice.devices = 2;
    print(choice);
    if (has(schedule.takes, option::chunks) && !schedule.traits.type.empty()) {
      choice.chunks = 2;
      print(choice);
    }
    if (has(schedule.takes, option::eager)) {
      choice.eager = true;
      print(choice);
    }
  }
}
