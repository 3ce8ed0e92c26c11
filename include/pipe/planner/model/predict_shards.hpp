// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times of a vocabulary that is cut into a shard per device. Header for
//! pipelining::shard_contents and predict_shards.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/flow/training_kinds.hpp>
#include <pipe/planner/model/gpu.hpp>
#include <pipe/planner/model/predict.hpp>
#include <pipe/planner/model/transformer.hpp>
#include <pipe/timetable/cost_table.hpp>

#include <span>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief The stages of `with_vocabulary`: a shard of the embedding per device, the stages inside,
//! a shard of the output layer per device.
//! @param layers [stages inside] layers of each
[[nodiscard]] inline std::vector<stage_content> shard_contents(std::span<int const> layers,
                                                               int devices) {
  std::vector<stage_content> result(static_cast<std::size_t>(devices),
                                    stage_content{0, true, false, devices});
  for (int const each : layers)
    result.push_back({each});
  result.insert(
    result.end(), static_cast<std::size_t>(devices), stage_content{0, false, true, devices});
  return result;
}

//! @brief Costs like those of `predict_costs`, with the passes of shards: a product with the rows
//! of a shard in `logits`, two in `logits_gradient`; with one barrier it is the other way round. A
//! look-up in the embedding takes no time, as in `predict_costs`. A datum for all shards is as
//! many messages of its device, one behind the other, and so are those of all shards to one device.
//! @param extents of `with_vocabulary` @param content as `shard_contents` gives it
//! @throws std::invalid_argument as `predict_costs` does.
//! @complexity O(S C)
[[nodiscard]] inline cost_table predict_shards(transformer const& model,
                                               training_setup const& setup,
                                               gpu const& on,
                                               efficiency const& reached,
                                               shape const& extents,
                                               std::span<stage_content const> content,
                                               std::span<int const> chunk_lengths,
                                               int barriers) {
  cost_table table = predict_costs(model, setup, on, reached, extents, content, chunk_lengths);
  table.set_groups(
    {(extents.devices - 1) * table.latency(), (extents.devices - 1) * table.latency()});
  token_range tokens{0, 0};
  for (int chunk = 0; chunk < extents.chunks; ++chunk) {
    tokens.prefix += tokens.length;
    tokens.length = chunk_lengths[static_cast<std::size_t>(chunk)];
    for (int stage = 0; stage < stages(extents); ++stage) {
      stage_content const& held = content[static_cast<std::size_t>(stage)];
      double const product =
        held.output ? pass_seconds(
                        model, setup, on, reached, held, kind_with(training, role::weights), tokens)
                    : 0;
      for (timed_kind const& kind : table.kinds())
        if (kind.in_groups)
          table.set(kind.kind, stage, chunk, 0);
      flow const& all = detail::kinds_of_training;
      table.set(detail::kind_in_groups(all, of_stage::before),
                stage,
                chunk,
                product * (barriers == 1 ? 2 : 1));
      table.set(detail::kind_in_groups(all, of_stage::group),
                stage,
                chunk,
                product * (barriers == 1 ? 1 : 2));
    }
  }
  return table;
}

} // namespace pipelining::inline v0_3
