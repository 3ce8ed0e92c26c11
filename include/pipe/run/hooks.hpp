// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Calls that a stage may have next to its passes. Header for the concepts of hooks, such as
//! pipelining::detail::can_update.

#include <pipe/flow/pass.hpp>
#include <pipe/run/context.hpp>

#include <concepts>
#include <type_traits>

namespace pipelining::inline v0_3::detail {

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

} // namespace pipelining::inline v0_3::detail
