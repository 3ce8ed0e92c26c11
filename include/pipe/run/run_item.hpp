// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One pass of a plan on the user's stages. Header for pipelining::run_item.

#include <pipe/plan/item.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/stage.hpp>

namespace pipelining::inline v0_1 {

namespace detail {

//! What follows complete gradients. Runners have checked that the stage has the hook.
template <class Stage>
void run_hook(Stage& stage, arena const& memory, item const& step, context const& where) {
  if constexpr (can_tie<Stage>) {
    if (step.about == subject::tied_gradient)
      stage.tied_gradient(where, memory.output_of(step));
    if (step.about == subject::add_tied)
      stage.add_tied(where, memory.tied_gradient(0), memory.tied_gradient(1));
  }
  if constexpr (can_contribute<Stage>)
    if (step.about == subject::contribution)
      stage.contribute(where, memory.output_of(step));
  if constexpr (can_update<Stage>)
    if (step.about == subject::update)
      stage.optimizer_step(where, memory.all_totals());
}

} // namespace detail

//! @brief Runs the pass of an item on its stage, and tells the stage when its weight gradients are
//! complete; or runs what follows then.
//!
//! What every executor does for an item that runs.
//!
//! @param memory the device's slots. @param stream the CUDA stream to enqueue on, if any.
//! @throws what the stage throws.
template <class Stages>
void run_item(Stages& stages, arena const& memory, item const& step, void* stream = nullptr) {
  if (is_copy(step))
    return memory.copy(step);
  context const where = memory.context_of(step, stream);
  visit_stage(stages, step.work.stage, [&]<class Stage>(Stage& stage) {
    if (step.about != subject::pass)
      return detail::run_hook(stage, memory, step, where);
    run_pass(stage,
             (*memory.work.declared)[step.work.kind].calls,
             step.work.kind,
             where,
             memory.input_of(step),
             memory.output_of(step));
    if constexpr (can_announce_gradients<Stage>)
      if (step.completes_stage)
        stage.gradients_ready(where);
  });
}

} // namespace pipelining::inline v0_1
