// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Chunks of sequences on several stages per device, group by group. Header for
//! pipelining::SlimPipe.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

#include <stdexcept>
#include <string>

namespace pipelining::inline v0_3 {

//! @brief SlimPipe: sequences are cut into C >= P chunks, and a device keeps little more than one
//! microbatch.
//!
//! Groups of G chunks, G the least divisor of C that is at least P, pass all V stages of a device
//! before the next group does; backward passes come in the exact reverse inside a microbatch, and
//! microbatches in order. Device d begins with C V + 2 (P - 1 - d) forward passes, then backward
//! and forward passes take turns. V = 1 is EagerSeq1F1B.
//!
//! With F and B the times of one chunk on one stage, all chunks alike, the bubble is (P - 1)(F + B)
//! on span and makespan, whatever M. Device d holds 1 + 2 (P - 1 - d) / (C V) microbatches' share
//! of its stages, and no more than M. A latency c of at most F and at most B adds 2 c ((P - 1) + (V
//! - 1) C) where G = P, whatever M. Else the chunks of a group beyond P are time to travel: 2 c (P
//! - 1) and (V - 1) C / G times max(0, P c - (G - P) F) + max(0, P c - (G - P) B).
//!
//! Later chunks attend to more keys: what devices do about that is the attention_exchange.
//!
//! @tparam Chunks C, or `dynamic`. @tparam StagesPerDevice V, or `dynamic`.
//! @throws std::invalid_argument from `arrange` for fewer chunks than devices, and for no stages.
//! @complexity O(1) per pass.
//! @source Li et al., "SlimPipe: Memory-Thrifty and Efficient Pipeline Parallelism for Long-Context
//! LLM Training", 2025 (arXiv:2504.14519), and its repository, kwai/Megatron-Kwai, which wants
//! M C V to be at least C V + 2 (P - 1). Fewer microbatches run here: all forward passes first. The
//! wait for messages where G > P is what our tests find.
template <int Chunks = dynamic, int StagesPerDevice = 1>
struct SlimPipe {
  static_assert(Chunks == dynamic || Chunks >= 1, "SlimPipe: a sequence has at least one chunk");
  static_assert(StagesPerDevice == dynamic || StagesPerDevice >= 1,
                "SlimPipe: a device holds at least one stage");

  parameter<Chunks> chunks{};                        //!< C
  parameter<StagesPerDevice, 1> stages_per_device{}; //!< V

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (chunks < devices)
      throw std::invalid_argument("SlimPipe: " + std::to_string(chunks) +
                                  " chunks are too few for " + std::to_string(devices) +
                                  " devices: cut sequences into at least as many chunks as there "
                                  "are devices, or take Seq1F1B");
    return detail::walk{.stages_per_device = stages_per_device, .chunks = chunks}.arrange(
      devices, microbatches);
  }
  static constexpr void order(shape const& extents, int device, row_writer& out) {
    detail::walk{.group = 1, .reach = 2, .chunk_group = chunk_group(extents)}.order(
      extents, device, out);
  }
  //! G, the chunks of one microbatch that pass all stages of a device before others do.
  [[nodiscard]] static constexpr int chunk_group(shape const& extents) noexcept {
    int size = extents.devices;
    while (extents.chunks % size != 0)
      ++size;
    return size;
  }
};

} // namespace pipelining::inline v0_3
