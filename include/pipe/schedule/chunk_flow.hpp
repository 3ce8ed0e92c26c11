// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B over sequences of unequal length that keeps few chunks of each. Header for
//! pipelining::ChunkFlow.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/schedule/block/chunk_counts.hpp>
#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief ChunkFlow's state-aware 1F1B: microbatches of unequal numbers of chunks, of which each
//! keeps the activations of its last K; those before keep their input, keys and values, and are
//! recomputed.
//!
//! The last device runs the forward passes in order, and after each the next backward pass if its
//! forward pass has run; backward passes take the chunks of a microbatch last to first. Device d
//! runs P - 1 - d forward passes more before each of its backward passes. A recompute stands right
//! before the backward pass of its chunk, so these are recomputed in descending order, too: that is
//! the order in which the gradients of keys and values come.
//!
//! With C* the chunks of the longest microbatch, at most C* + P - 1 - d units are under way on
//! device d, and of those of one microbatch at most K are kept. Where every microbatch has as many
//! chunks, K at least, the order is that of Seq1F1B. Any P >= 1, M >= 1, K >= 1.
//!
//! Chunks are one pass each, whether they hold a piece of a long sequence or several short ones:
//! `chunk_sequences` makes them, `packed_cost` times them.
//!
//! @tparam Counts how many chunks a microbatch has. @tparam Keep K, or `dynamic`.
//! @throws std::invalid_argument from `arrange` for a K below 1.
//! @complexity O(1) per pass.
//! @source Yuan et al., "Efficient Long Context Fine-tuning with Chunk Flow" (arXiv:2503.02356).
//! Its listing recomputes in ascending order, its text in descending order, as the gradients of
//! keys and values ask for; that devices before the last run ahead as in 1F1B is our reading.
template <detail::chunk_counts Counts = listed_chunks, int Keep = dynamic>
struct ChunkFlow {
  static_assert(Keep == dynamic || Keep >= 1, "ChunkFlow: a microbatch keeps at least one chunk");
  static constexpr flow declared = detail::frugal_training<(sizeof(Counts) > 0)>;

  Counts counts{};
  detail::parameter<Keep, 1> keep{}; //!< chunks of a microbatch whose activations stay

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (keep < 1)
      throw std::invalid_argument(
        "ChunkFlow: a microbatch keeps at least one chunk, whose backward pass comes next");
    return {.devices = devices,
            .microbatches = microbatches,
            .chunks = detail::most_chunks(counts, microbatches)};
  }
  [[nodiscard]] constexpr int chunks_of(shape const&, int microbatch) const
    requires(!detail::equal_chunk_counts<Counts>) {
    return counts(microbatch);
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const microbatches = extents.microbatches;
    detail::chunk_walk<Counts> forward(counts, microbatches, device, detail::direction::forward);
    detail::chunk_walk<Counts> backward(counts, microbatches, device, detail::direction::backward);
    int arrived = 0; // units up to the microbatch whose backward passes come next
    int behind = 0;  // forward passes before the next backward pass on the last device
    int done = 0;
    for (int entered = 0; !backward.ended();) {
      if (backward.microbatch() == entered)
        arrived += counts(entered++);
      behind = std::max(arrived, behind + 1);
      for (; done < behind + extents.devices - 1 - device && !forward.ended(); ++done) {
        pass const next = forward.take(pass_kind::forward);
        out.push(is_kept(next) ? next : of_kind(next, pass_kind::checkpointed_forward));
      }
      pass const next = backward.take(pass_kind::backward);
      if (!is_kept(next))
        out.push(of_kind(next, pass_kind::recompute));
      out.push(next);
    }
  }

private:
  [[nodiscard]] constexpr bool is_kept(pass const& what) const {
    return what.chunk + keep >= counts(what.microbatch);
  }
  [[nodiscard]] static constexpr pass of_kind(pass what, pass_kind kind) noexcept {
    what.kind = kind;
    return what;
  }
};

} // namespace pipelining::inline v0_3
