// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What holds of every schedule with a name: it takes any size that it does not refuse, and every
// value of its options. A schedule's own test has its laws only; plans under every policy are in
// tests/unit/plan/schedules.test.cpp. PIPELINING_TEST_EVERYTHING=1 in the environment asks for all
// sizes, which takes some minutes; else some stand for all.
#include <pipe/flow/shape.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace pp = pipelining;
namespace registry = pipelining::registry;
using registry::option;
using registry::schedule_choice;

namespace {

bool all_sizes() {
  return std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
}

bool stands_for_all(int extent) {
  return all_sizes() || extent <= 3 || extent == 5 || extent == 8 || extent == 12 || extent == 30;
}

//! Each of the choices with each of the values of an option.
template <class Value, class Set>
void multiply(std::vector<schedule_choice>& all, std::vector<Value> const& values, Set const& set) {
  std::vector<schedule_choice> more;
  for (schedule_choice const& each : all)
    for (Value const& value : values) {
      more.push_back(each);
      set(more.back(), value);
    }
  all = more;
}

//! From the first to the last.
std::vector<int> numbers(int first, int last) {
  std::vector<int> all;
  for (int i = first; i <= last; ++i)
    all.push_back(i);
  return all;
}

//! Sizes of groups, all or those around the corners.
std::vector<int> groups(schedule_choice const& of) {
  std::vector<int> all = numbers(1, of.microbatches + 1);
  std::erase_if(all, [&](int group) {
    return !all_sizes() && group > 2 && std::abs(group - of.devices) > 1 && group < of.microbatches;
  });
  return all;
}

//! Limits of memory, in activations of a stage.
std::vector<int> limits(registry::named_schedule const& schedule, int devices) {
  if (has(schedule.needs, option::memory_limit)) // a search each, up to a tenth of a second
    return {2, devices, 3 * devices / 2, 2 * devices};
  return numbers(1, 2 * devices + 1);
}

//! A size with the options that the schedule has by itself.
std::vector<schedule_choice>
plain_choice(registry::named_schedule const& schedule, int devices, int microbatches) {
  schedule_choice plain;
  plain.name = schedule.name;
  plain.devices = devices;
  plain.microbatches = microbatches;
  return {plain};
}

//! A size with every value of every option that the schedule has.
std::vector<schedule_choice>
choices(registry::named_schedule const& schedule, int devices, int microbatches) {
  std::vector<schedule_choice> all = plain_choice(schedule, devices, microbatches);
  schedule_choice const first = all.front();
  auto const takes = [&](option one) { return has(schedule.takes, one); };
  if (takes(option::chunks)) {
    std::vector<int> chunks = numbers(1, 6);
    if (schedule.traits.exchanges_attention) // has at least as many as devices
      chunks = {devices, devices + 1, devices + 4};
    multiply(all, chunks, [](auto& c, int value) { c.chunks = value; });
  }
  if (takes(option::stages_per_device))
    multiply(all, numbers(1, 8), [](auto& c, int value) { c.stages_per_device = value; });
  if (takes(option::chunks) && takes(option::stages_per_device) && !all_sizes())
    std::erase_if(all, [&](schedule_choice const& c) {
      return *c.stages_per_device > 4 || (*c.stages_per_device + *c.chunks + devices) % 3 != 0;
    });
  if (takes(option::group))
    multiply(all, groups(first), [](auto& c, int value) { c.group = value; });
  if (takes(option::memory_limit))
    multiply(all, limits(schedule, devices), [](auto& c, int value) { c.memory_limit = value; });
  if (takes(option::forwards)) {
    std::size_t const plain = all.size();
    for (std::size_t i = 0; i < plain; ++i)
      for (int more = 0; more < devices; more += 3) {
        all.push_back(all[i]);
        all.back().forwards = *all[i].stages_per_device * *all[i].chunks + more;
      }
  }
  if (takes(option::keep)) // with unequal numbers of chunks, the longest last of three
    multiply(all, std::vector<int>{1, 2, 6}, [](auto& c, int value) {
      int const most = *c.chunks;
      c.chunks.reset();
      c.chunk_counts = {1, std::max(1, most - 1), most};
      c.keep = value;
    });
  else if (takes(option::chunk_counts)) {
    all.push_back(first);
    all.back().chunk_counts = {3, 1, 2};
  }
  if (takes(option::forward_stages))
    multiply(all, std::vector<int>{0, 1, 3}, [](auto& c, int value) {
      c.forward_stages = c.devices + value;
      c.backward_stages = 3 * c.devices + value / 2;
    });
  if (takes(option::eager))
    multiply(all, std::vector<bool>{false, true}, [](auto& c, bool value) { c.eager = value; });
  if (takes(option::unfused))
    multiply(all, std::vector<bool>{false, true}, [](auto& c, bool value) { c.unfused = value; });
  return all;
}

//! What a schedule is made for. Searches take long where times are not alike.
std::vector<pp::uniform_cost> costs(registry::named_schedule const& schedule) {
  if (schedule.traits.searched && !has(schedule.takes, option::memory_limit))
    return {{}};
  if (has(schedule.takes, option::pair_cost))
    return {{10, 12, 8, 1}, {10, 12, 8, 1, 24}};
  return {{10, 12, 8, 1}};
}

bool is_refused(schedule_choice const& choice) {
  try {
    (void)registry::arrange(choice);
    return false;
  } catch (std::invalid_argument const&) {
    return true;
  }
}

//! Passes of a choice's timetables, each of which is verified.
std::size_t verify(registry::named_schedule const& schedule, schedule_choice const& choice) {
  std::size_t passes = 0;
  for (pp::uniform_cost const& cost : costs(schedule))
    try { // throws when `verify` finds a broken rule
      passes += registry::make_named_timetable(choice, cost).passes.size();
    } catch (std::exception const& broken) {
      FAIL(std::string(broken.what())
           << " at " << choice.name << ", P = " << choice.devices << ", M = " << choice.microbatches
           << ", C = " << choice.chunks.value_or(0)
           << ", V = " << choice.stages_per_device.value_or(0) << ", group "
           << choice.group.value_or(0) << ", limit " << choice.memory_limit.value_or(0));
    }
  return passes;
}

} // namespace

TEST_CASE("every schedule keeps every rule in any size, with any of its options") {
  for (registry::named_schedule const& schedule : registry::named_schedules()) {
    if (has(schedule.needs, option::memory_limit) && !all_sizes())
      continue; // v_shape.test.cpp and v_continuous.test.cpp search at some sizes
    std::size_t tables = 0;
    std::size_t passes = 0;
    for (int devices = 1; devices <= 12; ++devices)
      for (int microbatches = 1; microbatches <= 30; ++microbatches) {
        bool const whole_rounds = schedule.traits.weights_travel;
        int const fitting = whole_rounds ? devices * microbatches : microbatches;
        bool const all_options = stands_for_all(devices) && stands_for_all(microbatches);
        for (schedule_choice const& choice : all_options ? choices(schedule, devices, fitting)
                                                         : plain_choice(schedule, devices, fitting))
          if (!is_refused(choice)) {
            passes += verify(schedule, choice);
            ++tables;
          }
      }
    MESSAGE(std::string(schedule.name) << ": " << tables << " choices, " << passes << " passes");
    CHECK(tables >= 20);
  }
}
