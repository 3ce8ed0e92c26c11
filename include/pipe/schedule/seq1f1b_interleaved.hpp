// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Interleaved 1F1B over chunks of sequences. Header for pipelining::Seq1F1BInterleaved.

#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_1 {

//! @brief Seq1F1B with V stages per device: `Interleaved` over the units (microbatch, chunk) of
//! groups of whole sequences.
//!
//! With F and B the times of one chunk on one stage and no latency, the bubble is (P - 1)(F + B),
//! 1/(V C) of 1F1B's, for any M C >= P; M C < P adds (V - 1)(P - M C)(F + B). Device d holds
//! min((V - 1) N C + C - 1 + stagger (P - 1 - d) + 1, V M C) chunks on one stage, each 1/(V C) of a
//! microbatch, N being the largest group in sequences. With `stagger` 2 a latency adds
//! 2 latency (V P - 1) whatever M, when N C = P and N divides M.
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
template <int StagesPerDevice = dynamic, int Chunks = dynamic, int Group = 0, int Stagger = 2>
struct Seq1F1BInterleaved {
  static_assert(StagesPerDevice == dynamic || StagesPerDevice >= 1,
                "Seq1F1BInterleaved: a device holds at least one stage");
  static_assert(Chunks == dynamic || Chunks >= 1,
                "Seq1F1BInterleaved: a sequence has at least one chunk");
  static_assert(Group >= 0, "Seq1F1BInterleaved: a group has at least one microbatch");
  static_assert(Stagger == 1 || Stagger == 2, "Seq1F1BInterleaved: the stagger is 1 or 2");

  int stages_per_device = StagesPerDevice;
  int chunks = Chunks;
  int group = Group;
  int stagger = Stagger;

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    detail::check_interleaved(stages_per_device, group, stagger);
    return {.devices = devices,
            .microbatches = microbatches,
            .chunks = chunks,
            .stages_per_device = stages_per_device};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    detail::interleaved_order(extents, group, stagger, device, out);
  }
};

} // namespace pipelining::inline v0_1
