// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Traits of the registry of schedules hold in every size that a schedule can have.
#include <pipe/flow/shape.hpp>
#include <pipe/planner/registry/named_schedules.hpp>

#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pp = pipelining;

namespace {

//! The extents of a choice; none where the schedule cannot have that size.
std::optional<pp::shape> extents_of(pp::registry::schedule_choice const& choice) {
  try {
    return pp::registry::arrange(choice);
  } catch (std::invalid_argument const&) {
    return std::nullopt;
  }
}

pp::registry::schedule_choice
choice_of(pp::registry::named_schedule const& schedule, int devices, int microbatches) {
  pp::registry::schedule_choice one;
  one.name = schedule.name;
  one.devices = devices;
  one.microbatches = microbatches;
  if (has(schedule.needs, pp::registry::option::memory_limit))
    one.memory_limit = 2 * devices;
  return one;
}

} // namespace

TEST_CASE("traits of schedules hold in every size") {
  for (pp::registry::named_schedule const& schedule : pp::registry::named_schedules()) {
    CAPTURE(std::string(schedule.name));
    pp::registry::schedule_traits const& traits = schedule.traits;
    int looked_at = 0;
    bool chunks_always = true;
    for (int devices = 1; devices <= 8; ++devices)
      for (int microbatches = 1; microbatches <= 12; ++microbatches) {
        CAPTURE(devices);
        CAPTURE(microbatches);
        pp::registry::schedule_choice const choice = choice_of(schedule, devices, microbatches);
        auto const extents = extents_of(choice);
        std::string type;
        CHECK_NOTHROW(type =
                        pp::registry::written_type(choice)); // of sizes that are refused as well
        if (!extents)
          continue;
        if (traits.type.find("{chunks}") != std::string_view::npos)
          CHECK(type.find(std::to_string(extents->chunks)) != std::string::npos);
        ++looked_at;
        chunks_always = chunks_always && extents->chunks > 1;
        CHECK(traits.two_copies == (extents->where == pp::placement::bidirectional));
        if (!traits.stages_go_one_way && !traits.weights_travel)
          CHECK(traits.stages_per_device == extents->stages_per_device);
      }
    CHECK(looked_at > 0);
    if (!has(schedule.takes,
             pp::registry::option::keep)) // which is told the chunks of each microbatch
      CHECK(traits.over_chunks == chunks_always);
  }
}

TEST_CASE("a schedule has a type to write down unless it is predicted apart") {
  for (pp::registry::named_schedule const& schedule : pp::registry::named_schedules()) {
    CAPTURE(std::string(schedule.name));
    pp::registry::schedule_traits const& traits = schedule.traits;
    bool const apart = traits.cuts_layers || traits.weights_travel || traits.stages_go_one_way;
    pp::registry::schedule_choice choice = choice_of(schedule, 2, 8);
    if (has(schedule.takes, pp::registry::option::keep))
      choice.chunk_counts = {1, 2}; // a type is for sequences of unequal length alone
    std::string const type = pp::registry::written_type(choice);
    CAPTURE(type);
    CHECK(type.empty() == apart);
    CHECK(type.find('{') == std::string::npos);
  }
}
