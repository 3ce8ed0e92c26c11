// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One pass of a plan on the user's stages. Header for pipelining::run_item.

#include <pipe/plan/item.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/stage.hpp>

namespace pipelining::inline v0_1 {

//! @brief Runs the pass of an item on its stage, and tells the stage when its weight gradients are
//! complete.
//!
//! What every executor does for an item that runs a pass.
//!
//! @param memory the device's slots. @param stream the CUDA stream to enqueue on, if any.
//! @throws what the stage throws.
template <class Stages>
void run_item(Stages& stages, arena const& memory, item const& step, void* stream = nullptr) {
  context const where = memory.context_of(step, stream);
  visit_stage(stages, step.work.stage, [&]<class Stage>(Stage& stage) {
    run_pass(stage, step.work.kind, where, memory.input_of(step), memory.output_of(step));
    if constexpr (can_announce_gradients<Stage>)
      if (step.completes_stage)
        stage.gradients_ready(where);
  });
}

} // namespace pipelining::inline v0_1
