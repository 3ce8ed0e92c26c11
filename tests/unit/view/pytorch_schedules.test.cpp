// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every schedule that has a name is written as CSV and read back, and as a file of PyTorch's, or
// that format has no words for it.
#include <pipe/flow/pass.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/view/pytorch/write_csv.hpp>

#include <doctest/doctest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <tests/support/csv_round_trip.hpp>
#include <tests/unit/view/round_trip.hpp>

namespace pp = pipelining;

namespace {

//! True where the format has the words for a timetable.
bool can_be_written(pp::dynamic_timetable const& table) {
  std::string text;
  try {
    pp::write_pytorch_csv(text, table);
    return true;
  } catch (std::invalid_argument const&) {
    return false;
  }
}

} // namespace

TEST_CASE("every schedule that PyTorch's format can carry comes back") {
  std::set<std::string> refused;
  std::set<std::string> read;
  for (pp::registry::named_schedule const& schedule : pp::registry::named_schedules())
    for (int devices : {1, 2, 4})
      for (int microbatches : {1, 3, 4, 8})
        for (int stages : {0, 2, 3}) {
          bool const stacked = has(schedule.takes, pp::registry::option::stages_per_device);
          if (stacked != (stages > 0))
            continue;
          pp::registry::schedule_choice one;
          one.name = schedule.name;
          one.devices = devices;
          one.microbatches = microbatches;
          if (stacked)
            one.stages_per_device = stages;
          if (has(schedule.needs, pp::registry::option::memory_limit))
            one.memory_limit = 2 * devices;
          pp::dynamic_timetable table;
          try {
            table = pp::registry::make_named_timetable(one, io_tests::times);
          } catch (std::invalid_argument const&) {
            continue; // a precondition of the schedule
          }
          CAPTURE(one.name);
          CAPTURE(devices);
          CAPTURE(microbatches);
          (void)support::check_csv(table);
          bool const written = can_be_written(table);
          (written ? read : refused).insert(one.name);
          if (written)
            static_cast<void>(io_tests::check_round_trip(table));
        }
  CHECK(read.size() >= 20);
  for (std::string const& name : refused) {
    CAPTURE(name);
    pp::registry::named_schedule const& schedule = pp::registry::find_schedule(name);
    pp::registry::schedule_traits const& traits = schedule.traits;
    bool const has_words = !traits.over_chunks && !traits.exchanges_attention &&
                           !traits.two_copies && !traits.any_pairs && !traits.weights_travel &&
                           !traits.places_stages;
    CHECK_FALSE(has_words);
  }
}
