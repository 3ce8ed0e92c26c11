// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Costs and adapters of schedules by name. Header for pipelining::registry::cost_by_groups,
//! cost_by_layers and detail::with_adapter.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace pipelining::inline v0_3::registry {

namespace detail {

inline SlimPipe<dynamic, dynamic> slim_pipe_of(schedule_choice const& c) {
  return {.chunks = c.chunks.value_or(c.devices),
          .stages_per_device = c.stages_per_device.value_or(2)};
}

//! RoundPipe with a layer in every stage that goes back: P of them have the forward passes of all
//! layers but the last in equal time, where a backward pass takes twice a forward pass.
inline RoundPipe<> round_pipe_of(schedule_choice const& c) {
  RoundPipe<> const made{.forward_stages = c.forward_stages.value_or(c.devices),
                         .backward_stages = c.backward_stages.value_or(3 * c.devices)};
  if (made.forward_stages >= made.backward_stages)
    throw std::invalid_argument("round-pipe: " + std::to_string(made.backward_stages) +
                                " stages that go back have a layer each, and those that go forward "
                                "share all but the last, so at most " +
                                std::to_string(made.backward_stages - 1) + " go forward, not " +
                                std::to_string(made.forward_stages));
  return made;
}

//! Extents with groups of layers as stages, where microbatches were; all on the device of the
//! microbatch.
inline shape groups_as_stages(shape const& extents) {
  return {.devices = extents.devices,
          .microbatches = extents.stages(),
          .where = placement::custom,
          .custom_routes = extents.devices};
}

//! Extents with layers as stages.
inline shape layers_as_stages(schedule_choice const& choice) {
  int const layers = round_pipe_of(choice).backward_stages;
  return {.devices = choice.devices,
          .microbatches = choice.microbatches,
          .stages_per_device = layers / choice.devices,
          .where = placement::custom,
          .extra_stages = layers % choice.devices};
}

//! Cost of stages that go one way: sums of layers.
struct layer_sums {
  any_cost of;
  int forward_stages;
  int layers;

  //! The first of the layers of a stage that goes forward: after the last one, the last layer.
  [[nodiscard]] int first_layer(int stage) const { return stage * (layers - 1) / forward_stages; }
  [[nodiscard]] double duration(pass const& what) const {
    auto const time = [&](pass_kind kind, int layer) {
      return of.duration(row_writer::make(kind, layer, what.microbatch));
    };
    if (what.stage >= forward_stages) {
      int const layer = forward_stages + layers - 1 - what.stage;
      bool const again = what.kind == training.kind_with(role::backward);
      return time(what.kind, layer) + (again ? time(training.kind_with(role::forward), layer) : 0);
    }
    double sum = 0;
    for (int layer = first_layer(what.stage); layer < first_layer(what.stage + 1); ++layer)
      sum += time(what.kind, layer);
    return sum;
  }
  [[nodiscard]] double latency() const { return of.latency(); }
  [[nodiscard]] std::span<double const> links() const { return of.links(); }
};

//! Cost of weights that travel: chunks are groups of layers, stages are microbatches.
struct group_cost {
  any_cost of;

  [[nodiscard]] double duration(pass const& what) const {
    return of.duration(row_writer::make(what.kind, what.chunk, what.stage));
  }
  [[nodiscard]] double latency() const { return of.latency(); }
  [[nodiscard]] std::span<double const> links() const { return of.links(); }
};

} // namespace detail

//! A timetable of weights that travel as one of training, with groups of layers as stages, each of
//! them on the device of the microbatch: for pictures, figures and bounds, not to be run.
[[nodiscard]] inline dynamic_timetable by_groups(dynamic_timetable table) {
  table.over = {.extents = detail::groups_as_stages(table.over.extents)};
  for (pass& each : table.passes)
    each = row_writer::make(each.kind, each.chunk, each.stage);
  for (int i = 0; i < table.over.extents.devices * table.over.extents.devices; ++i)
    table.over.holders.push_back(static_cast<std::uint16_t>(i / table.over.extents.devices));
  return table;
}

//! Costs of groups of layers and microbatches, for the passes of weights that travel.
[[nodiscard]] inline any_cost cost_by_groups(any_cost const& cost) {
  return detail::group_cost{cost};
}

//! Costs of layers, for the passes of stages that go one way. A stage that goes back has one layer
//! and runs it forward again; those that go forward have equal shares of all layers but the last.
[[nodiscard]] inline any_cost cost_by_layers(schedule_choice const& choice, any_cost const& cost) {
  RoundPipe<> const made = detail::round_pipe_of(choice);
  return detail::layer_sums{cost, made.forward_stages, made.backward_stages};
}

namespace detail {

using slim_pipe_exchange = SlimPipeExchange<dynamic, dynamic>;

//! A schedule of any name, or of a file, as one type, so that adapters are compiled once.
struct given_schedule {
  shape extents;
  std::function<device_orders(any_cost const&)> orders;
  bool cuts_layers = false;
  bool is_one_f_one_b = false; //!< which has an order of its own for the vocabulary in shards
  std::vector<int> frozen{};   //!< stages with nothing to train

  [[nodiscard]] shape arrange(int, int) const { return extents; }
  void generate(shape const&, cost_model auto const& cost, row_writer* rows) const {
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
    rule = reshard::gathered_once();
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
    return use(with_recompute<Named, recompute::where_it_frees>{named, {choice.adapted_stages}});
  case adapter::recompute_first:
    return use(with_recompute<Named, recompute::first_stages>{named, {}});
  case adapter::offload_chunks: return use(with_offload<Named, offload::chunks>{named, {}});
  case adapter::weights_on_host:
    return use(with_sharded_weights<Named, weights_on_host>{named, {}});
  case adapter::sharded_weights:
  case adapter::gathered_once: return with_shared_weights(named, choice, use);
  default: break;
  }
  offload::in_slots rule;
  if (choice.adapted == adapter::offload_half)
    rule = offload::in_slots::half();
  rule.stages = choice.offloaded_stages;
  rule.only = choice.adapted_stages;
  return use(with_offload<Named>{named, rule});
}

//! Calls `use` with a schedule in the adapter of a choice.
//! @pre it is not attention_exchange
auto with_adapter(placed_schedule const& given, schedule_choice const& choice, auto use) {
  given_schedule const& unplaced = given;
  if (!choice.has_shards())
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

} // namespace detail

} // namespace pipelining::inline v0_3::registry
