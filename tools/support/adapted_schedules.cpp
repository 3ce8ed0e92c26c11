// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Schedules in adapters, what their passes cost, and their timetables.
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/helix_pipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/slim_pipe_exchange.hpp>
#include <pipe/timetable/adapt/offload_rules.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/attention_cost.hpp>
#include <pipe/timetable/describe.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/partial_cost.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <type_traits>

#include "made_orders.hpp"
#include "made_schedules.hpp"

namespace pp = pipelining;

namespace examples {
namespace {

using slim_pipe_exchange = pp::SlimPipeExchange<pp::dynamic, pp::dynamic>;

//! The orders of a choice without its adapter.
pp::device_orders
plain_orders(schedule_choice const& choice, any_cost const& cost, made_orders* made) {
  return made == nullptr ? find_schedule(choice.name).orders(choice, cost)
                         : made->get(choice, cost);
}

//! A schedule of any name, or of a file, as one type, so that adapters are compiled once.
struct given_schedule {
  pp::shape extents;
  std::function<pp::device_orders(any_cost const&)> orders;
  bool cuts_layers = false;

  [[nodiscard]] pp::shape arrange(int, int) const { return extents; }
  template <pp::cost_model Cost>
  void generate(pp::shape const&, Cost const& cost, pp::row_writer* rows) const {
    pp::device_orders const made = orders(cost);
    for (int device = 0; device < extents.devices; ++device)
      for (int i = made.offsets[static_cast<std::size_t>(device)];
           i < made.offsets[static_cast<std::size_t>(device) + 1];
           ++i)
        rows[device].push(made.passes[static_cast<std::size_t>(i)]);
  }
};

//! The same for schedules that place their stages themselves.
struct placed_schedule : given_schedule {
  std::function<int(pp::shape const&, int stage, int route)> holder; //!< none: it does not

  [[nodiscard]] int device_of(pp::shape const& of, int stage, int route) const {
    return holder(of, stage, route);
  }
};

//! And for those whose stages go one way.
struct one_way_schedule : placed_schedule {
  static constexpr pp::flow declared = pp::round_training;
};

//! Calls `use` with a schedule whose weights are in shards, as the choice says.
template <class Named, class Use>
auto with_shared_weights(Named const& named, schedule_choice const& choice, Use use) {
  pp::reshard rule{
    .scatter_once = choice.scatter_once, .prefetch = choice.prefetch, .resident = choice.resident};
  if (choice.adapted == adapter::gathered_once)
    rule = pp::gathered_once;
  return use(pp::with_sharded_weights<Named>{named, rule});
}

//! Calls `use` with a schedule in the adapter of a choice for less memory.
//! @pre it is one of these
template <class Named, class Use>
auto with_less_memory(Named const& named, schedule_choice const& choice, Use use) {
  switch (choice.adapted) {
  case adapter::recompute:
    if (named.cuts_layers) // as in the paper
      return use(pp::with_recompute<Named, pp::recompute_around_attention>{named, {}});
    return use(pp::with_recompute<Named>{named, {}});
  case adapter::recompute_first:
    return use(pp::with_recompute<Named, pp::recompute_first_stages>{named, {}});
  case adapter::offload_chunks: return use(pp::with_offload<Named, pp::offload_chunks>{named, {}});
  case adapter::weights_on_host:
    return use(pp::with_sharded_weights<Named, pp::weights_on_host>{named, {}});
  case adapter::sharded_weights:
  case adapter::gathered_once: return with_shared_weights(named, choice, use);
  default: break;
  }
  pp::offload_in_slots rule;
  if (choice.adapted == adapter::offload_half)
    rule = pp::offload_half;
  rule.stages = choice.offloaded_stages;
  return use(pp::with_offload<Named>{named, rule});
}

//! Calls `use` with a schedule in the adapter of a choice.
//! @pre there is one, and it is not attention_exchange
template <class Use>
auto with_adapter(placed_schedule const& given, schedule_choice const& choice, Use use) {
  given_schedule const& unplaced = given;
  if (!has_shards(choice.adapted))
    return given.holder ? with_less_memory(given, choice, use)
                        : with_less_memory(unplaced, choice, use);
  auto const with_shards = [&]<int Barriers>(std::integral_constant<int, Barriers>) {
    return choice.name == "1f1b" // has an order of its own
             ? use(pp::with_vocabulary<pp::OneFOneB, Barriers>{})
             : use(pp::with_vocabulary<given_schedule, Barriers>{unplaced});
  };
  switch (choice.adapted) {
  case adapter::vocabulary_interlaced:
    return with_shards(std::integral_constant<int, pp::interlaced>{});
  case adapter::vocabulary_1: return with_shards(std::integral_constant<int, 1>{});
  default: return with_shards(std::integral_constant<int, 2>{});
  }
}

//! Calls `use` with the schedule of a choice in its adapter.
//! @pre there is one
template <class Use>
auto with_adapted(schedule_choice const& choice, Use use, made_orders* made = nullptr) {
  if (choice.adapted == adapter::attention_exchange)
    return use(slim_pipe_exchange{slim_pipe_of(choice), {}});
  named_schedule const& schedule = find_schedule(choice.name);
  placed_schedule given{
    {schedule.arrange(choice),
     [&choice, made](any_cost const& cost) { return plain_orders(choice, cost, made); },
     schedule.traits.cuts_layers},
    {}};
  if (schedule.device_of != nullptr)
    given.holder = [&](pp::shape const& extents, int stage, int route) {
      return schedule.device_of(choice, extents, stage, route);
    };
  if (schedule.traits.stages_go_one_way)
    return with_shared_weights(one_way_schedule{given}, choice, use);
  return with_adapter(given, choice, use);
}

//! The timetable of orders, verified.
//! @throws std::invalid_argument with the rule that is broken
pp::dynamic_timetable verified(pp::device_orders const& orders, any_cost const& cost) {
  pp::dynamic_timetable table = pp::simulate(orders, cost);
  if (pp::report const verdict = pp::verify(table); !verdict)
    throw std::invalid_argument(pp::describe(verdict, table.over.extents.chunks > 1));
  return table;
}

pp::device_orders
orders_of(schedule_choice const& choice, any_cost const& cost, made_orders* made) {
  if (choice.adapted == adapter::none)
    return plain_orders(choice, cost, made);
  return with_adapted(
    choice,
    [&](auto const& schedule) {
      return pp::make_orders(schedule, {choice.devices, choice.microbatches}, cost);
    },
    made);
}

//! With groups of layers as stages, where microbatches were; all on the device of the microbatch.
pp::shape groups_as_stages(pp::shape const& extents) {
  return {.devices = extents.devices,
          .microbatches = pp::stages(extents),
          .where = pp::placement::custom,
          .custom_routes = extents.devices};
}

//! With layers as stages.
pp::shape layers_as_stages(schedule_choice const& choice) {
  int const layers = round_pipe_of(choice).backward_stages;
  return {.devices = choice.devices,
          .microbatches = choice.microbatches,
          .stages_per_device = layers / choice.devices,
          .where = pp::placement::custom,
          .extra_stages = layers % choice.devices};
}

struct layer_sums {
  any_cost of;
  int forward_stages;
  int layers;

  //! The first of the layers of a stage that goes forward: behind the last one, the last layer.
  [[nodiscard]] int first_layer(int stage) const { return stage * (layers - 1) / forward_stages; }
  [[nodiscard]] double duration(pp::pass const& what) const {
    auto const time = [&](pp::pass_kind kind, int layer) {
      return of.duration(pp::row_writer::make(kind, layer, what.microbatch));
    };
    if (what.stage >= forward_stages) {
      int const layer = forward_stages + layers - 1 - what.stage;
      bool const again = what.kind == pp::pass_kind::backward;
      return time(what.kind, layer) + (again ? time(pp::pass_kind::forward, layer) : 0);
    }
    double sum = 0;
    for (int layer = first_layer(what.stage); layer < first_layer(what.stage + 1); ++layer)
      sum += time(what.kind, layer);
    return sum;
  }
  [[nodiscard]] double latency() const { return of.latency(); }
  [[nodiscard]] std::span<double const> links() const { return of.links(); }
};

struct group_cost {
  any_cost of;

  [[nodiscard]] double duration(pp::pass const& what) const {
    return of.duration(pp::row_writer::make(what.kind, what.chunk, what.stage));
  }
  [[nodiscard]] double latency() const { return of.latency(); }
  [[nodiscard]] std::span<double const> links() const { return of.links(); }
};

} // namespace

pp::shape arrange(schedule_choice const& choice) {
  named_schedule const& schedule = find_schedule(choice.name);
  check_options(schedule, choice);
  pp::check_extents({.devices = choice.devices, .microbatches = choice.microbatches});
  pp::shape const extents = choice.adapted == adapter::none
                              ? schedule.arrange(choice)
                              : with_adapted(choice, [&choice](auto const& adapted) -> pp::shape {
                                  return adapted.arrange(choice.devices, choice.microbatches);
                                });
  pp::check_extents(extents);
  return extents;
}

pp::shape shown_extents(schedule_choice const& choice) {
  pp::shape const extents = arrange(choice);
  named_schedule const& schedule = find_schedule(choice.name);
  return schedule.traits.weights_travel      ? groups_as_stages(extents)
         : schedule.traits.stages_go_one_way ? layers_as_stages(choice)
                                             : extents;
}

pp::dynamic_timetable by_groups(pp::dynamic_timetable table) {
  table.over = {.extents = groups_as_stages(table.over.extents)};
  for (pp::pass& each : table.passes)
    each = pp::row_writer::make(each.kind, each.chunk, each.stage);
  for (int i = 0; i < table.over.extents.devices * table.over.extents.devices; ++i)
    table.over.holders.push_back(static_cast<std::uint16_t>(i / table.over.extents.devices));
  return table;
}

any_cost cost_by_groups(any_cost const& cost) {
  return group_cost{cost};
}

any_cost cost_by_layers(schedule_choice const& choice, any_cost const& cost) {
  pp::RoundPipe<> const made = round_pipe_of(choice);
  return layer_sums{cost, made.forward_stages, made.backward_stages};
}

any_cost cost_by_parts(schedule_choice const& choice, pp::uniform_cost const& mean, double ratio) {
  slim_pipe_exchange const made{slim_pipe_of(choice), {}};
  pp::shape const extents = arrange(choice);
  double const keys = made.inside(extents).chunks / 2.0; // of a chunk, the mean
  pp::uniform_cost linear = mean;
  linear.forward /= 1 + ratio;
  linear.backward_input /= 1 + 2.5 * ratio;
  return pp::attention_part_cost<slim_pipe_exchange>{made,
                                                     extents,
                                                     linear,
                                                     (mean.forward - linear.forward) / keys,
                                                     (mean.backward_input - linear.backward_input) /
                                                       keys};
}

any_cost
cost_in_adapter(schedule_choice const& choice, any_cost const& whole, any_cost const& usual) {
  if (choice.adapted != adapter::offload_chunks)
    return whole;
  using share = pp::hidden_share<any_cost>;
  return pp::partial_cost<any_cost, share>{whole, share{usual, arrange(choice).chunks}};
}

pp::dynamic_timetable
make_named_timetable(schedule_choice const& choice, any_cost const& whole, made_orders* made) {
  (void)arrange(choice); // refuses what the schedule cannot have
  any_cost const cost = cost_in_adapter(choice, whole, whole);
  return verified(orders_of(choice, cost, made), cost);
}

pp::dynamic_timetable make_adapted_timetable(pp::device_orders const& read,
                                             schedule_choice const& choice,
                                             any_cost const& cost) {
  bool const custom = read.over.extents.where == pp::placement::custom;
  if (choice.adapted == adapter::attention_exchange || choice.adapted == adapter::offload_chunks)
    throw std::invalid_argument("files have no chunks of sequences, which " +
                                in_adapter("csv", choice.adapted) + " would need");
  if (custom && has_shards(choice.adapted))
    throw std::invalid_argument("a vocabulary in shards wants stages that go round the devices, "
                                "or down and up; in this file they are elsewhere");
  placed_schedule given{{read.over.extents, [&read](any_cost const&) { return read; }}, {}};
  if (custom)
    given.holder = [&read](pp::shape const&, int stage, int) {
      return pp::device_of(read.over, stage);
    };
  return with_adapter(given, choice, [&](auto const& schedule) {
    return verified(
      pp::make_orders(schedule, {read.over.extents.devices, read.over.extents.microbatches}, cost),
      cost);
  });
}

} // namespace examples
