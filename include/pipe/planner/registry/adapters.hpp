// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Schedules of any name, or of a file, in the adapters of the registry.

#include <pipe/flow/shape.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/planner/registry/choice.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/planner/registry/published.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/slim_pipe_exchange.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <functional>
#include <type_traits>
#include <vector>

namespace pipelining::inline v0_3::registry::detail {

using slim_pipe_exchange = SlimPipeExchange<dynamic, dynamic>;

//! A schedule of any name, or of a file, as one type, so that adapters are compiled once.
struct given_schedule {
  shape extents;
  std::function<device_orders(any_cost const&)> orders;
  bool cuts_layers = false;
  bool is_one_f_one_b = false; //!< which has an order of its own for the vocabulary in shards
  std::vector<int> frozen{};   //!< stages with nothing to train

  [[nodiscard]] shape arrange(int, int) const { return extents; }
  template <cost_model Cost>
  void generate(shape const&, Cost const& cost, row_writer* rows) const {
    device_orders const made = orders(cost);
    for (int device = 0; device < extents.devices; ++device)
      for (int i = made.offsets[static_cast<std::size_t>(device)];
           i < made.offsets[static_cast<std::size_t>(device) + 1];
           ++i)
        rows[device].push(made.passes[static_cast<std::size_t>(i)]);
  }
};

//! A given schedule that places its stages itself.
struct placed_schedule : given_schedule {
  std::function<int(shape const&, int stage, int route)> holder; //!< empty: it does not

  [[nodiscard]] int device_of(shape const& of, int stage, int route) const {
    return holder(of, stage, route);
  }
};

//! A given schedule whose stages go one way.
struct one_way_schedule : placed_schedule {
  static constexpr flow declared = round_training;
};

//! Calls `use` with a schedule whose weights are in shards, as the choice says.
template <class Named, class Use>
auto with_shared_weights(Named const& named, schedule_choice const& choice, Use use) {
  reshard rule{
    .scatter_once = choice.scatter_once, .prefetch = choice.prefetch, .resident = choice.resident};
  if (choice.adapted == adapter::gathered_once)
    rule = gathered_once;
  return use(with_sharded_weights<Named>{named, rule});
}

//! Calls `use` with a schedule in the adapter of a choice for less memory, or in none.
//! @pre it is one of these
template <class Named, class Use>
auto with_less_memory(Named const& named, schedule_choice const& choice, Use use) {
  switch (choice.adapted) {
  case adapter::none: return use(named);
  case adapter::recompute:
    if (named.cuts_layers) // as in the paper
      return use(with_recompute<Named, recompute_around_attention>{named, {}});
    return use(with_recompute<Named, recompute_where_it_frees>{named, {}});
  case adapter::recompute_first:
    return use(with_recompute<Named, recompute_first_stages>{named, {}});
  case adapter::offload_chunks: return use(with_offload<Named, offload_chunks>{named, {}});
  case adapter::weights_on_host:
    return use(with_sharded_weights<Named, weights_on_host>{named, {}});
  case adapter::sharded_weights:
  case adapter::gathered_once: return with_shared_weights(named, choice, use);
  default: break;
  }
  offload_in_slots rule;
  if (choice.adapted == adapter::offload_half)
    rule = offload_half;
  rule.stages = choice.offloaded_stages;
  return use(with_offload<Named>{named, rule});
}

//! Calls `use` with a schedule in the adapter of a choice.
//! @pre it is not attention_exchange
template <class Use>
auto with_adapter(placed_schedule const& given, schedule_choice const& choice, Use use) {
  given_schedule const& unplaced = given;
  if (!has_shards(choice.adapted))
    return given.holder ? with_less_memory(given, choice, use)
                        : with_less_memory(unplaced, choice, use);
  auto const with_shards = [&]<int Barriers>(std::integral_constant<int, Barriers>) {
    return given.is_one_f_one_b ? use(with_vocabulary<OneFOneB, Barriers>{})
                                : use(with_vocabulary<given_schedule, Barriers>{unplaced});
  };
  switch (choice.adapted) {
  case adapter::vocabulary_interlaced:
    return with_shards(std::integral_constant<int, interlaced>{});
  case adapter::vocabulary_1: return with_shards(std::integral_constant<int, 1>{});
  default: return with_shards(std::integral_constant<int, 2>{});
  }
}

} // namespace pipelining::inline v0_3::registry::detail
