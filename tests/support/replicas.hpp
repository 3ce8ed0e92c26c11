// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Pipelines next to each other as one schedule, of which one may have lost a device.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/schedule.hpp>

#include <cstddef>
#include <vector>

namespace support {

//! @brief 1F1B on every pipeline by simulated time: backward before forward before weights. Of
//! pipeline 0 the device of stage `lost` is gone; -1: none.
struct replicas {
  int pipelines = 1;
  int depth = 1;
  int lost = -1;

  [[nodiscard]] int device(int stage, int microbatch) const {
    int pipeline = microbatch % pipelines;
    if (pipeline == 0 && stage == lost)
      pipeline = 1 + microbatch / pipelines % (pipelines - 1);
    return pipeline * depth + stage;
  }
  [[nodiscard]] pipelining::shape arrange(int devices, int microbatches) const {
    return {.devices = devices,
            .microbatches = microbatches,
            .where = pipelining::placement::custom,
            .custom_routes = microbatches,
            .extra_stages = depth - devices};
  }
  [[nodiscard]] int device_of(pipelining::shape const&, int stage, int route) const {
    return device(stage, route);
  }

  struct choice {
    double at = 1e30;
    int rank = 3; // 0 backward, 1 forward, 2 weights
    int stage = 0;
    int microbatch = 0;
  };

  template <class Cost, class Rows>
  void generate(pipelining::shape const& extents, Cost const&, Rows&& rows) const {
    auto const count = static_cast<std::size_t>(extents.microbatches);
    std::vector<std::vector<double>> forward(static_cast<std::size_t>(depth),
                                             std::vector<double>(count, -1));
    auto backward = forward;
    auto weights = forward;
    std::vector<double> free_from(static_cast<std::size_t>(extents.devices), 0);
    std::vector<int> flying(free_from.size(), 0);
    for (int left = 3 * depth * extents.microbatches; left > 0; --left) {
      choice best;
      for (int s = 0; s < depth; ++s)
        for (int m = 0; m < extents.microbatches; ++m)
          consider(best, forward, backward, weights, free_from, flying, s, m);
      auto const s = static_cast<std::size_t>(best.stage);
      auto const m = static_cast<std::size_t>(best.microbatch);
      auto const d = static_cast<std::size_t>(device(best.stage, best.microbatch));
      free_from[d] = best.at + 1;
      (best.rank == 1 ? forward : best.rank == 0 ? backward : weights)[s][m] = free_from[d];
      flying[d] += best.rank == 1 ? 1 : best.rank == 2 ? -1 : 0;
      rows[d].push(pipelining::row_writer::make(best.rank == 1 ? pipelining::pass_kind::forward
                                                : best.rank == 0
                                                  ? pipelining::pass_kind::backward_input
                                                  : pipelining::pass_kind::backward_weight,
                                                best.stage,
                                                best.microbatch));
    }
  }

private:
  using times = std::vector<std::vector<double>>;

  void consider(choice& best,
                times const& forward,
                times const& backward,
                times const& weights,
                std::vector<double> const& free_from,
                std::vector<int> const& flying,
                int stage,
                int microbatch) const {
    auto const s = static_cast<std::size_t>(stage);
    auto const m = static_cast<std::size_t>(microbatch);
    auto const d = static_cast<std::size_t>(device(stage, microbatch));
    auto const offer = [&](int rank, double ready) {
      double const at = std::max(free_from[d], ready);
      if (ready >= 0 && (at < best.at || (at == best.at && rank < best.rank)))
        best = {at, rank, stage, microbatch};
    };
    if (forward[s][m] < 0 && flying[d] < 2 * (depth - stage))
      offer(1, stage > 0 ? forward[s - 1][m] : 0);
    if (forward[s][m] >= 0 && backward[s][m] < 0)
      offer(0, stage + 1 < depth ? backward[s + 1][m] : forward[s][m]);
    if (backward[s][m] >= 0 && weights[s][m] < 0)
      offer(2, backward[s][m]);
  }
};

} // namespace support
