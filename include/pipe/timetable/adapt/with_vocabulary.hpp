// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Any schedule with the vocabulary cut into shards. Header for pipelining::with_vocabulary.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/adapt/vocabulary_1f1b.hpp>
#include <pipe/timetable/adapt/vocabulary_rows.hpp>

#include <stdexcept>
#include <type_traits>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief In place of a number of barriers: on every device `logits` and their gradients stand
//! together, so nothing hides the exchange of statistics between them, and all devices begin the
//! gradients of a microbatch at the same time.
inline constexpr int interlaced = 0;

//! @brief A schedule around whose stages stand the shards of an embedding and of an output layer,
//! one of each on every device, so that no device has the whole vocabulary.
//!
//! With P devices and V stages of the schedule on each, stages 0 ... P - 1 are the shards of the
//! embedding (stage d on device d), P ... P + P V - 1 those of the schedule, and the P behind them
//! the shards of the output layer. The first stage of the schedule reads all shards of the
//! embedding, and its gradient goes to all of them; all shards of the output layer read the last
//! stage's output, and it reads the gradients of them all. Between `logits` and `logits_gradient`
//! the shards exchange statistics. See `vocabulary_training` for what the passes do.
//!
//! Around OneFOneB the order is the published one: peak min(P - d + Barriers, M) activations of the
//! schedule's stages on device d and one set of logits. Where passes of shards and their exchanges
//! take no time and F <= B, the bubble is (P - 1)(F + B), that of 1F1B; with two barriers it is up
//! to F more unless B is F or 2 F. The published `interlaced` order has peak min(floor(3P/2) - d,
//! M) and, with F <= B and M >= floor(3P/2) - 1, the same bubble whatever the passes of the
//! output's shards take.
//!
//! Around any other schedule of `training`, backward passes are put off by as many units as there
//! are barriers; a device holds one set of logits, and V Barriers activations more than without
//! shards; no order is promised. Interlaced, activations stay as many as they were, and around
//! ZeroBubbleH1 and VHalf with F = I = W so does the bubble.
//!
//! For timetables that the program makes.
//!
//! @tparam Schedule a schedule of `training` with a looped or a wave placement. @tparam Barriers 2,
//! or 1: then the statistics travel with the gradients of the output (more work, one exchange less
//! to wait for); or `interlaced`, with the flow of 2.
//! @throws arrange throws std::invalid_argument for other placements.
//! @complexity O(log P) per pass on top of the schedule's.
//! @source Yeung et al., "Balancing Pipeline Parallelism with Vocabulary Parallelism", 2024
//! (arXiv:2411.05288), sections 4 and 5 and its artifact. Interlaced: Lin et al., "nnScaler", OSDI
//! 2024, as in that artifact; where M < floor(3P/2) its devices look up fewer embeddings before
//! their first forward pass, for which others wait; here as many as otherwise. Around other
//! schedules: own derivation.
template <schedule Schedule, int Barriers = 2>
requires(Barriers >= 0 && Barriers <= 2) struct with_vocabulary {
  static constexpr flow declared = vocabulary_training<(Barriers == 1 ? 1 : 2)>;
  static_assert(detail::flow_of<Schedule>() == training,
                "with_vocabulary: the schedule inside must be one of training; recomputation and "
                "copies to the host do not go with shards");
  static_assert(!detail::counts_chunks<Schedule> && !detail::joins_stages<Schedule>,
                "with_vocabulary: the schedule inside must have a chain of stages and as many "
                "chunks in every microbatch");

  Schedule inner{}; //!< whose stages the shards stand around

  //! The extents: two stages more on every device.
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    shape extents = inner.arrange(devices, microbatches);
    if (extents.where != placement::looped && extents.where != placement::wave)
      throw std::invalid_argument("with_vocabulary: shards stand around stages that are looped or "
                                  "in waves, but this schedule keeps two copies of every stage or "
                                  "places them itself");
    extents.where = placement::custom;
    extents.stages_per_device += 2;
    return extents;
  }
  //! Shard d of either end on device d, other stages where the schedule has them.
  [[nodiscard]] constexpr int device_of(shape const& extents, int stage, int) const {
    shape const within = inside(extents);
    int const chain = stage - extents.devices;
    if (chain < 0)
      return stage;
    return chain < stages(within) ? pipelining::device_of(within, chain) : chain - stages(within);
  }
  //! Shards of the embedding to the first stage, stage to stage, the last stage to shards of the
  //! output layer.
  [[nodiscard]] std::vector<stage_edge> edges_of(shape const& extents) const {
    int const first = extents.devices;
    int const behind = first + stages(inside(extents));
    std::vector<stage_edge> edges;
    for (int shard = 0; shard < extents.devices; ++shard)
      edges.push_back({shard, first, of_unit::same});
    for (int stage = first; stage + 1 < behind; ++stage)
      edges.push_back({stage, stage + 1, of_unit::same});
    for (int shard = 0; shard < extents.devices; ++shard)
      edges.push_back({behind - 1, behind + shard, of_unit::same});
    return edges;
  }
  //! The shards of each end.
  [[nodiscard]] std::vector<stage_group> groups_of(shape const& extents) const {
    return {{0, extents.devices}, {extents.devices + stages(inside(extents)), extents.devices}};
  }
  //! The orders of all devices.
  template <cost_model Cost>
  void generate(shape const& extents, Cost const& cost, row_writer* rows) const {
    if constexpr (std::is_same_v<Schedule, OneFOneB>)
      detail::write_vocabulary_1f1b(extents, cost, Barriers, rows);
    else
      detail::write_vocabulary_rows(inner, inside(extents), cost, Barriers, rows);
  }

  //! The extents of the schedule inside.
  [[nodiscard]] constexpr shape inside(shape const& extents) const {
    return inner.arrange(extents.devices, extents.microbatches);
  }
};

} // namespace pipelining::inline v0_3
