// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Interleaved 1F1B over chunks of sequences. Header for
//! pipelining::Seq1F1BInterleaved and pipelining::Seq1F1BZeroBubbleInterleaved.

#include <pipe/flow/shape.hpp>
#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_3 {

//! @brief Seq1F1B with V stages per device: `Interleaved` over the units (microbatch, chunk) of
//! groups of whole sequences.
//!
//! With F and B the times of one chunk on one stage and no latency, the bubble is (P - 1)(F + B),
//! 1/(V C) of 1F1B's, for any M C >= P; M C < P adds (V - 1)(P - M C)(F + B). Device d holds
//! min((V - 1) N C + C - 1 + stagger (P - 1 - d) + 1, V M C) chunks on one stage, each 1/(V C) of a
//! microbatch, N being the largest group in sequences. With `stagger` 2 a latency of at
//! most F and at most B adds 2 latency (V P - 1) whatever M, when P > 1, V > 1, N C = P and N
//! divides M.
//!
//! The reference takes groups of P units, which cuts a sequence in two unless C divides P; a group
//! here is the smallest number of whole sequences with at least P units, so any P >= 1, M >= 1,
//! V >= 1, C >= 1 will do. Where M = P the reference runs all forward passes first; here M = P is
//! nothing special.
//!
//! @tparam StagesPerDevice V, or `dynamic`. @tparam Chunks C, or `dynamic`.
//! @tparam Group the wished N, in sequences; 0 stands for ceil(P / C).
//! @tparam Stagger forward passes by which the warm-up of a device exceeds that of the next, 1
//! or 2.
//! @throws std::invalid_argument from `arrange` for a parameter out of range.
//! @complexity O(1) per pass.
//! @source Sun et al., "Seq1F1B", NAACL 2025 (arXiv:2406.03488), the interleaved variant; groups of
//! whole sequences are an own derivation, checked by simulation.
template <int StagesPerDevice = dynamic,
          int Chunks = dynamic,
          int Group = dynamic,
          int Stagger = dynamic>
struct Seq1F1BInterleaved {
  static_assert(StagesPerDevice == dynamic || StagesPerDevice >= 1,
                "Seq1F1BInterleaved: a device holds at least one stage");
  static_assert(Chunks == dynamic || Chunks >= 1,
                "Seq1F1BInterleaved: a sequence has at least one chunk");
  static_assert(Group == dynamic || Group >= 0,
                "Seq1F1BInterleaved: a group has at least one microbatch");
  static_assert(Stagger == dynamic || Stagger == 1 || Stagger == 2,
                "Seq1F1BInterleaved: the stagger is 1 or 2");

  parameter<StagesPerDevice> stages_per_device{};
  parameter<Chunks> chunks{};
  parameter<Group, 0> group{};
  parameter<Stagger, 2> stagger{};

  //! @brief The rule of the walk that makes its rows.
  [[nodiscard]] constexpr detail::walk steps() const noexcept {
    return {
      .stages_per_device = stages_per_device, .chunks = chunks, .group = group, .reach = stagger};
  }
  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    return steps().arrange(devices, microbatches);
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    steps().order(extents, device, out);
  }
};

//! @brief Seq1F1B with V stages per device and split backward passes in the memory of stagger 1:
//! device d runs the gradients of the weights d units late.
//!
//! With F, I, W the times of one chunk on one stage, W <= F, W <= I, no latency and
//! M C >= P + C - 1, the bubble is (P - 1)(F + I - W) on span and makespan. With N the largest
//! group in sequences, every device holds min((V - 1) N C + C - 1 + P, V M C) chunks on one stage,
//! each 1/(V C) of a microbatch. C = 1 is ZeroBubbleInterleaved, V = 1 is Seq1F1BZeroBubbleH1. Any
//! P >= 1, M >= 1, V >= 1, C >= 1.
//!
//! @tparam StagesPerDevice V, or `dynamic`. @tparam Chunks C, or `dynamic`.
//! @throws std::invalid_argument from `arrange` when V is smaller than 1.
//! @complexity O(1) per pass.
//! @source own derivation, checked by simulation: what `walk` gives when the groups of interleaved
//! stages (SC 2021), the chunks of Seq1F1B (arXiv:2406.03488) and the lag of ZB-H1
//! (arXiv:2401.10241) meet.
template <int StagesPerDevice = dynamic, int Chunks = dynamic>
using Seq1F1BZeroBubbleInterleaved =
  detail::LoopedWalk<detail::walk{.lag = 1}, StagesPerDevice, Chunks>;

} // namespace pipelining::inline v0_3
