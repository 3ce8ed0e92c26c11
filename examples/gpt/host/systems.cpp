// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Trainings whose stages are no layers of one device. See system.hpp.

#include <pipe/planner/registry/adapters.hpp>

#include <optional>
#include <utility>

#include "../compiled_layers.hpp"
#include "../papers/attention_exchange.hpp"
#include "../papers/host_weights.hpp"
#include "../papers/tensor_parallel.hpp"
#include "../papers/vocabulary.hpp"
#include "../papers/weight_travel.hpp"

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
  auto const plan = shown(table);
  begin_run(o, text, plan);
  auto const result = train_model(o, text, model);
  report_plain(text, result);
  if constexpr (requires { System::in_slots; })
    report_in_slots(o, System::in_slots, model.slots());
  else
    System::report(o, table, model);
  write_run({o, text, result, plan}, shown(result.traces.back()));
  return end_run(result, check_system_bits<System>(o, text, table));
}

} // namespace

std::optional<int> gpt::train_system(options o, text_to_learn const& text) {
  if (has_shards_of_stages(o))
    return run_one<tensor_system>(o, text);
  if (o.own.has_shards())
    return run_one<vocabulary_system>(o, text);
  if (o.own.adapted == registry::adapter::attention_exchange)
    return run_one<exchange_system>(o, text);
  auto const& named = registry::find_schedule(o.schedule);
  if (named.traits.weights_travel)
    return run_one<travelling_system>(o, text);
  if (named.traits.stages_go_one_way) {
    if (o.own.adapted == registry::adapter::none)
      o.own.adapted = registry::adapter::sharded_weights; // which lie on the host
    return run_one<round_system>(o, text);
  }
  return std::nullopt;
}
