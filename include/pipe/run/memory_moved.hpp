// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Word to stages whose buffers lie elsewhere from now on. Header for
//! pipelining::detail::tell_moved.

#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/hooks.hpp>
#include <pipe/run/stages.hpp>

namespace pipelining::inline v0_3::detail {

//! Tells the stages of a device that its memory has moved.
//! @param work any plan of the runner: all place stages alike.
//! @throws what the stages throw.
template <class Stages>
void tell_moved(Stages& stages, plan_view const& work, int device) {
  for (int stage = 0; stage < work.over.extents.stages(); ++stage)
    if (microbatch_on(work.over, stage, device) >= 0)
      (void)visit_stage(stages, stage, [&]<class Stage>(Stage& one) {
        if constexpr (can_follow_memory<Stage>) {
          context where;
          where.device = device;
          where.stage = stage;
          one.memory_moved(where);
        }
      });
}

} // namespace pipelining::inline v0_3::detail
