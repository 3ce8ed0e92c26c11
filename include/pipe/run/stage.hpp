// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The members that a stage functor needs, calls that it may have next to its passes, and
//! how to reach one stage of many. Header for the concepts of stages and hooks, such as
//! pipelining::detail::can_update.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/run/context.hpp>

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

//! `stage.gradients_ready(context)`: called once per iteration and device, right after the
//! last pass that adds
//!        to the stage's weight gradients, while other stages still run. The place to start a
//!        data-parallel reduction or the optimizer's step of this stage.
template <class Stage>
concept can_announce_gradients = requires(Stage& stage, context const& where) {
  stage.gradients_ready(where);
};

//! `stage.copied_gradient(context, output)`: writes the gradients of this copy of the stage
//! into the output, with all else that is to be added up, such as the loss; `stage.add_copies(
//! context, totals)`: makes the sum of all rows its gradients. Row c is that of the c-th copy in
//! the order of devices. All copies are handed the same rows, so they stay equal bit for bit.
template <class Stage>
concept can_add_copies =
  requires(Stage& stage, context const& where, totals const& all, output out) {
  stage.copied_gradient(where, out);
  stage.add_copies(where, all);
};

//! `stage.tied_gradient(context, output)`: writes the gradient of the weight that the first
//! and the last stage share into the output; `stage.add_tied(context, first, last)`: makes the sum
//! of both its gradient. Both stages are handed the same two inputs in the same order, so their
//! copies stay equal bit for bit.
template <class Stage>
concept can_tie = requires(Stage& stage, context const& where, input in, output out) {
  stage.tied_gradient(where, out);
  stage.add_tied(where, in, in);
};

//! `stage.contribute(context, output)`: writes the stage's row of the totals. Called once
//! per iteration, after all passes of the device, when the stage's gradients are complete, tied
//! ones included; in an evaluation (`context.evaluating`) after its forward passes.
template <class Stage>
concept can_contribute = requires(Stage& stage, context const& where, output out) {
  stage.contribute(where, out);
};

//! `stage.optimizer_step(context, totals)`: called once at the end of the iteration. The
//! totals lie where the stage runs: on a GPU, kernels read them.
template <class Stage>
concept can_update = requires(Stage& stage, context const& where, totals const& all) {
  stage.optimizer_step(where, all);
};

//! `stage.accepts(context, totals)`, with `step_validation`: whether the step of the
//! optimizer needs no more of the totals than that nothing stands against it: no overflow, no
//! coefficient below 1. It says so of the rows of some stages (the others are zeros), so rows that
//! it does not accept must not become acceptable when rows of further stages join them: squares add
//! up. Stages must agree, and the answer depend on the totals alone. The host decides, so that its
//! totals lie on the host on a GPU, too; `optimizer_step` reads them where the stage runs.
//!
//! `stage.roll_back(context, stepped)`: the totals of all stages have not been accepted, and the
//! iteration that has begun begins again. Forgets the forward passes that have run since; where
//! `stepped`, brings weights, the state of the optimizer and gradients back, bit for bit, to what
//! they were before `optimizer_step`, which is called next, with all rows. Keep a copy: to compute
//! backwards is to round. Where the program zeroes gradients before each step, brings them back
//! whether `stepped` or not, from a copy that `contribute` has made.
//!
//! `stage.begin_iteration(context)`: called after that step, where the iteration begins again in
//! the middle of the program's step. Does to the stage what the program does before each step, such
//! as zeroing gradients; does nothing where `optimizer_step` zeroes them.
template <class Stage>
concept can_step_early = can_update<Stage> &&
  requires(Stage& stage, context const& where, totals const& all) {
  { stage.accepts(where, all) } -> std::convertible_to<bool>;
  stage.roll_back(where, true);
  stage.begin_iteration(where);
};

//! `stage.memory_moved(context)`: called for each stage of a device, between steps, when its slots
//! lie elsewhere from now on: a plan was added that wants more memory than `reserve` has asked for.
//! Drops views of the memory that the stage has kept, which lead nowhere. The context has device
//! and stage only.
template <class Stage>
concept can_follow_memory = requires(Stage& stage, context const& where) {
  stage.memory_moved(where);
};

//! `stage.forward_backward(forward, backward, other)`: runs a composite pass, a forward pass
//! of this stage and a backward pass (both gradients) of `other`, in any order or at once: neither
//! needs what the other makes. Composite passes of stages without it run as two passes in turn.
template <class Stage, class Other>
concept can_overlap = requires(Stage& stage,
                               composite_half const& forward,
                               composite_half const& backward,
                               Other& other) {
  stage.forward_backward(forward, backward, other);
};

//! `stage.braid(kind, half, other_kind, other_half, other)`: runs a composite pass of any
//! two kinds, such as those of STP: a pass of this stage and one of `other`, which may be this one,
//! in any order or at once. A forward pass comes first. Where stages have `forward_backward`, that
//! runs the pairs that it can.
template <class Stage, class Other>
concept can_braid =
  requires(Stage& stage, pass_kind kind, composite_half const& half, Other& other) {
  stage.braid(kind, half, kind, half, other);
};

//! `stage.gather_weights(context, output)` writes the whole weights of the stage, from the
//! shards of all devices that share them, into the output; `stage.use_weights(context, input)` says
//! where they lie for the passes that follow, until it is said again. Another stage may have that
//! memory once the visit of this stage ends. With `with_sharded_weights`.
//!
//! On a GPU `gather_weights` enqueues on `context.stream`, which does not run the passes.
template <class Stage>
concept can_gather_weights = requires(Stage& stage, context const& where, input in, output out) {
  stage.gather_weights(where, out);
  stage.use_weights(where, in);
};

//! `stage.collect_gradients(context, output)` says where the passes that follow add their
//! weight gradients, and clears that memory; `stage.scatter_gradients(context, input)` adds
//! the collected gradients to the shards of all devices that share the stage. With
//! `with_sharded_weights`, once per visit or once per iteration.
//!
//! On a GPU `scatter_gradients` enqueues on `context.stream`, which does not run the passes.
template <class Stage>
concept can_scatter_gradients = requires(Stage& stage, context const& where, input in, output out) {
  stage.collect_gradients(where, out);
  stage.scatter_gradients(where, in);
};

//! `stage.begin_pass(kind, context, input, output)` starts a pass of another engine than compute,
//! which goes on without the calling thread, and says true; or says false, and the pass is run by
//! the member that its kind calls. `stage.finish_pass(kind, context, input, output)` waits for its
//! end, perhaps on another thread: before the first step that has to come after it, and before its
//! engine's next pass. A step that fails finishes what has begun (`context.abandoned`).
//!
//! On threads and MPI. On CUDA streams do it.
template <class Stage>
concept can_begin =
  requires(Stage& stage, pass_kind kind, context const& where, input in, output out) {
  { stage.begin_pass(kind, where, in, out) } -> std::convertible_to<bool>;
  stage.finish_pass(kind, where, in, out);
};

//! Stands for a parameter of any type but an rvalue reference.
struct anything {
  template <class T>
  operator T&() const;
};

//! Stands for what no hook takes: what takes this, too, takes whatever comes and is no hook.
struct stranger {};

// Calls of each name. Only accessible members can be called, those of base classes and of final
// classes alike. No template deduces its first parameter from braces, so none of a foreign class is
// instantiated. nvcc takes braces for any aggregate: hence the second call, asked only where the
// first is good.
// clang-format off
inline constexpr auto gradients_ready_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.gradients_ready({a}, b...); s.gradients_ready(a, b...); } {};
inline constexpr auto tied_gradient_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.tied_gradient({a}, b...); s.tied_gradient(a, b...); } {};
inline constexpr auto add_tied_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.add_tied({a}, b...); s.add_tied(a, b...); } {};
inline constexpr auto contribute_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.contribute({a}, b...); s.contribute(a, b...); } {};
inline constexpr auto optimizer_step_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.optimizer_step({a}, b...); s.optimizer_step(a, b...); } {};
inline constexpr auto recompute_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.recompute({a}, b...); s.recompute(a, b...); } {};
inline constexpr auto gather_weights_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.gather_weights({a}, b...); s.gather_weights(a, b...); } {};
inline constexpr auto use_weights_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.use_weights({a}, b...); s.use_weights(a, b...); } {};
inline constexpr auto collect_gradients_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.collect_gradients({a}, b...); s.collect_gradients(a, b...); } {};
inline constexpr auto scatter_gradients_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.scatter_gradients({a}, b...); s.scatter_gradients(a, b...); } {};
inline constexpr auto accepts_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.accepts({a}, b...); s.accepts(a, b...); } {};
inline constexpr auto roll_back_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.roll_back({a}, b...); s.roll_back(a, b...); } {};
inline constexpr auto memory_moved_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.memory_moved({a}, b...); s.memory_moved(a, b...); } {};
inline constexpr auto begin_iteration_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.begin_iteration({a}, b...); s.begin_iteration(a, b...); } {};
inline constexpr auto begin_pass_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.begin_pass({a}, b...); s.begin_pass(a, b...); } {};
inline constexpr auto finish_pass_of = [](auto& s, auto& a, auto&... b)
  requires requires { s.finish_pass({a}, b...); s.finish_pass(a, b...); } {};
// clang-format on

template <class Call, class Stage, class First>
concept takes_first =
  std::invocable<Call, Stage&, First&> || std::invocable<Call, Stage&, First&, anything&> ||
  std::invocable<Call, Stage&, First&, anything&, anything&> ||
  std::invocable<Call, Stage&, First&, anything&, anything&, anything&>;

//! True if a member with the name of a hook has the first parameter of the hook, whatever up to
//! three others are. Two such overloads that differ in a type alone are not found.
template <class Call, class Stage, class First>
concept begins_with = takes_first<Call, Stage, First> && !takes_first<Call, Stage, stranger>;

//! True if a stage has one of some members and yet lacks the hook that they are. Members of a hook
//! that fits are not called with `anything`: their bodies may need the right types.
template <class Stage, bool Fits, class First = context, class... Calls>
[[nodiscard]] constexpr bool misfits(Calls...) noexcept {
  if constexpr (Fits)
    return false;
  else
    return (begins_with<Calls, Stage, First> || ...);
}

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

//! A vector or an array; other models are tuples.
template <class Stages>
concept indexed_stages = requires(Stages& stages) {
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
  else if constexpr (indexed_stages<Stages>)
    return visit_element(stages[static_cast<std::size_t>(stage)], visit);
  else
    return std::apply(
      [&, at = 0](auto&... each) mutable {
        return ((at++ == stage && visit_element(each, visit)) || ...);
      },
      stages);
}

//! The number of stages in a vector, an array or a tuple.
template <class Stages>
[[nodiscard]] std::size_t stage_count(Stages const& stages) {
  if constexpr (indexed_stages<Stages>)
    return stages.size();
  else
    return std::tuple_size_v<Stages>;
}

} // namespace detail

} // namespace pipelining::inline v0_3
