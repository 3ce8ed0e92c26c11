// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Costs of schedules whose stages are no stages of training: weights travel, or stages go
//! one way.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/registry/choice.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3::registry {
namespace detail {

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
          .microbatches = stages(extents),
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
      bool const again = what.kind == kind_with(training, role::backward);
      return time(what.kind, layer) + (again ? time(kind_with(training, role::forward), layer) : 0);
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

} // namespace pipelining::inline v0_3::registry
