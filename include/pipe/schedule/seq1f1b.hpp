// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B over chunks of sequences. Header for pipelining::Seq1F1B, pipelining::EagerSeq1F1B,
//! pipelining::Seq1F1BZeroBubbleH1 and pipelining::Seq1F1BZeroBubbleH2.

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
using Seq1F1B = detail::Walk<detail::walk{}, Chunks>;

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
using EagerSeq1F1B = detail::Walk<detail::walk{.reach = 2}, Chunks>;

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
using Seq1F1BZeroBubbleH1 = detail::Walk<detail::walk{.lag = 1}, Chunks>;

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
using Seq1F1BZeroBubbleH2 = detail::Walk<detail::walk{.reach = 2, .lag = 2}, Chunks>;

} // namespace pipelining::inline v0_3
