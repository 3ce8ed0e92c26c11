// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The members that a stage functor needs, and how to reach one stage of many. Header for
//! the stage concepts.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/hooks.hpp>

#include <concepts>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace pipelining::inline v0_3 {

namespace detail {

//! `stage.forward(context, input, output)`
template <class Stage>
concept can_forward = requires(Stage& stage, context const& where, input in, output out) {
  stage.forward(where, in, out);
};

//! `stage.backward(context, input, output)`: both gradients at once; reads the gradient of
//! the stage's output,
//!        writes the gradient of its input.
template <class Stage>
concept can_backward = requires(Stage& stage, context const& where, input in, output out) {
  stage.backward(where, in, out);
};

//! `stage.backward_input(context, input, output)` and `stage.backward_weight(context)`: the
//! halves of backward.
template <class Stage>
concept can_split_backward = requires(Stage& stage, context const& where, input in, output out) {
  stage.backward_input(where, in, out);
  stage.backward_weight(where);
};

//! `stage.recompute(context, input)`: fills the activation again that a forward pass has not
//! kept. A stage without it is asked for `forward` again, with an output that nobody reads.
template <class Stage>
concept can_recompute = requires(Stage& stage, context const& where, input in) {
  stage.recompute(where, in);
};

//! `stage.perform(kind, context, input, output)`: passes of kinds of the user's own flow.
template <class Stage>
concept can_perform =
  requires(Stage& stage, pass_kind kind, context const& where, input in, output out) {
  stage.perform(kind, where, in, out);
};

//! `static constexpr bool frozen = true`: the weights of the stage are not trained. Where
//! stages before it are, or are not declared to be frozen (see with_frozen_stages), it needs
//! `backward_input` alone, which is called in fused backward passes too (where it has no
//! `weight_input`), and nothing is called for its weight gradients.
template <class Stage>
concept is_frozen = requires(Stage& stage, context const& where, input in, output out) {
  requires Stage::frozen;
  stage.backward_input(where, in, out);
};

//! `static constexpr bool takes_chunks = true`: every pass of the stage does only the chunk
//! of the sequence that its context names. Another stage would do the whole sequence once for each
//! chunk, so it is refused where sequences have several. A stage with `perform` need not say it.
template <class Stage>
concept takes_chunks = can_perform<Stage> || requires {
  requires Stage::takes_chunks;
};

//! With no trained stage before it, a frozen stage needs only forward.
template <class Stage>
concept says_frozen = requires {
  requires Stage::frozen;
};

} // namespace detail

//! @brief A stage of a model: forward, and backward in one piece or in two.
template <class Stage>
concept stage_functor = detail::can_perform<Stage> ||
  (detail::can_forward<Stage> && (detail::can_backward<Stage> ||
                                  detail::can_split_backward<Stage> || detail::says_frozen<Stage>));

namespace detail {

//! True when a stage has the member that a kind of pass calls. The two halves are no fused
//! backward: notes of the first half for the second have a slot in split passes only. A stage that
//! has no `recompute` recomputes by `forward`.
template <class Stage>
[[nodiscard]] constexpr bool can_run(stage_call call) noexcept {
  switch (call) {
  case stage_call::forward:
  case stage_call::recompute: return can_forward<Stage>;
  case stage_call::backward: return can_backward<Stage> || is_frozen<Stage>;
  case stage_call::backward_input:
  case stage_call::backward_weight: return can_split_backward<Stage> || is_frozen<Stage>;
  case stage_call::copy: return true;
  case stage_call::gather_weights:
  case stage_call::use_weights: return can_gather_weights<Stage>;
  case stage_call::collect_gradients:
  case stage_call::scatter_gradients: return can_scatter_gradients<Stage> || is_frozen<Stage>;
  case stage_call::perform: return can_perform<Stage>;
  }
  return false;
}

//! One readable sentence for each capability that a stage lacks, and for each hook whose other
//! parameters do not fit.
template <class Stage>
struct check_stage {
  static_assert(can_perform<Stage> || can_forward<Stage>,
                "run: a stage needs forward(pipelining::context const&, pipelining::input, "
                "pipelining::output)");
  static_assert(can_perform<Stage> || can_backward<Stage> || can_split_backward<Stage> ||
                  says_frozen<Stage>,
                "run: a stage needs backward(context const&, input, output), or both "
                "backward_input(context const&, "
                "input, output) and backward_weight(context const&)");
  static_assert(
    !misfits<Stage, can_recompute<Stage>>(recompute_of),
    "run: the stage has a member recompute, but it would never be called; declare it as "
    "recompute(pipelining::context const&, pipelining::input)");
  static_assert(
    !misfits<Stage, can_announce_gradients<Stage>>(gradients_ready_of),
    "run: the stage has a member gradients_ready, but it would never be called; declare "
    "it as gradients_ready(pipelining::context const&)");
  static_assert(!misfits<Stage, can_tie<Stage>>(tied_gradient_of, add_tied_of),
                "run: the stage has a member tied_gradient or add_tied, but they would never be "
                "called; declare both, as tied_gradient(pipelining::context const&, "
                "pipelining::output) and add_tied(context const&, input first, input last)");
  static_assert(!misfits<Stage, can_contribute<Stage>>(contribute_of),
                "run: the stage has a member contribute, but it would never be called; declare it "
                "as contribute(pipelining::context const&, pipelining::output)");
  static_assert(!misfits<Stage, can_update<Stage>>(optimizer_step_of),
                "run: the stage has a member optimizer_step, but it would never be called; declare "
                "it as optimizer_step(pipelining::context const&, pipelining::totals const&)");
  static_assert(
    !misfits<Stage, can_gather_weights<Stage>>(gather_weights_of, use_weights_of),
    "run: the stage has a member gather_weights or use_weights, but they would never be "
    "called; declare both, as gather_weights(pipelining::context const&, "
    "pipelining::output) and use_weights(context const&, pipelining::input)");
  static_assert(
    !misfits<Stage, can_scatter_gradients<Stage>>(collect_gradients_of, scatter_gradients_of),
    "run: the stage has a member collect_gradients or scatter_gradients, but they would "
    "never be called; declare both, as collect_gradients(pipelining::context const&, "
    "pipelining::output) and scatter_gradients(context const&, pipelining::input)");
  static_assert(!misfits<Stage, can_follow_memory<Stage>>(memory_moved_of),
                "run: the stage has a member memory_moved, but it would never be called; declare "
                "it as memory_moved(pipelining::context const&)");
  static_assert(!misfits<Stage, can_step_early<Stage>>(accepts_of,
                                                       roll_back_of,
                                                       begin_iteration_of),
                "run: the stage has a member accepts, roll_back or begin_iteration, but they would "
                "never be called; declare all next to optimizer_step, as bool "
                "accepts(pipelining::context const&, pipelining::totals const&), roll_back(context "
                "const&, bool stepped) and begin_iteration(context const&)");
  static_assert(!misfits<Stage, can_begin<Stage>, pass_kind>(begin_pass_of, finish_pass_of),
                "run: the stage has a member begin_pass or finish_pass, but they would never be "
                "called; declare both, as bool begin_pass(pipelining::pass_kind, context const&, "
                "pipelining::input, pipelining::output) and finish_pass with the same parameters");
  static constexpr bool good = true;
};

//! A sentence that says what to give a stage that lacks the member that a kind of pass
//! calls.
//! @param who "the stage", or "stage 3"
[[nodiscard]] inline std::string missing_member(stage_call call, std::string const& who) {
  if (call == stage_call::perform)
    return "run: the schedule has passes of a flow of its own, but " + who +
           " lacks perform(pass_kind, context const&, input, output)";
  if (call == stage_call::forward || call == stage_call::recompute)
    return "run: the schedule has forward passes, but " + who +
           " lacks forward(context const&, input, output)";
  if (call == stage_call::gather_weights || call == stage_call::use_weights)
    return "run: the schedule gathers sharded weights, but " + who +
           " lacks gather_weights(context const&, output) or use_weights(context const&, input)";
  if (call == stage_call::collect_gradients || call == stage_call::scatter_gradients)
    return "run: the schedule scatters gradients, but " + who +
           " lacks collect_gradients(context const&, output) or scatter_gradients(context const&, "
           "input)";
  if (call == stage_call::backward)
    return "run: the schedule has fused backward passes, but " + who +
           " has only the two halves, and what the first keeps for the second has no slot "
           "(weight_input) in a fused pass; give it backward(context const&, input, output)";
  return "run: the schedule splits the backward pass, but " + who +
         " has only the fused backward; give it backward_input and backward_weight";
}

template <class Stages>
concept tuple_of_stages = requires {
  std::tuple_size<Stages>::value;
}
&&!requires(Stages & stages) {
  stages[0];
};

//! `stages(3)` is stage 3, or a pointer to it.
template <class Stages>
concept function_of_stages = std::invocable<Stages&, int>;

//! Raw and smart pointers: may be null, and lead to a stage.
template <class Element>
concept points_to_stage = requires(Element const& element) {
  *element;
  element == nullptr;
};

//! Calls `visit` with a stage, or with the stage that a pointer leads to.
//! @return false for a null pointer.
template <class Element, class Visit>
bool visit_element(Element&& element, Visit& visit) {
  if constexpr (points_to_stage<std::remove_cvref_t<Element>>) {
    if (element == nullptr)
      return false;
    visit(*element);
  } else {
    visit(element);
  }
  return true;
}

//! Calls `visit` with one stage of a model.
//!
//! @param stages a vector, an array or a tuple (of stages of different types), of stages or of raw
//! or smart pointers to them; or a function from the number of a stage to a reference or a pointer.
//! Where there are pointers, those to stages that this process never runs may be null.
//! @return false where the stage is a null pointer.
//! @pre the stage exists.
template <class Stages, class Visit>
bool visit_stage(Stages& stages, int stage, Visit visit) {
  if constexpr (function_of_stages<Stages>)
    return visit_element(stages(stage), visit);
  else if constexpr (tuple_of_stages<Stages>)
    return std::apply(
      [&, at = 0](auto&... each) mutable {
        return ((at++ == stage && visit_element(each, visit)) || ...);
      },
      stages);
  else
    return visit_element(stages[static_cast<std::size_t>(stage)], visit);
}

//! The number of stages in a vector, an array or a tuple.
template <class Stages>
[[nodiscard]] std::size_t stage_count(Stages const& stages) {
  if constexpr (tuple_of_stages<Stages>)
    return std::tuple_size_v<Stages>;
  else
    return stages.size();
}

} // namespace detail

} // namespace pipelining::inline v0_3
