// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Fill and drain, stage by stage. Header for pipelining::BreadthFirst.

#include <pipe/schedule/schedule.hpp>

#include <stdexcept>

namespace pipelining::inline v0_3 {

//! @brief Breadth-first pipeline: V stages per device, stage s on device s mod P; a device runs all
//! microbatches on its first stage, then all on its second, ...; then backward in reverse order of
//! stages and microbatches.
//!
//! Sharded weights are gathered once per stage and direction, which is what the schedule is for; it
//! does not save memory: peak V M stage activations, that is M whole microbatches, on every device.
//! With F and B the times of one stage and c the latency, the bubble is (P - 1)(F + B + 2 c), plus,
//! for P > 1, (V - 1) (max(0, (P - M) F + P c) + max(0, (P - M) B + P c)), which vanishes for M
//! enough larger than P. Any P >= 1, M >= 1, V >= 1; V = 1 is GPipe with the backward passes
//! reversed.
//!
//! @tparam StagesPerDevice V, or `dynamic` for a number that is known only at run time.
//! @throws std::invalid_argument from `arrange` when V is smaller than 1.
//! @complexity O(1) per pass.
//! @source Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023 (arXiv:2211.05953),
//! section 4; the bubble is an own derivation, checked by simulation.
template <int StagesPerDevice = dynamic>
struct BreadthFirst {
  static_assert(StagesPerDevice == dynamic || StagesPerDevice >= 1,
                "BreadthFirst: a device holds at least one stage");

  detail::parameter<StagesPerDevice> stages_per_device{};

  [[nodiscard]] constexpr shape arrange(int devices, int microbatches) const {
    if (stages_per_device < 1)
      throw std::invalid_argument("BreadthFirst: a device holds at least one stage");
    return {
      .devices = devices, .microbatches = microbatches, .stages_per_device = stages_per_device};
  }
  constexpr void order(shape const& extents, int device, row_writer& out) const {
    for (int stage = device; stage < extents.stages(); stage += extents.devices)
      for (int microbatch = 0; microbatch < extents.microbatches; ++microbatch)
        out.forward(stage, microbatch);
    for (int stage = extents.stages() - extents.devices + device; stage >= 0;
         stage -= extents.devices)
      for (int microbatch = extents.microbatches - 1; microbatch >= 0; --microbatch)
        out.backward(stage, microbatch);
  }
};

} // namespace pipelining::inline v0_3
