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
namespace registry = pipelining::registry;

namespace {

//! The extents of a choice; none where the schedule cannot have that size.
std::optional<pp::shape> extents_of(registry::schedule_choice const& choice) {
  try {
    return registry::arrange(choice);
  } catch (std::invalid_argument const&) {
    return std::nullopt;
  }
}

registry::schedule_choice
choice_of(registry::named_schedule const& schedule, int devices, int microbatches) {
  registry::schedule_choice one;
  one.name = schedule.name;
  one.devices = devices;
  one.microbatches = microbatches;
  if (has(schedule.needs, registry::option::memory_limit))
    one.memory_limit = 2 * devices;
  return one;
}

} // namespace

TEST_CASE("traits of schedules hold in every size") {
  for (registry::named_schedule const& schedule : registry::named_schedules()) {
    CAPTURE(std::string(schedule.name));
    registry::schedule_traits const& traits = schedule.traits;
    int looked_at = 0;
    bool chunks_always = true;
    for (int devices = 1; devices <= 8; ++devices)
      for (int microbatches = 1; microbatches <= 12; ++microbatches) {
        CAPTURE(devices);
        CAPTURE(microbatches);
        registry::schedule_choice const choice = choice_of(schedule, devices, microbatches);
        auto const extents = extents_of(choice);
        std::string type;
        CHECK_NOTHROW(type = registry::written_type(choice)); // of sizes that are refused as well
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
             registry::option::keep)) // which is told the chunks of each microbatch
      CHECK(traits.over_chunks == chunks_always);
  }
}

TEST_CASE("least microbatches and even devices are those of the sizes that a schedule can have") {
  for (registry::named_schedule const& schedule : registry::named_schedules()) {
    CAPTURE(std::string(schedule.name));
    for (int devices = 1; devices <= 8; ++devices) {
      CAPTURE(devices);
      int first = 0;
      for (int microbatches = 4 * devices; microbatches >= 1; --microbatches)
        if (extents_of(choice_of(schedule, devices, microbatches)))
          first = microbatches;
      CHECK(registry::least_microbatches(choice_of(schedule, devices, 1)).value_or(0) == first);
      registry::schedule_choice odd = choice_of(schedule, devices, first);
      if (first > 0 && has(schedule.takes, registry::option::stages_per_device)) {
        odd.stages_per_device = 3;
        CHECK(!extents_of(odd) == schedule.traits.even_stages);
      }
      if (devices > 1)
        CHECK((first > 0) == (devices % 2 == 0 || !schedule.traits.even_devices));
    }
  }
}

TEST_CASE("searches are seen in the orders") {
  pp::uniform_cost const costs[] = {
    {}, {.backward_input = 3, .communication = 0.7}, {.forward = 2, .backward_weight = 5}};
  for (registry::named_schedule const& schedule : registry::named_schedules()) {
    CAPTURE(std::string(schedule.name));
    bool follows_costs = false;
    for (int devices = 1; devices <= 8; ++devices)
      for (int microbatches = 4; microbatches <= 12; microbatches += 4) { // a search takes a while
        CAPTURE(devices);
        CAPTURE(microbatches);
        auto const choice = choice_of(schedule, devices, microbatches);
        if (!extents_of(choice))
          continue;
        pp::device_orders const orders = registry::plain_orders(choice, costs[0]);
        for (pp::uniform_cost const& other : {costs[1], costs[2]})
          follows_costs =
            follows_costs || registry::plain_orders(choice, other).passes != orders.passes;
      }
    CHECK(follows_costs == schedule.traits.searched);
  }
}

TEST_CASE("a schedule has a type to write down unless it is predicted apart") {
  for (registry::named_schedule const& schedule : registry::named_schedules()) {
    CAPTURE(std::string(schedule.name));
    registry::schedule_traits const& traits = schedule.traits;
    bool const apart = traits.cuts_layers || traits.weights_travel || traits.stages_go_one_way;
    registry::schedule_choice choice = choice_of(schedule, 2, 8);
    if (has(schedule.takes, registry::option::keep))
      choice.chunk_counts = {1, 2}; // a type is for sequences of unequal length alone
    std::string const type = registry::written_type(choice);
    CAPTURE(type);
    CHECK(type.empty() == apart);
    CHECK(type.find('{') == std::string::npos);
  }
}
