// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Interleaved stages with the backward pass split in two. Header for
//! pipelining::ZeroBubbleInterleaved.

#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <stdexcept>

namespace pipelining::inline v0_1 {

//! @brief ZB-H1 over interleaved stages: every device owns V stages, microbatches pass through them
//! in groups, and the gradients of the weights lag behind by one pass per device.
//!
//! There are max(1, M / P) groups, as even as possible, the larger ones first; N is the size of the
//! first, P where P divides M. A device runs (V - 1) N + P - 1 - d forward passes first, half of
//! what interleaved 1F1B needs. Bubble, in times of one stage with W <= I and W <= F and no
//! latency: (P - 1)(F + I - W) on span and makespan for every M >= P. Peak (V - 1) N + P
//! activations of one stage on every device when M >= P, V M when M < P. V = 1 is ZB-H1. Any P >=
//! 1, M >= 1, V >= 1.
//!
//! @tparam StagesPerDevice V, or `dynamic` for a number that is known only at run time.
//! @complexity O(1) per pass.
//! @source Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), combined
//! with Narayanan et al., SC 2021, section 2.2.2. Where all groups are of one size, the order is
//! that of PyTorch's ScheduleInterleavedZeroBubble; uneven groups are our own.
template <int StagesPerDevice = dynamic>
struct ZeroBubbleInterleaved {
  static_assert(StagesPerDevice == dynamic || StagesPerDevice >= 1,
                "ZeroBubbleInterleaved: a device owns at least one stage");

  int stages_per_device = StagesPerDevice;

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (stages_per_device < 1)
      throw std::invalid_argument(
        "ZeroBubbleInterleaved: the number of stages per device must be at least 1");
    return {
      .devices = devices, .microbatches = microbatches, .stages_per_device = stages_per_device};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    int const all = extents.microbatches * extents.stages_per_device;
    int const warm_up = std::min(
      (extents.stages_per_device - 1) * largest_group(extents) + extents.devices - 1 - device, all);
    int const lag = std::min(device, all);
    for (int turn = 0; turn < warm_up; ++turn)
      push(extents, pass_kind::forward, device, turn, out);
    for (int turn = 0; turn < all; ++turn) {
      if (warm_up + turn < all)
        push(extents, pass_kind::forward, device, warm_up + turn, out);
      push(extents, pass_kind::backward_input, device, turn, out);
      if (turn >= lag)
        push(extents, pass_kind::backward_weight, device, turn - lag, out);
    }
    for (int turn = all - lag; turn < all; ++turn)
      push(extents, pass_kind::backward_weight, device, turn, out);
  }

private:
  [[nodiscard]] static constexpr int groups(shape const& extents) {
    return std::max(1, extents.microbatches / extents.devices);
  }
  [[nodiscard]] static constexpr int largest_group(shape const& extents) {
    return (extents.microbatches - 1) / groups(extents) + 1;
  }
  //! Writes the `turn`-th pass of a kind: group after group, in a group stage after stage
  //! (backward passes: last stage first), on a stage microbatch after microbatch.
  static constexpr void
  push(shape const& extents, pass_kind kind, int device, int turn, row_writer& out) {
    int const stages_here = extents.stages_per_device;
    int const smaller = extents.microbatches / groups(extents);
    int const larger = extents.microbatches % groups(extents); // groups of smaller + 1
    int const turns_of_larger = larger * (smaller + 1) * stages_here;
    bool const in_larger = turn < turns_of_larger;
    int const size = in_larger ? smaller + 1 : smaller;
    int const left = in_larger ? turn : turn - turns_of_larger;
    int const first = left / (size * stages_here) * size + (in_larger ? 0 : larger * (smaller + 1));
    int const within = left % (size * stages_here);
    int const local = kind == pass_kind::forward ? within / size : stages_here - 1 - within / size;
    out.push(row_writer::make(kind, stage_of(extents, device, local), first + within % size));
  }
};

} // namespace pipelining::inline v0_1
