// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a stage functor must be able to do, and how a pass reaches it. Header for the stage
//! concepts.

#include <pipe/core/flow.hpp>
#include <pipe/core/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/run/context.hpp>

#include <concepts>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace pipelining::inline v0_1 {

//! @brief `stage.forward(context, input, output)`
template <class Stage>
concept can_forward = requires(Stage& stage, context const& where, input in, output out) {
  stage.forward(where, in, out);
};

//! @brief `stage.backward(context, input, output)`: both gradients at once; reads the gradient of
//! the stage's output,
//!        writes the gradient of its input.
template <class Stage>
concept can_backward = requires(Stage& stage, context const& where, input in, output out) {
  stage.backward(where, in, out);
};

//! @brief `stage.backward_input(context, input, output)` and `stage.backward_weight(context)`: the
//! halves of backward.
template <class Stage>
concept can_split_backward = requires(Stage& stage, context const& where, input in, output out) {
  stage.backward_input(where, in, out);
  stage.backward_weight(where);
};

//! @brief `stage.recompute(context, input)`: fills the activation again that a forward pass has not
//! kept. A stage without it is asked for `forward` again, with an output that nobody reads.
template <class Stage>
concept can_recompute = requires(Stage& stage, context const& where, input in) {
  stage.recompute(where, in);
};

//! @brief `stage.perform(kind, context, input, output)`: passes of kinds of the user's own flow.
template <class Stage>
concept can_perform = requires(
  Stage& stage, pass_kind kind, context const& where, input in, output out) {
  stage.perform(kind, where, in, out);
};

//! @brief A stage of a model: forward, and backward in one piece or in two.
template <class Stage>
concept stage_functor = can_perform<Stage> ||
  (can_forward<Stage> && (can_backward<Stage> || can_split_backward<Stage>));

//! @brief `stage.gradients_ready(context)`: called once per iteration and device, right after the
//! last pass that adds
//!        to the stage's weight gradients, while other stages still run. The place to start a
//!        data-parallel reduction or the optimizer's step of this stage.
template <class Stage>
concept can_announce_gradients = requires(Stage& stage, context const& where) {
  stage.gradients_ready(where);
};

//! @brief `stage.tied_gradient(context, output)`: writes the gradient of the weight that the first
//! and the last stage share into the output; `stage.add_tied(context, first, last)`: makes the sum
//! of both its gradient. Both stages are handed the same two inputs in the same order, so their
//! copies stay equal bit for bit.
template <class Stage>
concept can_tie = requires(Stage& stage, context const& where, input in, output out) {
  stage.tied_gradient(where, out);
  stage.add_tied(where, in, in);
};

//! @brief `stage.contribute(context, output)`: writes the stage's row of the totals. Called once
//! per iteration, behind all passes of the device, when the stage's gradients are complete, tied
//! ones included.
template <class Stage>
concept can_contribute = requires(Stage& stage, context const& where, output out) {
  stage.contribute(where, out);
};

//! @brief `stage.optimizer_step(context, totals)`: called once at the end of the iteration. The
//! totals lie where the stage runs: on a GPU, kernels read them.
template <class Stage>
concept can_update = requires(Stage& stage, context const& where, totals const& all) {
  stage.optimizer_step(where, all);
};

namespace detail {

//! One readable sentence for each capability that a stage lacks.
template <class Stage>
struct check_stage {
  static_assert(can_perform<Stage> || can_forward<Stage>,
                "run: a stage needs forward(pipelining::context const&, pipelining::input, "
                "pipelining::output)");
  static_assert(can_perform<Stage> || can_backward<Stage> || can_split_backward<Stage>,
                "run: a stage needs backward(context const&, input, output), or both "
                "backward_input(context const&, "
                "input, output) and backward_weight(context const&)");
  static constexpr bool good = true;
};

template <class Stages>
concept tuple_of_stages = requires {
  std::tuple_size<Stages>::value;
}
&&!requires(Stages & stages) {
  stages[0];
};

template <std::size_t Index, class Stages, class Visit>
void visit_tuple(Stages& stages, std::size_t stage, Visit& visit) {
  if constexpr (Index < std::tuple_size_v<Stages>) {
    if (Index == stage)
      visit(std::get<Index>(stages));
    else
      visit_tuple<Index + 1>(stages, stage, visit);
  }
}

} // namespace detail

//! @brief Calls `visit` with one stage of a vector, an array or a tuple of stages of different
//! types.
//! @pre the stage exists.
template <class Stages, class Visit>
void visit_stage(Stages& stages, int stage, Visit visit) {
  auto const index = static_cast<std::size_t>(stage);
  if constexpr (detail::tuple_of_stages<Stages>)
    detail::visit_tuple<0>(stages, index, visit);
  else
    visit(stages[index]);
}

//! @brief The number of stages in a vector, an array or a tuple.
template <class Stages>
[[nodiscard]] std::size_t stage_count(Stages const& stages) {
  if constexpr (detail::tuple_of_stages<Stages>)
    return std::tuple_size_v<Stages>;
  else
    return stages.size();
}

//! @brief A sentence that says what to give a stage that lacks the member that a kind of pass calls.
//! @param who "the stage", or "stage 3"
[[nodiscard]] inline std::string missing_member(stage_call call, std::string const& who) {
  if (call == stage_call::perform)
    return "run: the schedule has passes of a flow of its own, but " + who +
           " lacks perform(pass_kind, context const&, input, output)";
  if (call == stage_call::forward || call == stage_call::recompute)
    return "run: the schedule has forward passes, but " + who +
           " lacks forward(context const&, input, output)";
  if (call == stage_call::backward)
    return "run: the schedule has fused backward passes, but " + who +
           " has only the two halves, and what the first keeps for the second has no slot "
           "(weight_input) in a fused pass; give it backward(context const&, input, output)";
  return "run: the schedule splits the backward pass, but " + who +
         " has only the fused backward; give it backward_input and backward_weight";
}

//! @brief True when a stage has the member that a kind of pass calls. The two halves are no fused
//! backward: what the first keeps for the second has a slot in split passes only. A stage without
//! `recompute` recomputes by `forward`.
template <class Stage>
[[nodiscard]] constexpr bool can_run(stage_call call) noexcept {
  switch (call) {
  case stage_call::forward:
  case stage_call::recompute: return can_forward<Stage>;
  case stage_call::backward: return can_backward<Stage>;
  case stage_call::backward_input:
  case stage_call::backward_weight: return can_split_backward<Stage>;
  case stage_call::copy: return true;
  case stage_call::perform: return can_perform<Stage>;
  }
  return false;
}

//! @brief True when a stage can do what a step is about that follows complete gradients.
template <class Stage>
[[nodiscard]] constexpr bool can_follow(subject about) noexcept {
  switch (about) {
  case subject::tied_gradient:
  case subject::add_tied: return can_tie<Stage>;
  case subject::contribution: return can_contribute<Stage>;
  case subject::update: return can_update<Stage>;
  default: return true;
  }
}

//! @brief Runs one pass on a stage.
//! @param kind is handed to `perform`, for kinds of the user's own.
//! @throws what the stage throws; std::logic_error for a member that the stage lacks.
template <class Stage>
void run_pass(
  Stage& stage, stage_call call, pass_kind kind, context const& where, input in, output out) {
  static_assert(detail::check_stage<Stage>::good);
  switch (call) {
  case stage_call::forward:
    if constexpr (can_forward<Stage>) {
      stage.forward(where, in, out);
      return;
    }
    break;
  case stage_call::backward:
    if constexpr (can_backward<Stage>) {
      stage.backward(where, in, out);
      return;
    }
    break;
  case stage_call::backward_input:
    if constexpr (can_split_backward<Stage>) {
      stage.backward_input(where, in, out);
      return;
    }
    break;
  case stage_call::backward_weight:
    if constexpr (can_split_backward<Stage>) {
      stage.backward_weight(where);
      return;
    }
    break;
  case stage_call::recompute:
    if constexpr (can_recompute<Stage>) {
      stage.recompute(where, in);
      return;
    } else if constexpr (can_forward<Stage>) {
      stage.forward(where, in, out);
      return;
    }
    break;
  case stage_call::copy: return;
  case stage_call::perform:
    if constexpr (can_perform<Stage>) {
      stage.perform(kind, where, in, out);
      return;
    }
    break;
  }
  throw std::logic_error(missing_member(call, "the stage"));
}

} // namespace pipelining::inline v0_1
