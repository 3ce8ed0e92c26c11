// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a stage functor must be able to do, and how a pass reaches it. Header for the stage
//! concepts.

#include <pipe/core/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/run/context.hpp>

#include <concepts>
#include <cstddef>
#include <stdexcept>
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

//! @brief A stage of a model: forward, and backward in one piece or in two.
template <class Stage>
concept stage_functor = can_forward<Stage> &&(can_backward<Stage> || can_split_backward<Stage>);

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
  static_assert(can_forward<Stage>,
                "run: a stage needs forward(pipelining::context const&, pipelining::input, "
                "pipelining::output)");
  static_assert(can_backward<Stage> || can_split_backward<Stage>,
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

//! @brief True when a stage can run passes of this kind. A stage with the two halves can run a
//! fused backward.
template <class Stage>
[[nodiscard]] constexpr bool can_run(pass_kind kind) noexcept {
  if (kind == pass_kind::forward)
    return can_forward<Stage>;
  if (kind == pass_kind::backward)
    return can_backward<Stage> || can_split_backward<Stage>;
  return can_split_backward<Stage>;
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
//! @throws what the stage throws; std::logic_error for a split backward that the stage cannot do.
template <class Stage>
void run_pass(Stage& stage, pass_kind kind, context const& where, input in, output out) {
  static_assert(detail::check_stage<Stage>::good);
  switch (kind) {
  case pass_kind::forward: stage.forward(where, in, out); return;
  case pass_kind::backward:
    if constexpr (can_backward<Stage>) {
      stage.backward(where, in, out);
    } else {
      stage.backward_input(where, in, out);
      stage.backward_weight(where);
    }
    return;
  case pass_kind::backward_input:
    if constexpr (can_split_backward<Stage>) {
      stage.backward_input(where, in, out);
      return;
    }
    break;
  case pass_kind::backward_weight:
    if constexpr (can_split_backward<Stage>) {
      stage.backward_weight(where);
      return;
    }
    break;
  }
  throw std::logic_error(
    "run: the schedule splits the backward pass, but the stage has only the fused backward; give "
    "it backward_input and backward_weight");
}

} // namespace pipelining::inline v0_1
