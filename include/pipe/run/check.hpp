// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Checks of every runner before it starts. Header for pipelining::detail::check_stages
//! and pipelining::detail::drained_order.

#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove/drain.hpp>
#include <pipe/run/stage.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The hooks of a subject, as a stage declares them.
[[nodiscard]] constexpr char const* hooks_for(subject about) noexcept {
  switch (about) {
  case subject::copied_gradient:
  case subject::add_copies:
    return "copied_gradient(context const&, output) and add_copies(context const&, totals const&): "
           "it has several copies, whose gradients are added up";
  case subject::tied_gradient:
  case subject::add_tied:
    return "tied_gradient(context const&, output) and add_tied(context const&, input first, input "
           "last), or leave tied_bytes at 0";
  case subject::contribution:
    return "contribute(context const&, output), or leave totals_bytes at 0";
  case subject::early_update:
  case subject::validation:
    return "bool accepts(context const&, totals const&), roll_back(context const&, bool stepped) "
           "and begin_iteration(context const&) beside optimizer_step, or lower the plan with "
           "step_validation::at_once";
  default: return "optimizer_step(context const&, totals const&), or leave totals_bytes at 0";
  }
}

//! The end of a sentence about hooks of a stage that a plan would never call, or null. Evaluations
//! and plans that only validate call few hooks, and no one expects more: null.
template <class Stage>
[[nodiscard]] constexpr char const* uncalled_hook(plan_view const& work) noexcept {
  if (work.evaluates || work.validation == step_validation::last)
    return nullptr;
  if (can_tie<Stage> && work.tied_bytes == 0)
    return " has tied_gradient and add_tied, but the plan never calls them: its sizes have no "
           "tied_bytes; set them to the bytes of the gradient, or take the hooks away";
  if (can_update<Stage> && work.totals_bytes == 0)
    return " has optimizer_step, but the plan never calls it: its sizes have no totals_bytes; set "
           "them to the bytes of a stage's row, or take the hook away";
  if (can_contribute<Stage> && work.totals_bytes == 0)
    return " has contribute, but the plan never calls it: its sizes have no totals_bytes; set them "
           "to the bytes of a stage's row, or take the hook away";
  return nullptr;
}

//! Checks that there is one stage for each stage of the plan, and that each can run its
//! passes, takes chunks where there are any, has the hooks that the plan calls, and no others.
//! @param only the device whose passes are looked at, or `nothing` for all. Stages of other devices
//! may be null pointers.
//! @throws std::invalid_argument with one sentence.
template <class Stages>
void check_stages(plan_view const& work, Stages& stages, int only = nothing) {
  auto const needed = static_cast<std::size_t>(work.over.extents.stages());
  if (!has_stages(stages, needed)) {
    if constexpr (!function_of_stages<Stages>)
      throw std::invalid_argument("run: the plan has " + std::to_string(needed) + " stages, but " +
                                  std::to_string(stage_count(stages)) + " were given");
  }
  for (int device = 0; device < work.over.extents.devices; ++device) {
    if (only != nothing && device != only)
      continue;
    for (item const& step : work.program_of(device)) {
      if (step.what != operation::run)
        continue;
      std::string const who = "stage " + std::to_string(step.work.stage);
      bool const there = visit_stage(stages, step.work.stage, [&]<class Stage>(Stage&) {
        static_assert(check_stage<Stage>::good);
        if (!can_follow<Stage>(step.about))
          throw std::invalid_argument("run: the sizes of the plan ask for a hook that " + who +
                                      " lacks; give it " + hooks_for(step.about));
        if (char const* const idle = uncalled_hook<Stage>(work); idle != nullptr)
          throw std::invalid_argument("run: " + who + idle);
        stage_call const call = (*work.over.declared)[step.work.kind].calls;
        if (step.about == subject::pass && !can_run<Stage>(call))
          throw std::invalid_argument(missing_member(call, who));
        if (int const chunks = work.over.extents.chunks; chunks > 1 && !takes_chunks<Stage>)
          throw std::invalid_argument(missing_chunks(chunks, who));
      });
      if (!there)
        throw std::invalid_argument("run: " + who + " is a null pointer, but device " +
                                    std::to_string(device) +
                                    " runs it here; only stages of other ranks may be null");
    }
  }
}

//! Refuses plans that decide on the host, in the middle of an iteration, whether it goes on:
//! for runners that launch an iteration as a whole.
//! @throws std::invalid_argument
inline void refuse_validation(plan_view const& work) {
  if (work.validation != step_validation::at_once)
    throw std::invalid_argument(
      "run: a CUDA graph is launched as a whole, and cannot ask the host in the middle of an "
      "iteration whether the optimizer's step of the one before was right; run without a graph, or "
      "lower the plan with step_validation::at_once");
}

//! Takes every device as far as its next pass, and past it; the ends of a group of
//! messages one right after the other.
//!
//! @param at [P], the items that devices stand at. @param may_run whether a device may run the pass
//! that it stands at now. @param go called with each device that moves. @return whether any
//! has.
//! @throws what the functions throw.
template <class MayRun, class Go>
bool take_turns(plan_view const& work, std::vector<int>& at, MayRun may_run, Go go) {
  bool moved = false;
  std::vector<int> others;
  for (int device = 0; device < work.over.extents.devices; ++device) {
    int& next = at[static_cast<std::size_t>(device)];
    auto const steps = work.program_of(device);
    bool ran = false;
    while (static_cast<std::size_t>(next) < steps.size()) {
      if (steps[static_cast<std::size_t>(next)].what == operation::run) {
        if (ran || !may_run(device))
          break;
        ran = true;
        next = end_of_group(steps, next);
      } else {
        others.clear();
        if (!meet_at_messages(
              work, at.data(), device, [&others](int other) { others.push_back(other); }))
          break;
      }
      go(device);
      for (int const other : others)
        go(other);
      others.clear();
      moved = true;
    }
  }
  return moved;
}

//! One order of all items of all devices in which the ends of a group come one right after
//! the other: for each item or group, the device whose turn it is.
//!
//! Devices take turns of one pass each, so that none is far behind the others: a host that enqueues
//! in this order, and only so far ahead, lets no device run dry while it waits for another.
//!
//! @pre prove(work)
//! @complexity O(n P) for n items.
[[nodiscard]] inline std::vector<int> drained_order(plan_view const& work) {
  std::vector<int> order;
  std::vector<int> at(static_cast<std::size_t>(work.over.extents.devices));
  while (take_turns(
    work, at, [](int) { return true; }, [&order](int device) { order.push_back(device); })) {
  }
  return order;
}

} // namespace pipelining::inline v0_3::detail
