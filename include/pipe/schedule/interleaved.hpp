// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief 1F1B with several stages per device. Header for pipelining::Interleaved.

#include <pipe/schedule/schedule.hpp>
#include <pipe/schedule/unit_walk.hpp>

#include <algorithm>
#include <stdexcept>

namespace pipelining::inline v0_1 {
namespace detail {

//! How many groups interleaved schedules cut their microbatches into.
//!
//! A stage of the next round can follow without waiting when a group has at least P units, hence
//! groups of at least ceil(P / C) microbatches. As many groups as the wished size asks for; fewer
//! where the rest of the division would make one too small. Only a wish below ceil(P / C) is taken
//! at its word.
[[nodiscard]] constexpr int interleaved_groups(shape const& extents, int wished) noexcept {
  int const least = (extents.devices + extents.chunks - 1) / extents.chunks;
  int const size = std::min(wished > 0 ? wished : least, extents.microbatches);
  int const groups = (extents.microbatches + size - 1) / size;
  if (size < least || extents.microbatches / groups >= least)
    return groups;
  return std::max(extents.microbatches / least, 1);
}

//! 1F1B over the units of all stages of a device.
//!
//! The first backward pass needs the forward passes of its microbatch on all stages, hence the
//! V - 1 groups and C - 1 chunks of warm-up. A group smaller than P bounds how far devices can be
//! apart: with more than two groups between the first and the last one their first passes would
//! wait for each other in a circle.
constexpr void
interleaved_order(shape const& extents, int group, int stagger, int device, row_writer& out) {
  int const groups = interleaved_groups(extents, group);
  int const smallest = extents.microbatches / groups * extents.chunks;
  int const largest = (extents.microbatches + groups - 1) / groups * extents.chunks;
  int const apart = std::min(stagger * (extents.devices - 1 - device), 2 * smallest);
  int const warm_up = (extents.stages_per_device - 1) * largest + extents.chunks - 1 + apart;
  one_forward_one_backward(extents, device, warm_up, groups, out);
}

constexpr void check_interleaved(int stages_per_device, int group, int stagger) {
  if (stages_per_device < 1)
    throw std::invalid_argument("Interleaved: a device holds at least one stage");
  if (group < 0)
    throw std::invalid_argument(
      "Interleaved: a group has at least one microbatch; 0 stands for the smallest group without "
      "waits");
  if (stagger < 1 || stagger > 2)
    throw std::invalid_argument(
      "Interleaved: the stagger is 1 (least memory) or 2 (messages have time to travel)");
}

} // namespace detail

//! @brief Interleaved 1F1B: V stages per device, stage s on device s mod P; microbatches run in
//! groups, each group through all stages of a device before the next group.
//!
//! With F and B the times of one stage, that is 1/V of what a device holds, and no latency, the
//! bubble is (P - 1)(F + B) for any M >= P, 1/V of 1F1B's. The reference wants M to be a multiple
//! of the group size N, or the rest to be at least P; here groups differ by at most one microbatch
//! and none is smaller than P, so any M will do. M < P adds (V - 1)(P - M)(F + B).
//!
//! Device d holds min((V - 1) N + stagger (P - 1 - d) + 1, V M) stage activations, each 1/V of a
//! microbatch, N being the largest group. With `stagger` 2, as in the reference, a latency adds
//! 2 latency (V P - 1) whatever M, when N = P divides M. With `stagger` 1 device 0 holds V P
//! instead of (V + 1) P - 1, at the same bubble when there is no latency; a latency then adds
//! 2 latency (V P + P - 3 + (P - 1) V (M / P - 1)), which grows with M.
//!
//! @tparam StagesPerDevice V, or `dynamic` for a number that is known only at run time.
//! @tparam Group the wished N; 0 stands for P. A group smaller than P saves memory and costs time.
//! @tparam Stagger forward passes by which the warm-up of a device exceeds that of the next, 1
//! or 2.
//! @throws std::invalid_argument from `arrange` for a parameter out of range.
//! @complexity O(1) per pass.
//! @source Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
//! Megatron-LM", SC 2021, section 2.2.2; uneven groups and stagger 1 are an own derivation, checked
//! by simulation.
template <int StagesPerDevice = dynamic, int Group = 0, int Stagger = 2>
struct Interleaved {
  static_assert(StagesPerDevice == dynamic || StagesPerDevice >= 1,
                "Interleaved: a device holds at least one stage");
  static_assert(Group >= 0, "Interleaved: a group has at least one microbatch");
  static_assert(Stagger == 1 || Stagger == 2, "Interleaved: the stagger is 1 or 2");

  int stages_per_device = StagesPerDevice;
  int group = Group;
  int stagger = Stagger;

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    detail::check_interleaved(stages_per_device, group, stagger);
    return {
      .devices = devices, .microbatches = microbatches, .stages_per_device = stages_per_device};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    detail::interleaved_order(extents, group, stagger, device, out);
  }
};

} // namespace pipelining::inline v0_1
