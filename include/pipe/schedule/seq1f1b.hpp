// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B over chunks of sequences. Header for pipelining::Seq1F1B, EagerSeq1F1B, their split
//! backward passes, and the same on interleaved stages.

#include <pipe/schedule/block/walk.hpp>
#include <pipe/schedule/schedule.hpp>

namespace pipelining::inline v0_3 {

//! @brief 1F1B over units (microbatch, chunk): sequences are cut into `Chunks` chunks; forward
//! passes take them first to last, backward passes last to first, sequences in order.
//!
//! With chunks of equal work the bubble is (P - 1)(F + B) of one chunk, 1/C of 1F1B's, and device 0
//! holds (P + C - 1) / C microbatches instead of P. A latency c adds
//! 2 c ((P - 1) M C / P + P - 1 - C + floor(C / P)) when P divides M C. Any P >= 1, M >= 1, C >= 1;
//! C = 1 is 1F1B.
//!
//! @tparam Chunks chunks of one sequence, or `dynamic` for a number that is known only at run time.
//! @complexity O(1) per pass.
//! @source Sun et al., "Seq1F1B", NAACL 2025 (arXiv:2406.03488), the partially ordered queue.
template <int Chunks = dynamic>
using Seq1F1B = detail::Walk<detail::walk{}, 1, Chunks>;

//! @brief Seq1F1B with a warm-up that gives every message the time of one pass to travel: device d
//! runs P - 1 - d more units first.
//!
//! With chunks of equal work the bubble is (P - 1)(F + B + 2 latency) of one chunk, whatever M, as
//! long as 2 latency <= F + B, where plain Seq1F1B waits about 2 latency (P - 1) / P in every unit.
//! Device d holds min(2 (P - d) + C - 2, M C) chunks. Any P >= 1, M >= 1, C >= 1; C = 1 is
//! EagerOneFOneB.
//!
//! @tparam Chunks chunks of one sequence, or `dynamic` for a number that is known only at run time.
//! @complexity O(1) per pass.
//! @source own derivation, checked by simulation: EagerOneFOneB over the units of Seq1F1B.
template <int Chunks = dynamic>
using EagerSeq1F1B = detail::Walk<detail::walk{.reach = 2}, 1, Chunks>;

//! @brief Seq1F1B with split backward passes in the memory of Seq1F1B: device d runs the gradients
//! of the weights d units late.
//!
//! With F, I, W the times of one chunk, W <= F and W <= I, and c the latency, the bubble is
//! (P - 1)(F + I - W + 4 c) on span and makespan when 2 c <= W and M C >= 2 P + C - 1, and without
//! latency when M C >= P + C - 1. Peak min(P + C - 1, M C) chunks on every
//! device. Any P >= 1, M >= 1, C >= 1; C = 1 is ZB-H1.
//!
//! @tparam Chunks chunks of one sequence, or `dynamic` for a number that is known only at run time.
//! @complexity O(1) per pass.
//! @source own derivation, checked by simulation: the order of Seq1F1B (arXiv:2406.03488, which
//! shows a timeline of the combination) with the lag of ZB-H1 (arXiv:2401.10241, section 2).
template <int Chunks = dynamic>
using Seq1F1BZeroBubbleH1 = detail::Walk<detail::walk{.lag = 1}, 1, Chunks>;

//! @brief Seq1F1B with split backward passes and the warm-up that leaves no bubble on the span:
//! device d runs P - 1 - d more units first and the gradients of the weights 2 d units late.
//!
//! With F, I, W the times of one chunk, W <= F <= I, c <= W the latency, and M C >= 2 P + C - 2,
//! the bubble on the span is max(0, (P - 1)(F + I + 2 c - 2 W)), and on the makespan the least
//! possible (P - 1)(F + c) or that, whichever is more. Peak min(2 P + C - 2, M C) chunks on every
//! device. Any P >= 1, M >= 1, C >= 1; C = 1 is ZB-H2.
//!
//! @tparam Chunks chunks of one sequence, or `dynamic` for a number that is known only at run time.
//! @complexity O(1) per pass.
//! @source own derivation, checked by simulation: the order of Seq1F1B (arXiv:2406.03488) with the
//! warm-up and the lag of ZB-H2 (arXiv:2401.10241, section 2).
template <int Chunks = dynamic>
using Seq1F1BZeroBubbleH2 = detail::Walk<detail::walk{.reach = 2, .lag = 2}, 1, Chunks>;

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
using Seq1F1BInterleaved = detail::Walk<detail::walk{}, StagesPerDevice, Chunks, Group, Stagger>;

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
using Seq1F1BZeroBubbleInterleaved = detail::Walk<detail::walk{.lag = 1}, StagesPerDevice, Chunks>;

} // namespace pipelining::inline v0_3
