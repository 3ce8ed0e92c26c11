// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Trainings whose stages are no layers of one device. See systems.hpp.

#include "systems.hpp"

#include <pipe/planner/registry/adapters.hpp>
#include <pipe/timetable/timetable.hpp>

#include <optional>
#include <utility>

#include "exchange_report.hpp"
#include "host_weights_report.hpp"
#include "options.hpp"
#include "system.hpp"
#include "tensor_report.hpp"
#include "text.hpp"
#include "vocabulary_report.hpp"
#include "weight_travel_report.hpp"

namespace {

using namespace gpt;

//! Plans, trains, reports and checks; see system.hpp.
template <class System>
int run_one(options o, text_to_learn const& text) {
  auto const table = System::plan(o);
  bool const travels = registry::find_schedule(o.schedule).traits.weights_travel;
  auto const shown = [travels](pp::dynamic_timetable of) {
    return travels ? registry::by_groups(std::move(of)) : of;
  };
  o.lengths.assign(static_cast<std::size_t>(o.microbatches), o.size.sequence);
  auto&& model = System::pipeline(o, table);
  return gpt::run_system(
    o,
    text,
    shown(table),
    model,
    [&] { System::report(o, table, model); },
    [&] { return check_system_bits<System>(o, text, table); },
    shown);
}

} // namespace

std::optional<int> gpt::train_system(options o, text_to_learn const& text) {
  if (has_shards_of_stages(o)) {
    return run_one<tensor_system>(o, text);
  }
  if (registry::has_shards(o.adapted)) {
    return run_one<vocabulary_system>(o, text);
  }
  if (o.adapted == registry::adapter::attention_exchange) {
    return run_one<exchange_system>(o, text);
  }
  auto const& named = registry::find_schedule(o.schedule);
  if (named.traits.weights_travel) {
    return run_one<travelling_system>(o, text);
  }
  if (named.traits.stages_go_one_way) {
    if (o.adapted == registry::adapter::none) {
      o.adapted = registry::adapter::sharded_weights; // which lie on the host
    }
    return run_one<round_system>(o, text);
  }
  return std::nullopt;
}
