// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Layers cut at their experts, whose messages stand next to computation. Header for
//! pipelining::with_experts.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/edge_table.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/planner/cut/expert_flow.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The word of a kind of training, and the letters of a layer's kinds in its place, in their order.
struct letters_of_layer {
  char const* of;
  std::string_view kinds;
};
inline constexpr letters_of_layer all_letters_of_layers[] = {{"forward", "ADEC"},
                                                             {"checkpointed_forward", "FGHC"},
                                                             {"offloaded_forward", "XGZC"},
                                                             {"recompute", "RST"},
                                                             {"backward", "KMWJBV"},
                                                             {"backward_input", "KMJB"},
                                                             {"backward_weight", "WV"},
                                                             {"copy_out", "OP"},
                                                             {"copy_in", "NL"},
                                                             {"copy_request", "Q"}};

//! Kinds of a layer in the place of a pass of training, in their order.
struct layer_kinds {
  pass_kind kinds[6]{};
  std::size_t count = 0;
};
inline constexpr auto all_kinds_of_layers = [] {
  std::array<layer_kinds, flow::most_kinds> result{};
  for (letters_of_layer const& each : all_letters_of_layers) {
    pass_kind const of = kinds_of_training.kind_named(flow_word::of(each.of));
    layer_kinds& list = result[static_cast<std::size_t>(of)];
    for (char const letter : each.kinds)
      list.kinds[list.count++] = static_cast<pass_kind>(
        std::ranges::find(expert_kinds, letter, &kind_of_pass::letter) - expert_kinds.begin());
  }
  for (int of = first_of_shards; of < kinds_of_training.kind_count; ++of) {
    auto const later = static_cast<pass_kind>(of + shards_later);
    bool const asks = kinds_of_training.kinds[of + 1].on == engine::network; // for the next kind
    result[static_cast<std::size_t>(of)] = {{later, static_cast<pass_kind>(of + shards_later + 1)},
                                            asks ? std::size_t{2} : 1};
  }
  return result;
}();

[[nodiscard]] inline std::span<pass_kind const> kinds_of_layer(pass_kind of) {
  layer_kinds const& list = all_kinds_of_layers[static_cast<std::size_t>(of)];
  if (list.count == 0)
    throw std::invalid_argument("with_experts: only passes of training and its adapters have "
                                "layers");
  return {list.kinds, list.count};
}

//! The flow of the layers of a pipeline.
[[nodiscard]] inline flow flow_of_layers(flow const& stages) {
  bool const copies = stages.engine_row[static_cast<int>(engine::copy_out)] >= 0;
  return stages.scatters          ? sharded_expert_training()
         : stages.reads_in_groups ? vocabulary_expert_training(stages)
                                  : copied(copies ? frugal_expert_training : expert_training);
}

//! The role of a pass that has layers; `mark` of what shards add.
[[nodiscard]] inline role role_in_layers(pass const& what) noexcept {
  return index_of(what.kind) < first_of_shards ? kinds_of_training[what.kind].is : role::mark;
}
[[nodiscard]] inline bool goes_back(pass const& what) noexcept {
  return role_in_layers(what) == role::backward || role_in_layers(what) == role::input;
}
[[nodiscard]] inline bool goes_forward(pass const& what) noexcept {
  return role_in_layers(what) == role::forward;
}
[[nodiscard]] inline bool goes_again(pass const& what) noexcept {
  return role_in_layers(what) == role::again;
}
//! Marks of weights in shards. Those that end a visit come after passes that go together, others
//! before them.
[[nodiscard]] inline bool marks_weights(pass const& what) noexcept {
  return index_of(what.kind) >= first_of_shards && !kinds_of_training[what.kind].in_groups;
}

//! Writes the rows of one device, one for each engine.
class expert_rows {
public:
  //! @param first_layers [S + 1] the first layer of each stage @param declared the flow of layers
  expert_rows(pipeline_view const& over, std::span<int const> first_layers, flow const& declared)
      : first_layers_(first_layers), declared_(declared), microbatches_(over.extents.microbatches),
        again_(static_cast<std::size_t>(over.extents.stages() * microbatches_)),
        gathered_(static_cast<std::size_t>(first_layers.back())) {}

  std::vector<pass> rows[flow::engine_count]{};

  //! Layer after layer. What is computed again of a layer comes right before its backward pass, and
  //! its weights are waited for right before its first pass.
  void write(pass const& what) {
    int const count = goes_again(what) ? 1 : layers_of(what);
    if (goes_again(what))
      again_[unit_of(what)] = what.kind;
    for (int i = 0; i < count; ++i)
      write_layer(what, i);
  }
  //! Layer next to layer: while one computes, the other one is on the network. A pass that goes
  //! back begins.
  void write(pass const& back, pass const& forward) {
    int const both = std::min(layers_of(back), layers_of(forward));
    std::span<pass_kind const> const backward = kinds_of_layer(back.kind);
    // combine back, attention, experts back, dispatch, [expert gradients,] dispatch back,
    // experts, combine, attention back[, attention gradients]
    std::string_view const turns = backward.size() == 6 ? "bfbfbbffbb" : "bfbfbffb";
    for (int i = 0; i < both; ++i) {
      write_again(back, i);
      auto b = backward.begin();
      auto f = kinds_of_layer(forward.kind).begin();
      for (char const turn : turns)
        turn == 'b' ? push(*b++, back, i) : push(*f++, forward, i);
    }
    for (pass const* const each : {&back, &forward})
      for (int i = both; i < layers_of(*each); ++i)
        write_layer(*each, i);
  }

  //! Whether a mark comes after passes that go together.
  [[nodiscard]] bool ends_visit(pass const& what) const {
    kind_of_pass const& kind = declared_[kinds_of_layer(what.kind)[0]];
    return marks_weights(what) && std::ranges::count(kind, does::frees, &effect::what) > 0;
  }

private:
  [[nodiscard]] int layers_of(pass const& what) const {
    return first_layers_[what.stage + std::size_t{1}] - first_layers_[what.stage];
  }
  [[nodiscard]] std::size_t unit_of(pass const& what) const {
    return static_cast<std::size_t>(what.stage * microbatches_ + what.microbatch);
  }
  //! The first layer to go back stands where the stage is computed again.
  void write_again(pass const& what, int i) {
    if (std::optional<pass_kind> const again = again_[unit_of(what)];
        again && i > 0 && goes_back(what))
      for (pass_kind const kind : kinds_of_layer(*again))
        push(kind, what, i);
  }
  void write_layer(pass const& what, int i) {
    write_again(what, i);
    for (pass_kind const kind : kinds_of_layer(what.kind))
      push(kind, what, i);
  }
  //! @param i of the layers in the order of the pass
  void push(pass_kind kind, pass const& what, int i) {
    kind_of_pass const& of = kinds_of_training[what.kind];
    bool const ascends = goes_forward(what) || of.on == engine::copy_out ||
                         (marks_weights(what) && of.is != role::again);
    int const layer =
      ascends ? first_layers_[what.stage] + i : first_layers_[what.stage + std::size_t{1}] - 1 - i;
    pass const made = row_writer::make(kind, layer, what.microbatch);
    std::optional<pass>& gathered = gathered_[static_cast<std::size_t>(layer)];
    if (declared_[kind].calls == stage_call::use_weights) {
      gathered = made;
      return;
    }
    if (gathered && reads_weights(declared_[kind]))
      rows[0].push_back(*std::exchange(gathered, {}));
    rows[static_cast<int>(declared_[kind].on)].push_back(made);
  }

  std::span<int const> first_layers_;
  flow const& declared_;
  int microbatches_;
  std::vector<std::optional<pass_kind>> again_; // [S][M] the pass that computes it again
  std::vector<std::optional<pass>> gathered_;   // [layers] the mark that waits for its weights
};

//! The edges of the layers of a graph, each stage of which is a chain of them.
//! @param first_layers [S + 1] the first layer of each stage
[[nodiscard]] inline std::vector<int> edges_of_layers(pipeline_view const& over,
                                                      std::span<int const> first_layers) {
  std::vector<stage_edge> edges;
  std::vector<stage_group> groups;
  for (int stage = 0; stage < over.extents.stages(); ++stage) {
    auto const next = static_cast<std::size_t>(stage) + 1;
    int const first = first_layers[next - 1];
    for (int k = 0; k < over.graph().edges(stage, -1); ++k) {
      auto const from = static_cast<std::size_t>(over.graph().edge(stage, -1, k).stage);
      edges.push_back({first_layers[from + 1] - 1, first, of_unit::same});
    }
    for (int layer = first + 1; layer < first_layers[next]; ++layer)
      edges.push_back({layer - 1, layer, of_unit::same});
    int const beside = over.graph().edges(stage, group_step);
    if (beside > 0 && over.graph().edge(stage, group_step, 0).stage == stage)
      groups.push_back({first, beside});
  }
  return edge_table(edges, first_layers.back(), groups);
}

//! The pipeline of the layers of stages: each lies where its stage does.
[[nodiscard]] inline pipeline pipeline_of_layers(pipeline_view const& over,
                                                 std::span<int const> first_layers) {
  int const all = first_layers.back();
  shape const& extents = over.extents;
  pipeline result{.extents = {.devices = extents.devices,
                              .microbatches = extents.microbatches,
                              .stages_per_device = all / extents.devices,
                              .where = placement::custom,
                              .extra_stages = all % extents.devices},
                  .declared = flow_of_layers(*over.declared)};
  for (int stage = 0; stage < extents.stages(); ++stage)
    result.holders.resize(
      static_cast<std::size_t>(first_layers[static_cast<std::size_t>(stage) + 1]),
      static_cast<std::uint16_t>(device_of(over, stage)));
  if (over.edges != nullptr)
    result.edges = edges_of_layers(over, first_layers);
  return result;
}

//! True where all that a pass waits for has come before a time.
[[nodiscard]] inline bool
is_ready(timetable_view table, std::span<int const> entries, pass const& what, double time) {
  dependency_list const needed(table.over, what);
  for (int k = 0; k < needed.count; ++k) {
    int const entry = entries[static_cast<std::size_t>(needed.index(k))];
    if (entry < 0)
      return false;
    if (goes_again(table.passes[entry]))
      continue; // it comes before both
    int const from = device_of(table, table.passes[entry]);
    double const message = table.message_time(from, device_of(table, what));
    if (!(table.ends[entry] + message <= time * (1 + 1e-12)))
      return false;
  }
  return true;
}

//! Writes the layers of a row of a table. What stands between two passes that go together, to be
//! computed again or as a mark, comes before both, or after both.
inline void write_layers(
  timetable_view table, int row, bool pairs, std::span<int const> entries, expert_rows& out) {
  int const end = table.offsets[row + 1];
  for (int i = table.offsets[row]; i < end;) {
    pass const& first = table.passes[i];
    int next = i + 1;
    while (next < end && (marks_weights(table.passes[next]) ||
                          (goes_forward(first) && goes_again(table.passes[next]))))
      ++next;
    pass const* const second = next < end ? &table.passes[next] : nullptr;
    bool const two_ways = second != nullptr && ((goes_back(first) && goes_forward(*second)) ||
                                                (goes_forward(first) && goes_back(*second)));
    bool const both =
      pairs && two_ways && std::all_of(&first + 1, second + 1, [&](pass const& what) {
        return is_ready(table, entries, what, table.starts[i]);
      });
    if (!both) {
      out.write(first);
      ++i;
      continue;
    }
    for (bool const after : {false, true}) {
      if (after)
        goes_back(first) ? out.write(first, *second) : out.write(*second, first);
      for (int k = i + 1; k < next; ++k)
        if (out.ends_visit(table.passes[k]) == after)
          out.write(table.passes[k]);
    }
    i = next + 1;
  }
}

} // namespace detail

//! @brief The orders of a timetable with every layer a stage of `expert_training`, so that dispatch
//! and combine of one microbatch run next to the computation of another one. What is recomputed or
//! copied to the host is so layer by layer: each keeps its input, and one at a time is computed
//! again. Weights in shards are gathered and scattered layer by layer, on an engine of their own;
//! shards of a vocabulary stay as they are.
//!
//! Each pass becomes the passes of its layers. Two passes of a device, one after the other in the
//! table, one forward and one back, become one row of both, layer next to layer as in
//! Megatron-Core, where all that the second one waits for has come before the first one begins.
//! Nothing waits for ever: such pairs keep the order of their first passes.
//!
//! @param table of a flow of training, in an adapter or not: one copy of every stage, whole
//! sequences
//! @param layers [S] of each stage, at least 1; of a shard of the vocabulary 1
//! @param pairs false: no passes are put together
//! @throws std::invalid_argument for another table, or a stage without a layer.
//! @complexity O(n L) for n passes with L layers each
//! @source Megatron-LM, combined 1F1B (overlap_moe_expert_parallel_comm); when passes go together
//! is an own derivation.
[[nodiscard]] inline device_orders
with_experts(timetable_view table, std::span<int const> layers, bool pairs = true) {
  pipeline_view const& over = table.over;
  shape const& extents = over.extents;
  if (extents.chunks != 1 || extents.routes() != 1 ||
      (over.edges != nullptr && !over.declared->reads_in_groups))
    throw std::invalid_argument("with_experts: experts need a plain chain, with one copy of every "
                                "stage, whole sequences and nothing frozen");
  bool fits = layers.size() == static_cast<std::size_t>(extents.stages());
  std::vector<int> first_layers{0};
  for (int stage = 0; fits && stage < extents.stages(); ++stage) {
    int const count = layers[static_cast<std::size_t>(stage)];
    fits = count == 1 || (count > 1 && !over.in_group(stage));
    first_layers.push_back(first_layers.back() + count);
  }
  if (!fits)
    throw std::invalid_argument(
      "with_experts: give at least one layer for every stage, and 1 for a shard");
  device_orders result{detail::pipeline_of_layers(over, first_layers), {}, {0}};
  std::vector<int> const entries = detail::entries_of(table);
  flow const& declared = result.over.declared;
  std::vector<detail::expert_rows> of_device;
  for (int device = 0; device < extents.devices; ++device) {
    detail::expert_rows& out = of_device.emplace_back(over, first_layers, declared);
    for (int on = 0; on < flow::engine_count; ++on)
      if (int const row = over.declared->engine_row[on]; // what the network does follows from marks
          row >= 0 && on != static_cast<int>(engine::network))
        detail::write_layers(table, row * extents.devices + device, pairs, entries, out);
  }
  for (int on = 0; on < flow::engine_count; ++on)
    for (detail::expert_rows const& each : of_device)
      if (declared.engine_row[on] >= 0) {
        result.passes.insert(result.passes.end(), each.rows[on].begin(), each.rows[on].end());
        result.offsets.push_back(static_cast<int>(result.passes.size()));
      }
  return result;
}

} // namespace pipelining::inline v0_3
