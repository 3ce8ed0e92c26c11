// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every schedule that has a name, under every policy, for all small sizes: lower proves or throws.
// PIPELINING_TEST_EVERYTHING=1 in the environment asks for all choices of options at all of them,
// which takes a minute; else some sizes stand for all.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/cost.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace pp = pipelining;
namespace registry = pipelining::registry;

namespace {

bool stands_for_all(int extent) {
  static bool const all = std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
  return all || extent <= 4 || extent == 7 || extent == 10 || extent == 12 || extent == 24;
}

//! The choices of a schedule's options for a size.
std::vector<registry::schedule_choice>
choices(registry::named_schedule const& schedule, int devices, int microbatches) {
  std::vector<registry::schedule_choice> all;
  bool const chunked = has(schedule.takes, registry::option::chunks);
  bool const stacked = has(schedule.takes, registry::option::stages_per_device);
  // Where a device has two stages for each layer or wave.
  int const step = stacked && schedule.traits.even_stages ? 2 : 1;
  bool const whole = stands_for_all(devices) && stands_for_all(microbatches);
  for (int chunks = 1; chunks <= (chunked && whole ? 3 : 1); ++chunks)
    for (int stages = 1; stages <= (stacked && whole ? 3 : 1); ++stages)
      for (bool const other : {false, true}) {
        registry::schedule_choice one;
        one.name = schedule.name;
        one.devices = devices;
        one.microbatches = microbatches;
        if (chunked)
          one.chunks = chunks;
        if (stacked)
          one.stages_per_device = step * stages;
        if (has(schedule.needs, registry::option::memory_limit))
          one.memory_limit = 2 * devices;
        if (other && !has(schedule.takes, registry::option::eager | registry::option::unfused))
          continue;
        one.eager = other && has(schedule.takes, registry::option::eager);
        one.unfused = other && has(schedule.takes, registry::option::unfused);
        all.push_back(one);
      }
  return all;
}

} // namespace

TEST_CASE("every schedule is proven under every policy") {
  for (registry::named_schedule const& schedule : registry::named_schedules()) {
    int proven = 0;
    for (int devices = 1; devices <= 10; ++devices)
      for (int microbatches = 1; microbatches <= 24; ++microbatches)
        for (registry::schedule_choice const& one : choices(schedule, devices, microbatches)) {
          pp::dynamic_timetable table;
          try {
            table = registry::make_named_timetable(one, pp::uniform_cost{});
          } catch (std::invalid_argument const&) {
            continue; // a precondition of the schedule
          }
          // lower throws when the proof fails.
          (void)pp::lower<pp::communicators::one>(table);
          (void)pp::lower<pp::communicators::per_pair>(table);
          (void)pp::lower<pp::communicators::per_edge>(table);
          ++proven;
        }
    INFO(std::string(schedule.name));
    CHECK(proven > 0);
  }
}
