// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Layers cut at their experts, whose messages stand next to computation. Header for
//! pipelining::expert_training and with_experts.

#include <pipe/flow/declare.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

[[nodiscard]] constexpr datum lies_in(slot_class pool, flow_word const& word, bool wanted = true) {
  return {.word = word, .pool = static_cast<std::uint8_t>(pool), .wanted = wanted};
}
[[nodiscard]] constexpr datum
goes_to(slot_class pool, slot_class arrives, flow_word const& word) noexcept {
  datum result = lies_in(pool, word);
  result.arrives_in = static_cast<std::uint8_t>(arrives);
  return result;
}

enum expert_datum : std::uint8_t {
  of_output,
  of_gradient,
  of_attention_weights,
  of_expert_weights,
  of_attention_kept,
  of_routed,
  of_dispatched,
  of_mixed,
  of_mixed_gradient,
  of_dispatched_gradient,
  of_routed_gradient,
  of_expert_input,
  of_attention_input
};
inline constexpr datum expert_data[] = {
  goes_to(slot_class::output, slot_class::received_input, "output"),
  goes_to(slot_class::input_gradient, slot_class::received_gradient, "gradient"),
  {.word = "attention weights", .lives = residence::nowhere, .wanted = true},
  {.word = "expert weights", .lives = residence::nowhere, .wanted = true},
  lies_in(slot_class::activation, "attention kept"),
  lies_in(slot_class::activation, "routed", false),
  lies_in(slot_class::activation, "dispatched"),
  lies_in(slot_class::activation, "mixed"),
  lies_in(slot_class::weight_input, "mixed gradient"),
  lies_in(slot_class::weight_input, "dispatched gradient"),
  lies_in(slot_class::weight_input, "routed gradient"),
  lies_in(slot_class::weight_input, "expert input", false),
  lies_in(slot_class::weight_input, "attention input", false)};

[[nodiscard]] constexpr kind_of_pass
expert_kind(char letter, flow_word const& word, role is, std::initializer_list<effect> effects) {
  engine const on = is == role::communicate ? engine::network : engine::compute;
  return declare_kind(letter, word, on, stage_call::perform, effects).with_role(is);
}
inline constexpr kind_of_pass expert_kinds[] = {
  expert_kind('A',
              "attention",
              role::forward,
              {{does::reads, of_output, of_stage::before},
               {does::makes, of_attention_kept},
               {does::makes, of_routed}}),
  expert_kind(
    'D', "dispatch", role::communicate, {{does::frees, of_routed}, {does::makes, of_dispatched}}),
  expert_kind(
    'E', "experts", role::forward, {{does::reads, of_dispatched}, {does::makes, of_mixed}}),
  expert_kind(
    'C', "combine", role::communicate, {{does::frees, of_mixed}, {does::makes, of_output}}),
  expert_kind('K',
              "combine back",
              role::communicate,
              {{does::reads, of_gradient, of_stage::after}, {does::makes, of_mixed_gradient}}),
  expert_kind('M',
              "experts back",
              role::input,
              {{does::frees, of_mixed_gradient},
               {does::makes, of_dispatched_gradient},
               {does::makes, of_expert_input}}),
  expert_kind('W',
              "expert gradients",
              role::weights,
              {{does::frees, of_dispatched},
               {does::frees, of_expert_input},
               {does::makes, of_expert_weights}}),
  expert_kind('J',
              "dispatch back",
              role::communicate,
              {{does::frees, of_dispatched_gradient}, {does::makes, of_routed_gradient}}),
  expert_kind('B',
              "attention back",
              role::input,
              {{does::reads, of_attention_kept},
               {does::frees, of_routed_gradient},
               {does::makes, of_gradient},
               {does::makes, of_attention_input}}),
  expert_kind('V',
              "attention gradients",
              role::weights,
              {{does::frees, of_attention_kept},
               {does::frees, of_attention_input},
               {does::makes, of_attention_weights}})};

} // namespace detail

//! @brief Training of layers with experts, in the order of a layer: attention, dispatch, experts,
//! combine; back: combine back, experts back, expert gradients, dispatch back, attention back,
//! attention gradients. Dispatch and combine run on the network engine.
inline constexpr flow expert_training = declare(detail::expert_data, detail::expert_kinds);

namespace detail {

//! Kinds of a layer in the place of a pass, in their order.
[[nodiscard]] inline std::span<pass_kind const> kinds_of_layer(role is) {
  static constexpr auto named = [](flow_word const& word) {
    return expert_training.kind_named(word);
  };
  static constexpr pass_kind forward[] = {
    named("attention"), named("dispatch"), named("experts"), named("combine")};
  static constexpr pass_kind backward[] = {named("combine back"),
                                           named("experts back"),
                                           named("expert gradients"),
                                           named("dispatch back"),
                                           named("attention back"),
                                           named("attention gradients")};
  static constexpr pass_kind input[] = {
    named("combine back"), named("experts back"), named("dispatch back"), named("attention back")};
  static constexpr pass_kind weights[] = {named("expert gradients"), named("attention gradients")};
  switch (is) {
  case role::forward: return forward;
  case role::backward: return backward;
  case role::input: return input;
  case role::weights: return weights;
  default: throw std::invalid_argument("with_experts: only passes of training have layers");
  }
}

//! Writes the rows of one device: those of its computation and of its network.
class expert_rows {
public:
  //! @param first_layers [S + 1] the first layer of each stage
  expert_rows(pipeline_view const& over, std::span<int const> first_layers)
      : over_(over), first_layers_(first_layers) {}

  std::vector<pass> compute{};
  std::vector<pass> network{};

  //! Layer after layer.
  void write(pass const& what) {
    for (int i = 0; i < layers_of(what); ++i)
      for (pass_kind const kind : kinds_of(what))
        push(kind, what, i);
  }
  //! Layer next to layer: while one computes, the other one is on the network. A pass that goes
  //! back begins.
  void write(pass const& back, pass const& forward) {
    int const both = std::min(layers_of(back), layers_of(forward));
    for (int i = 0; i < both; ++i) {
      // combine back, attention, experts back, dispatch, [expert gradients,] dispatch back,
      // experts, combine, attention back[, attention gradients]
      std::span<pass_kind const> const b = kinds_of(back);
      std::span<pass_kind const> const f = kinds_of(forward);
      std::size_t const gradients = b.size() == 6 ? 1 : 0;
      push(b[0], back, i);
      push(f[0], forward, i);
      push(b[1], back, i);
      push(f[1], forward, i);
      for (std::size_t k = 2; k <= 2 + gradients; ++k)
        push(b[k], back, i);
      push(f[2], forward, i);
      push(f[3], forward, i);
      for (std::size_t k = 3 + gradients; k < b.size(); ++k)
        push(b[k], back, i);
    }
    for (pass const* const each : {&back, &forward})
      for (int i = both; i < layers_of(*each); ++i)
        for (pass_kind const kind : kinds_of(*each))
          push(kind, *each, i);
  }

private:
  [[nodiscard]] role role_of(pass const& what) const { return (*over_.declared)[what.kind].is; }
  [[nodiscard]] std::span<pass_kind const> kinds_of(pass const& what) const {
    return kinds_of_layer(role_of(what));
  }
  [[nodiscard]] int layers_of(pass const& what) const {
    return first_layers_[what.stage + std::size_t{1}] - first_layers_[what.stage];
  }
  //! @param i of the layers in the order of the pass
  void push(pass_kind kind, pass const& what, int i) {
    int const layer = role_of(what) == role::forward
                        ? first_layers_[what.stage] + i
                        : first_layers_[what.stage + std::size_t{1}] - 1 - i;
    (expert_training[kind].on == engine::network ? network : compute)
      .push_back(row_writer::make(kind, layer, what.microbatch));
  }

  pipeline_view over_;
  std::span<int const> first_layers_;
};

//! The pipeline of the layers of stages: each lies where its stage does.
[[nodiscard]] inline pipeline pipeline_of_layers(pipeline_view const& over,
                                                 std::span<int const> layers) {
  int const all = std::accumulate(layers.begin(), layers.end(), 0);
  shape const& extents = over.extents;
  pipeline result{.extents = {.devices = extents.devices,
                              .microbatches = extents.microbatches,
                              .stages_per_device = all / extents.devices,
                              .where = placement::custom,
                              .extra_stages = all % extents.devices},
                  .declared = copied(expert_training)};
  for (int stage = 0; stage < extents.stages(); ++stage)
    result.holders.insert(result.holders.end(),
                          static_cast<std::size_t>(layers[static_cast<std::size_t>(stage)]),
                          static_cast<std::uint16_t>(device_of(over, stage)));
  return result;
}

//! True where all that a pass waits for has come before a time.
[[nodiscard]] inline bool
is_ready(timetable_view table, std::span<int const> entries, pass const& what, double time) {
  dependency_list const needed = dependencies(table.over, what);
  for (int k = 0; k < needed.count; ++k) {
    int const entry = entries[static_cast<std::size_t>(needed.index(k))];
    if (entry < 0)
      return false;
    int const from = device_of(table, table.passes[entry]);
    double const message = message_time(
      table.links, table.over.extents.devices, table.latency, from, device_of(table, what));
    if (!(table.ends[entry] + message <= time * (1 + 1e-12)))
      return false;
  }
  return true;
}

} // namespace detail

//! @brief The orders of a timetable with every layer a stage of `expert_training`, so that dispatch
//! and combine of one microbatch run next to the computation of another one.
//!
//! Each pass becomes the passes of its layers. Two passes of a device, one after the other in the
//! table, one forward and one back, become one row of both, layer next to layer as in
//! Megatron-Core, where all that the second one waits for has come before the first one begins.
//! Nothing waits for ever: such pairs keep the order of their first passes.
//!
//! @param table of a flow of training, one copy of every stage, whole sequences, no adapter
//! @param layers [S] of each stage, at least 1
//! @param pairs false: no passes are put together
//! @throws std::invalid_argument for another table, or a stage without a layer.
//! @complexity O(n L) for n passes with L layers each
//! @source Megatron-LM, combined 1F1B (overlap_moe_expert_parallel_comm); when passes go together
//! is an own derivation.
[[nodiscard]] inline device_orders
with_experts(timetable_view table, std::span<int const> layers, bool pairs = true) {
  shape const& extents = table.over.extents;
  if (extents.chunks != 1 || extents.routes() != 1 || table.over.edges != nullptr)
    throw std::invalid_argument("with_experts: experts need a plain chain, with one copy of every "
                                "stage, whole sequences and nothing frozen");
  if (layers.size() != static_cast<std::size_t>(extents.stages()) ||
      std::any_of(layers.begin(), layers.end(), [](int count) { return count < 1; }))
    throw std::invalid_argument("with_experts: give at least one layer for every stage");
  std::vector<int> first_layers{0};
  for (int const count : layers)
    first_layers.push_back(first_layers.back() + count);
  std::vector<int> const entries = detail::entries_of(table);
  auto const goes_back = [&](pass const& what) {
    role const is = (*table.over.declared)[what.kind].is;
    return is == role::backward || is == role::input;
  };
  auto const goes_forward = [&](pass const& what) {
    return (*table.over.declared)[what.kind].is == role::forward;
  };
  std::vector<detail::expert_rows> rows;
  for (int device = 0; device < extents.devices; ++device) {
    detail::expert_rows& out = rows.emplace_back(table.over, first_layers);
    int const end = table.offsets[device + 1];
    for (int i = table.offsets[device]; i < end; ++i) {
      pass const& first = table.passes[i];
      pass const* const second = i + 1 < end ? &table.passes[i + 1] : nullptr;
      bool const both = pairs && second != nullptr &&
                        ((goes_back(first) && goes_forward(*second)) ||
                         (goes_forward(first) && goes_back(*second))) &&
                        detail::is_ready(table, entries, *second, table.starts[i]);
      if (!both) {
        out.write(first);
        continue;
      }
      goes_back(first) ? out.write(first, *second) : out.write(*second, first);
      ++i;
    }
  }
  device_orders result{detail::pipeline_of_layers(table.over, layers), {}, {0}};
  for (auto const row : {&detail::expert_rows::compute, &detail::expert_rows::network})
    for (detail::expert_rows const& each : rows) {
      result.passes.insert(result.passes.end(), (each.*row).begin(), (each.*row).end());
      result.offsets.push_back(static_cast<int>(result.passes.size()));
    }
  return result;
}

} // namespace pipelining::inline v0_3
