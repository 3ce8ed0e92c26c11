// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "choose_lowered.hpp"

#include <pipe/plan/lower.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <cmath>
#include <exception>
#include <string_view>

namespace pp = pipelining;

namespace examples {
namespace {

//! Buffers of some size, and what the model and the user need besides. Shards of a tied vocabulary
//! lie on one device, so that no gradient of theirs travels.
pp::uniform_sizes sizes_for(choose_command const& asked, schedule_choice const& choice) {
  bool const tied = (asked.model.tied || asked.tied) && !has_shards(choice.adapted);
  return {
    .message = 8, .activation = 8, .tied_bytes = tied ? 8 : 0, .totals_bytes = asked.clip ? 8 : 0};
}

//! Why a timetable has no plan; empty where it has.
std::string reason_of(pp::timetable_view table, pp::uniform_sizes const& sizes) {
  try {
    (void)pp::lower(table, sizes);
    return {};
  } catch (std::exception const& error) { // a plan that cannot be proven is none, either
    return error.what();
  }
}

//! The same of a candidate. What is drawn of layers that do not stay is not what runs.
std::string reason_of(choose_command const& asked, candidate const& one, pp::timetable_view table) {
  pp::uniform_sizes const sizes = sizes_for(asked, one.choice);
  if (!is_apart(one.choice))
    return reason_of(table, sizes);
  return reason_of(make_named_timetable(one.choice, pp::uniform_cost{}), sizes);
}

//! A choice of the same flow and placement has the same.
std::string kind_of(schedule_choice const& choice) {
  return in_adapter(choice.name, choice.adapted) + " " +
         std::to_string(choice.stages_per_device.value_or(0));
}

int extras_of(schedule_choice const& choice) {
  constexpr int more_than_options = 100;
  int count = choice.adapted == adapter::none ? 0 : more_than_options;
  for (named_option const& each : named_options)
    count += each.given(choice) ? 1 : 0;
  return count;
}

} // namespace

void add_candidate(choose_command const& asked, evaluated const& made, candidates& found) {
  candidate one = made.what;
  if (one.groups.empty() && (asked.model.tied || asked.tied || asked.clip)) {
    std::string const kind = kind_of(one.choice);
    auto known = found.known.find(kind);
    if (known == found.known.end())
      known = found.known.emplace(kind, reason_of(asked, one, made.table)).first;
    one.cannot = known->second;
  }
  if (one.cannot.empty() && one.groups.empty() && one.gigabytes <= asked.memory_gb &&
      one.ranked <= found.fastest * (1 + pp::memory_choice::equal)) {
    found.fastest = std::min(found.fastest, one.ranked);
    one.table = std::make_shared<pp::dynamic_timetable const>(made.table);
  }
  found.all.push_back(std::move(one));
}

std::vector<pp::choice_point> points_of(candidates const& found) {
  std::vector<pp::choice_point> points;
  for (candidate const& each : found.all)
    points.push_back(each.cannot.empty()
                       ? pp::choice_point{each.gigabytes, each.ranked, extras_of(each.choice)}
                       : pp::choice_point{HUGE_VAL, HUGE_VAL});
  return points;
}

pp::memory_choice choose_lowered(choose_command const& asked, candidates& found) {
  for (;;) {
    pp::memory_choice const choice = pp::choose_within(points_of(found), asked.memory_gb);
    if (!choice.pick)
      return choice;
    candidate& pick = found.all[*choice.pick];
    if (!pick.table) // groups of GPUs have no pipeline
      return choice;
    pick.cannot = reason_of(asked, pick, *pick.table);
    if (pick.cannot.empty())
      return choice;
  }
}

} // namespace examples
