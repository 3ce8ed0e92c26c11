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
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/planner/registry/adapters.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/planner/registry/published.hpp>
#include <pipe/planner/search/zero_bubble_within.hpp>
#include <pipe/schedule/block/repeat.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/attention_cost.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

namespace pipelining::inline v0_3::registry {

namespace detail {

//! Calls `use` with the schedule, or with the one that a variant of schedules holds.
template <class Schedule, class Use>
auto with_made(Schedule const& one, Use use) {
  if constexpr (schedule<Schedule>)
    return use(one);
  else
    return std::visit(use, one);
}

//! The limit of a choice that has room in bytes, in whole microbatches of one stage: as many as
//! every device has room for, where each chunk takes as much as the largest; one of each of its
//! stages at least, all at most.
inline double limit_in_room(schedule_choice const& choice, shape const& extents) {
  std::vector<double> const& all = choice.memory.activation;
  std::vector<double> const resident = pipelining::detail::resident_bytes(choice.memory, {extents});
  double least = HUGE_VAL;
  for (std::size_t device = 0; device < resident.size(); ++device)
    least = std::min(least, choice.room[device] - resident[device]);
  double const held = extents.stages_per_device;
  double const fit =
    std::floor(least / (extents.chunks * *std::max_element(all.begin(), all.end())));
  return std::isfinite(fit) ? std::clamp(fit, held, held * extents.microbatches)
                            : held * extents.microbatches;
}

//! Calls `use` with the schedule of a choice, from a row on.
//! @pre one of the rows from there has the name
template <std::size_t Row, class Rows, class Use>
auto with_row(Rows const& rows, schedule_choice const& choice, Use use) {
  auto const& row = std::get<Row>(rows);
  if constexpr (Row + 1 < std::tuple_size_v<Rows>)
    if (row.about.name != choice.name)
      return with_row<Row + 1>(rows, choice, use);
  auto made = row.make(choice);
  if constexpr (requires { made.how; })
    if (choice.swept)
      made.how = effort::sweeps;
  if constexpr (requires { made.memory_limit; } &&
                !std::is_same_v<decltype(made), ZeroBubbleAuto<dynamic>>)
    if (!choice.room.empty())
      made.memory_limit = limit_in_room(choice, made.arrange(choice.devices, choice.microbatches));
  return with_made(made, use);
}

//! Calls `use` with the schedule of a choice, a value of its own type, and returns the result: the
//! same type for all schedules. Not for adapters. Compiles `use` for every schedule.
//! @throws std::invalid_argument for an unknown name.
template <class Rows, class Use>
auto with_schedule(schedule_choice const& choice, Use use) {
  (void)find_schedule<Rows>(choice.name);
  return with_row<0>(Rows::rows, choice, use);
}

//! The smallest number of microbatches that a choice can have, up to four times its devices.
//! @param arrange throws std::invalid_argument for sizes that it refuses
std::optional<int> least_of(schedule_choice& choice, auto arrange) {
  for (choice.microbatches = 1; choice.microbatches <= 4 * choice.devices; ++choice.microbatches)
    try {
      (void)arrange();
      return choice.microbatches;
    } catch (std::invalid_argument const&) { // more, then
    }
  return std::nullopt;
}

//! The schedule of a row, with the traits that follow from the whole row.
template <class Make>
named_schedule with_traits(named_row<Make> const& row) {
  named_schedule about = row.about;
  schedule_traits& traits = about.traits;
  schedule_choice one{};
  one.memory_limit = has(about.takes, option::memory_limit) ? std::optional(4.0) : std::nullopt;
  auto const extents_of = [&] {
    return with_made(row.make(one), [&](auto const& made) -> shape {
      return made.arrange(one.devices, one.microbatches);
    });
  };
  one.devices = 3;
  traits.even_devices = !least_of(one, extents_of);
  one.stages_per_device = 1;
  one.devices = 2;
  traits.even_stages = !least_of(one, extents_of);
  one.stages_per_device.reset();
  one.devices = 1;
  one.microbatches = 1;
  traits.over_chunks =
    has(about.takes, option::chunks) && about.needs == option::none && extents_of().chunks > 1;
  one.devices = 2; // a size that every schedule can have
  one.microbatches = 8;
  shape const extents = extents_of();
  traits.two_copies = extents.where == placement::bidirectional;
  traits.stages_per_device = extents.stages_per_device;
  traits.chunks = extents.chunks;
  traits.limit_in_value =
    has(about.takes, option::memory_limit) && traits.type.find("{limit}") == std::string_view::npos;
  traits.any_pairs = has(about.takes, option::unfused) && !has(about.takes, option::pair_cost);
  traits.searched = with_made(row.make(one), []<class Schedule>(Schedule const&) {
    return !pipelining::detail::orders_device<Schedule>;
  });
  return about;
}

//! Refuses options that a schedule does not have, or lacks, and adapters that it cannot have.
//! @throws std::invalid_argument that names the option
inline void check_options(named_schedule const& schedule, schedule_choice const& choice) {
  for (named_option const& each : named_option::all()) {
    // One chunk is what a schedule without chunks has.
    bool const harmless = each.which == option::chunks && choice.chunks == 1;
    bool const given = each.given(choice);
    if (given && !has(schedule.takes, each.which) && !harmless)
      throw std::invalid_argument(std::string(schedule.name) + " does not have the option " +
                                  each.name);
    if (!given && has(schedule.needs, each.which))
      throw std::invalid_argument(std::string(schedule.name) + " needs the option " + each.name);
  }
  if (choice.adapted != adapter::none &&
      (has(schedule.takes, option::keep) || !choice.chunk_counts.empty()))
    throw std::invalid_argument(
      std::string(schedule.name) +
      " with unequal numbers of chunks, or with recomputation of its own, "
      "goes into no adapter");
  schedule_traits const& traits = schedule.traits;
  bool const go_one_way = traits.weights_travel || traits.stages_go_one_way || traits.cuts_layers;
  if (choice.frozen > 0 && (go_one_way || choice.has_shards() || choice.gathers_weights() ||
                            choice.adapted == adapter::attention_exchange))
    throw std::invalid_argument(
      in_adapter(std::string(schedule.name), choice.adapted) + " has no frozen stages: " +
      (go_one_way ? "no stage of it is whole layers that go forward and back; take another schedule"
                  : "weights or work of a stage are on other devices, too; leave the adapter out"));
  if (!choice.adapted_stages.empty() &&
      (!has(adapter::recompute | adapter::offload | adapter::offload_half, choice.adapted) ||
       traits.cuts_layers))
    throw std::invalid_argument(in_adapter(std::string(schedule.name), choice.adapted) +
                                " is of all stages: only recompute, offload and offload-half of "
                                "whole layers can be of some");
  if (choice.adapted == adapter::attention_exchange && !schedule.traits.exchanges_attention)
    throw std::invalid_argument(
      "attention-exchange is for slimpipe alone, whose devices run as many "
      "chunks at the same time as there are devices, and not for " +
      std::string(schedule.name));
  if (choice.adapted != adapter::none && schedule.traits.weights_travel)
    throw std::invalid_argument(std::string(schedule.name) +
                                " goes into no adapter: what its devices keep is one microbatch, "
                                "and its weights are messages");
  if (choice.adapted != adapter::none && schedule.traits.stages_go_one_way &&
      !choice.shards_weights())
    throw std::invalid_argument(std::string(schedule.name) +
                                " goes into sharded-weights and gathered-once alone, which load "
                                "weights from the host: its devices keep no activations, and the "
                                "vocabulary is in its stages");
}

} // namespace detail

template <class Rows>
std::span<named_schedule const> named_schedules() {
  static std::vector<named_schedule> const all = std::apply(
    [](auto const&... row) { return std::vector<named_schedule>{detail::with_traits(row)...}; },
    Rows::rows);
  return all;
}

template <class Rows>
std::optional<int> least_microbatches(schedule_choice choice) {
  return detail::least_of(choice, [&choice] { return arrange<Rows>(choice); });
}

template <class Rows>
auto find_schedule(std::string_view name) -> named_schedule const& {
  std::vector<std::string_view> names;
  for (named_schedule const& each : named_schedules<Rows>()) {
    if (each.name == name)
      return each;
    names.push_back(each.name);
  }
  std::string const nearest = near_names(name, names);
  throw std::invalid_argument("there is no schedule " + quoted(name) +
                              (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

template <class Rows>
std::string written_type(schedule_choice const& choice) {
  named_schedule const& schedule = find_schedule<Rows>(choice.name);
  schedule_traits const& traits = schedule.traits;
  bool const asked = choice.eager || !choice.chunk_counts.empty() ||
                     (choice.chunks.has_value() && !traits.over_chunks);
  std::string type(asked && !traits.type_asked.empty() ? traits.type_asked : traits.type);
  if (type.find('{') == std::string::npos)
    return type;
  // A type can be written of any size, also of one that the schedule refuses: nothing is arranged.
  int const chunks =
    choice.chunks.value_or(traits.exchanges_attention ? choice.devices : traits.chunks);
  int const stages = choice.stages_per_device.value_or(traits.stages_per_device);
  struct {
    std::string_view word;
    int number;
  } const numbers[] = {{"{chunks}", chunks},
                       {"{stages}", stages},
                       {"{waves}", stages / 2},
                       {"{group}", choice.group.value_or(2)},
                       {"{limit}", static_cast<int>(choice.memory_limit.value_or(0))}};
  for (auto const& each : numbers)
    if (std::size_t const at = type.find(each.word); at != std::string::npos)
      type.replace(at, each.word.size(), std::to_string(each.number));
  return type;
}

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
    if constexpr (pipelining::detail::places_stages<Schedule>)
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
//! @param all false: only that no pass waits for ever
//! @throws std::invalid_argument with the rule that is broken
inline dynamic_timetable
verified(device_orders const& orders, any_cost const& cost, bool all = true) {
  dynamic_timetable table = simulate(orders, cost);
  auto const ends = [](double end) { return end >= 0 && std::isfinite(end); };
  if (!all && std::all_of(table.ends.begin(), table.ends.end(), ends))
    return table;
  if (report const verdict = verify(table); !verdict)
    throw std::invalid_argument(describe(verdict, table));
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
  pipelining::detail::check_extents(
    {.devices = choice.devices, .microbatches = choice.microbatches});
  auto const extents_of = [&choice](auto const& schedule) -> shape {
    return schedule.arrange(choice.devices, choice.microbatches);
  };
  shape const extents = choice.adapted == adapter::none
                          ? detail::with_schedule<Rows>(choice, extents_of)
                          : detail::with_adapted<Rows>(choice, extents_of);
  pipelining::detail::check_extents(extents);
  for (int const stage : choice.adapted_stages)
    if (stage < 0 || stage >= extents.stages())
      throw std::invalid_argument(choice.name + " has no stage " + std::to_string(stage) +
                                  " to adapt: there are " + std::to_string(extents.stages()));
  return extents;
}

template <class Rows>
pipeline arrange_pipeline(schedule_choice const& choice) {
  (void)arrange<Rows>(choice); // refuses what the schedule cannot have
  return detail::with_adapted<Rows>(choice, [&choice](auto const& schedule) {
    return pipelining::detail::arranged_pipeline(schedule, {choice.devices, choice.microbatches});
  });
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
  return detail::with_schedule<Rows>(choice, [&]<class Schedule>(Schedule const& made) {
    pipeline_size const size{choice.devices, choice.microbatches};
    if constexpr (pipelining::detail::orders_for_recomputation<Schedule>)
      if (choice.adapted == adapter::recompute)
        return make_orders(
          pipelining::detail::order_for_recomputation<Schedule, recompute::where_it_frees>{
            made, {choice.adapted_stages}},
          size,
          cost);
    if constexpr (std::is_same_v<Schedule, ZeroBubbleAuto<dynamic>>)
      if (!choice.room.empty()) // device by device
        return make_orders(ZeroBubbleWithin{choice.memory, choice.room}, size, cost);
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
  using share = pipelining::detail::hidden_share<any_cost>;
  return pipelining::detail::partial_cost<any_cost, share>{
    whole, share{usual, arrange<Rows>(choice).chunks}};
}

template <class Rows>
dynamic_timetable make_named_timetable(schedule_choice const& choice,
                                       any_cost const& whole,
                                       made_orders* made,
                                       bool verifies) {
  (void)arrange<Rows>(choice); // refuses what the schedule cannot have
  any_cost const cost = cost_in_adapter(choice, whole, whole);
  return detail::verified(detail::orders_of<Rows>(choice, cost, made), cost, verifies);
}

template <class Rows>
dynamic_timetable make_adapted_timetable(device_orders const& read,
                                         schedule_choice const& choice,
                                         any_cost const& cost) {
  bool const custom = read.over.extents.where == placement::custom;
  if (choice.adapted == adapter::attention_exchange || choice.adapted == adapter::offload_chunks)
    throw std::invalid_argument("files have no chunks of sequences, which " +
                                in_adapter("csv", choice.adapted) + " would need");
  if (custom && choice.has_shards())
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
