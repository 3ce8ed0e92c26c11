// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The registry: schedules by name in adapters, and their timetables.
//!
//! ```cpp
//! namespace registry = pipelining::registry;
//! registry::schedule_choice const choice{.name = "v-half", .devices = 4, .microbatches = 8};
//! auto const table = registry::make_named_timetable(choice, pipelining::uniform_cost{});
//! ```

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/planner/registry/adapters.hpp>
#include <pipe/planner/registry/choice.hpp>
#include <pipe/planner/registry/costs.hpp>
#include <pipe/planner/registry/find.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/planner/registry/published.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/adapt/offload_rules.hpp>
#include <pipe/timetable/attention_cost.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/describe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/partial_cost.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <type_traits>

namespace pipelining::inline v0_3::registry {
namespace detail {

//! The orders of a choice without its adapter, made before if they are kept.
template <class Rows>
device_orders
orders_without_adapter(schedule_choice const& choice, any_cost const& cost, made_orders* made) {
  return made == nullptr ? plain_orders<Rows>(choice, cost) : made->get<Rows>(choice, cost);
}

//! Calls `use` with the schedule of a choice in its adapter, or in none, without what frozen stages
//! do not need.
template <class Rows, class Use>
auto with_adapted(schedule_choice const& choice, Use use, made_orders* made = nullptr) {
  if (choice.adapted == adapter::attention_exchange)
    return use(slim_pipe_exchange{slim_pipe_of(choice), {}});
  schedule_traits const& traits = find_schedule<Rows>(choice.name).traits;
  auto const given = with_schedule<Rows>(choice, [&]<class Schedule>(Schedule const& schedule) {
    placed_schedule found{{.extents = schedule.arrange(choice.devices, choice.microbatches),
                           .orders =
                             [&choice, made](any_cost const& cost) {
                               return orders_without_adapter<Rows>(choice, cost, made);
                             },
                           .cuts_layers = traits.cuts_layers,
                           .is_one_f_one_b = std::is_same_v<Schedule, OneFOneB>},
                          {}};
    found.frozen.resize(static_cast<std::size_t>(choice.frozen));
    std::iota(found.frozen.begin(), found.frozen.end(), 0);
    if constexpr (places_stages<Schedule>)
      found.holder = [schedule](shape const& extents, int stage, int route) {
        return schedule.device_of(extents, stage, route);
      };
    return found;
  });
  if (traits.stages_go_one_way)
    return with_shared_weights(one_way_schedule{given}, choice, use);
  return with_adapter(given, choice, use);
}

//! The timetable of orders, verified.
//! @throws std::invalid_argument with the rule that is broken
inline dynamic_timetable verified(device_orders const& orders, any_cost const& cost) {
  dynamic_timetable table = simulate(orders, cost);
  if (report const verdict = verify(table); !verdict)
    throw std::invalid_argument(describe(verdict, table.over));
  return table;
}

//! The orders of a choice.
template <class Rows>
device_orders orders_of(schedule_choice const& choice, any_cost const& cost, made_orders* made) {
  if (choice.adapted == adapter::none && choice.frozen == 0)
    return orders_without_adapter<Rows>(choice, cost, made);
  return with_adapted<Rows>(
    choice,
    [&](auto const& schedule) {
      return make_orders(schedule, {choice.devices, choice.microbatches}, cost);
    },
    made);
}

} // namespace detail

template <class Rows>
shape arrange(schedule_choice const& choice) {
  detail::check_options(find_schedule<Rows>(choice.name), choice);
  check_extents({.devices = choice.devices, .microbatches = choice.microbatches});
  auto const extents_of = [&choice](auto const& schedule) -> shape {
    return schedule.arrange(choice.devices, choice.microbatches);
  };
  shape const extents = choice.adapted == adapter::none
                          ? with_schedule<Rows>(choice, extents_of)
                          : detail::with_adapted<Rows>(choice, extents_of);
  check_extents(extents);
  return extents;
}

template <class Rows>
shape shown_extents(schedule_choice const& choice) {
  shape const extents = arrange<Rows>(choice);
  schedule_traits const& traits = find_schedule<Rows>(choice.name).traits;
  return traits.weights_travel      ? detail::groups_as_stages(extents)
         : traits.stages_go_one_way ? detail::layers_as_stages(choice)
                                    : extents;
}

template <class Rows>
device_orders plain_orders(schedule_choice const& choice, any_cost const& cost) {
  return with_schedule<Rows>(choice, [&]<class Schedule>(Schedule const& made) -> device_orders {
    pipeline_size const size{choice.devices, choice.microbatches};
    if constexpr (orders_for_recomputation<Schedule>)
      if (choice.adapted == adapter::recompute)
        return make_orders(order_for_recomputation<Schedule>{made}, size, cost);
    return make_orders(made, size, cost);
  });
}

template <class Rows>
any_cost cost_by_parts(schedule_choice const& choice, uniform_cost const& mean, double ratio) {
  detail::slim_pipe_exchange const made{detail::slim_pipe_of(choice), {}};
  shape const extents = arrange<Rows>(choice);
  double const keys = made.inside(extents).chunks / 2.0; // of a chunk, the mean
  uniform_cost linear = mean;
  linear.forward /= 1 + ratio;
  linear.backward_input /= 1 + 2.5 * ratio;
  return attention_part_cost<detail::slim_pipe_exchange>{
    made,
    extents,
    linear,
    (mean.forward - linear.forward) / keys,
    (mean.backward_input - linear.backward_input) / keys};
}

template <class Rows>
any_cost
cost_in_adapter(schedule_choice const& choice, any_cost const& whole, any_cost const& usual) {
  if (choice.adapted != adapter::offload_chunks)
    return whole;
  using share = hidden_share<any_cost>;
  return partial_cost<any_cost, share>{whole, share{usual, arrange<Rows>(choice).chunks}};
}

template <class Rows>
dynamic_timetable
make_named_timetable(schedule_choice const& choice, any_cost const& whole, made_orders* made) {
  (void)arrange<Rows>(choice); // refuses what the schedule cannot have
  any_cost const cost = cost_in_adapter(choice, whole, whole);
  return detail::verified(detail::orders_of<Rows>(choice, cost, made), cost);
}

template <class Rows>
dynamic_timetable make_adapted_timetable(device_orders const& read,
                                         schedule_choice const& choice,
                                         any_cost const& cost) {
  bool const custom = read.over.extents.where == placement::custom;
  if (choice.adapted == adapter::attention_exchange || choice.adapted == adapter::offload_chunks)
    throw std::invalid_argument("files have no chunks of sequences, which " +
                                in_adapter("csv", choice.adapted) + " would need");
  if (custom && has_shards(choice.adapted))
    throw std::invalid_argument("a vocabulary in shards wants stages that go round the devices, "
                                "or down and up; in this file they are elsewhere");
  detail::placed_schedule given{{read.over.extents, [&read](any_cost const&) { return read; }}, {}};
  if (custom)
    given.holder = [&read](shape const&, int stage, int) { return device_of(read.over, stage); };
  return detail::with_adapter(given, choice, [&](auto const& schedule) {
    return detail::verified(
      make_orders(schedule, {read.over.extents.devices, read.over.extents.microbatches}, cost),
      cost);
  });
}

} // namespace pipelining::inline v0_3::registry
#endif
