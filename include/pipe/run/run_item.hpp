// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One pass of a plan on the user's stages. Header for pipelining::run_item and
//! pipelining::run_composite.

#include <pipe/plan/item.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/stage.hpp>
#include <pipe/run/validate_step.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace pipelining::inline v0_2 {

namespace detail {

//! What follows complete gradients. Runners have checked that the stage has the hook.
//! @return false where the iteration must begin again.
template <class Stage>
bool run_hook(Stage& stage, arena const& memory, item const& step, context const& where) {
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
  if constexpr (can_step_early<Stage>) {
    if (step.about == subject::early_update)
      step_early(stage, memory, where);
    if (step.about == subject::validation)
      return validate_step(stage, memory, where);
  }
  return true;
}

//! What a pass is handed: its context, with all that it reads and writes.
class handed {
public:
  handed(arena const& memory, item const& step, void* stream)
      : where_(memory.context_of(step, stream)) {
    auto const inputs = memory.work.further_inputs(step);
    auto const outputs = memory.work.further_outputs(step);
    input* const in = room_for(inputs.size() + 1, few_inputs_, many_inputs_);
    output* const out = room_for(outputs.size() + 1, few_outputs_, many_outputs_);
    in[0] = memory.input_of(step);
    out[0] = memory.output_of(step);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      buffer const read = memory.at(inputs[i].used, inputs[i].bytes);
      in[i + 1] = {read.slot, read.data, read.bytes};
    }
    for (std::size_t i = 0; i < outputs.size(); ++i)
      out[i + 1] = memory.at(outputs[i].used, outputs[i].bytes);
    in_ = in;
    out_ = out;
    where_.inputs = {in, step.in.index == nothing ? 0 : inputs.size() + 1};
    where_.outputs = {out, step.out.index == nothing ? 0 : outputs.size() + 1};
  }
  handed(handed const&) = delete;
  handed& operator=(handed const&) = delete;

  [[nodiscard]] context const& where() const noexcept { return where_; }
  [[nodiscard]] input const& in() const noexcept { return *in_; }
  [[nodiscard]] output const& out() const noexcept { return *out_; }

private:
  static constexpr std::size_t few = 4; // more neighbours than a stage has as a rule

  template <class Buffer>
  static Buffer* room_for(std::size_t count, Buffer* here, std::vector<Buffer>& elsewhere) {
    if (count <= few)
      return here;
    elsewhere.resize(count);
    return elsewhere.data();
  }

  context where_;
  input few_inputs_[few];
  output few_outputs_[few];
  std::vector<input> many_inputs_;
  std::vector<output> many_outputs_;
  input const* in_ = nullptr;
  output const* out_ = nullptr;
};

//! A half of a composite pass, and what it is.
struct half_of_pair {
  item const& step;
  composite_half given;
};

template <class Stage>
void announce(Stage& stage, half_of_pair const& half) {
  if constexpr (can_announce_gradients<Stage>)
    if (half.step.completes_stage)
      stage.gradients_ready(half.given.where);
}

//! Both halves of a composite pass, where the stages can. @param whole a forward pass and a
//! backward pass with both gradients, in this order
template <class Stage, class Other>
bool run_halves(
  Stage& stage, Other& other, bool whole, half_of_pair const& first, half_of_pair const& second) {
  bool ran = false;
  if constexpr (can_overlap<Stage, Other>)
    if (whole) {
      stage.forward_backward(first.given, second.given, other);
      ran = true;
    }
  if constexpr (can_braid<Stage, Other>)
    if (!ran) {
      stage.braid(first.step.work.kind, first.given, second.step.work.kind, second.given, other);
      ran = true;
    }
  if (ran) {
    announce(stage, first);
    announce(other, second);
  }
  return ran;
}

} // namespace detail

//! @brief Runs the pass of an item on its stage, and tells the stage when its weight gradients are
//! complete; or runs what follows then.
//!
//! What every executor does for an item that runs.
//!
//! @param memory the device's slots. @param stream the CUDA stream to enqueue on, if any.
//! @return false where the iteration must begin again: the optimizer's step of the one before was
//! wrong, and is right now.
//! @throws what the stage throws.
template <class Stages>
bool run_item(Stages& stages, arena const& memory, item const& step, void* stream = nullptr) {
  if (is_copy(*memory.work.declared, step)) {
    memory.copy(step);
    return true;
  }
  detail::handed const given(memory, step, stream);
  context const& where = given.where();
  bool goes_on = true;
  (void)visit_stage(stages, step.work.stage, [&]<class Stage>(Stage& stage) {
    if (step.about != subject::pass) {
      goes_on = detail::run_hook(stage, memory, step, where);
      return;
    }
    run_pass(stage,
             (*memory.work.declared)[step.work.kind].calls,
             step.work.kind,
             where,
             given.in(),
             given.out());
    if constexpr (can_announce_gradients<Stage>)
      if (step.completes_stage)
        stage.gradients_ready(where);
  });
  return goes_on;
}

//! @brief Runs a composite pass, where its stages can do its halves at once, and tells stages when
//! their weight gradients are complete.
//!
//! @param pair the two items, in either order. @param stream as for run_item.
//! @return false where they cannot: nothing has run then.
//! @throws what the stage throws.
template <class Stages>
bool run_composite(Stages& stages,
                   arena const& memory,
                   std::span<item const> pair,
                   void* stream = nullptr) {
  auto const call = [&](item const& step) {
    return (*memory.work.declared)[step.work.kind].calls;
  };
  if (pair.size() != 2)
    return false;
  bool const forward_behind =
    call(pair[0]) != stage_call::forward && call(pair[1]) == stage_call::forward;
  item const& first = pair[forward_behind ? 1 : 0];
  item const& second = pair[forward_behind ? 0 : 1];
  bool const whole = call(first) == stage_call::forward && call(second) == stage_call::backward;
  detail::handed const given_first(memory, first, stream);
  detail::handed const given_second(memory, second, stream);
  auto const half_of = [](item const& step, detail::handed const& given) -> detail::half_of_pair {
    return {step, {given.where(), given.in(), given.out()}};
  };
  bool ran = false;
  (void)visit_stage(stages, first.work.stage, [&]<class Stage>(Stage& stage) {
    (void)visit_stage(stages, second.work.stage, [&]<class Other>(Other& other) {
      ran = detail::run_halves(
        stage, other, whole, half_of(first, given_first), half_of(second, given_second));
    });
  });
  return ran;
}

} // namespace pipelining::inline v0_2
