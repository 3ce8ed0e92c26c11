// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A V over chunks of sequences of unequal length. Header for pipelining::SliceV and
//! pipelining::RaggedSliceV.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/chunk_counts.hpp>
#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

//! @brief SliceV over microbatches of unequal numbers of chunks: two stages per device in a V,
//! chunks instead of microbatches, split backward passes.
//!
//! With C* the chunks of the longest microbatch, device d first runs 2 (P - 1 - d) forward passes
//! down the V, then C* + d of each side in turn. From there on every gradient of inputs makes room
//! for a forward pass, the side towards the loss first. Gradients of weights run right after those
//! of inputs until forward passes run out; then they wait, so that the gradients of inputs of the
//! rest leave early, and fill the end.
//!
//! F, I, W are the times of one chunk on one stage. With W <= F <= I and no latency, the bubble is
//! 2 (P - 1)(I - W) on the span and (P - 1) max(2 (I - W), I) on the makespan: none and the least
//! possible (P - 1) F at equal times. Every device holds 2 (C* + P - 1) chunks of one stage,
//! (C + P - 1) / C microbatches of its share of the model where all have C, as much as Seq1F1B; and
//! up to 2 (C* + d) weight inputs on device d. Any P >= 1.
//!
//! @pre All microbatches together have at least 2 (P - 1) + C* chunks.
//! @tparam Counts how many chunks a microbatch has: `equal_chunks`, `fixed_chunks`, `listed_chunks`
//! or any function object.
//! @throws std::invalid_argument from `arrange` where there are too few chunks.
//! @complexity O(1) per pass.
//! @source the order of `slice_v` in a fork of Megatron-LM, Cuiym715/Megatron-LM (commit 0fa7681);
//! no paper is known to us. Its laws are what our tests find at P <= 12 and random counts and
//! times.
template <detail::chunk_counts Counts>
struct RaggedSliceV {
  Counts counts{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    int const most = detail::most_chunks(counts, microbatches);
    int const all = detail::count_chunks(counts, microbatches);
    if (int const least = 2 * (devices - 1) + most; most >= 1 && all < least)
      throw std::invalid_argument(
        "SliceV: " + std::to_string(all) + " chunks of all microbatches are too few: " +
        std::to_string(devices) + " devices need at least " + std::to_string(least) +
        ", two for each device but the last and as many as the longest microbatch has; give it "
        "more microbatches or cut them into more chunks");
    return {.devices = devices,
            .microbatches = microbatches,
            .chunks = most,
            .stages_per_device = 2,
            .where = placement::wave};
  }
  [[nodiscard]] constexpr int chunks_of(shape const&, int microbatch) const
    requires(!detail::equal_chunk_counts<Counts>) {
    return counts(microbatch);
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const after = extents.devices - 1 - device; // devices after this one
    int const both = extents.chunks + device;       // forward passes of each side in turn
    int const rest = detail::count_chunks(counts, extents.microbatches) - extents.chunks -
                     2 * (extents.devices - 1) + device;
    half down(*this, extents, extents.stage_of(device, 0));
    half up(*this, extents, extents.stage_of(device, 1));
    queue weights{after, rest + after + both, &down, &up};
    auto const forward = [&](half& of) { out.push(of.forward.take(pass_kind::forward)); };
    auto const input = [&](half& of) { out.push(of.input.take(pass_kind::backward_input)); };
    auto const weight = [&] { out.push(weights.take()); };
    for (int i = 0; i < 2 * after; ++i)
      forward(down);
    for (int i = 0; i < both; ++i) {
      forward(down);
      forward(up);
    }
    for (int i = 0; i < after; ++i) {
      input(up);
      weight();
      forward(up);
    }
    for (int i = 0; i < rest + after; ++i) {
      input(up);
      weight();
      if (i < rest)
        forward(down);
      input(down);
      weight();
      forward(up);
    }
    for (int i = 0; i < both; ++i) {
      input(up);
      input(down);
    }
    for (int i = 0; i < after; ++i) {
      weight();
      input(down);
    }
    while (!down.weight.ended())
      weight();
  }

private:
  //! Passes of one of its two stages that a device still has to run.
  struct half {
    detail::chunk_walk<Counts> forward;
    detail::chunk_walk<Counts> input;
    detail::chunk_walk<Counts> weight;

    constexpr half(RaggedSliceV const& of, shape const& extents, int stage)
        : forward(of.counts, extents.microbatches, stage, detail::direction::forward),
          input(of.counts, extents.microbatches, stage, detail::direction::backward),
          weight(of.counts, extents.microbatches, stage, detail::direction::backward) {}
  };
  //! Gradients of weights in the order of those of inputs: first only of the upper stage, then of
  //! both in turn, then only of the lower stage.
  struct queue {
    int alone;
    int pairs;
    half* down;
    half* up;
    int taken = 0;

    constexpr pass take() {
      int const in_pairs = taken++ - alone;
      bool const is_up = in_pairs < 0 || (in_pairs < 2 * pairs && in_pairs % 2 == 0);
      return (is_up ? up : down)->weight.take(pass_kind::backward_weight);
    }
  };
};

//! @brief SliceV where every microbatch has as many chunks: Seq1F1B's memory without a bubble on
//! the span.
//!
//! @tparam Chunks chunks of one sequence, or `dynamic`: `SliceV<>{{c}}`.
template <int Chunks = dynamic>
using SliceV = RaggedSliceV<detail::equal_chunks<Chunks>>;

} // namespace pipelining::inline v0_3
