// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One pass of a plan on the user's stages. Header for pipelining::run_item and
//! pipelining::run_composite.

#include <pipe/plan/item.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/stage.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace pipelining::inline v0_2 {

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

//! Both halves of a composite pass, where the stages can.
template <class Stage, class Other>
bool run_halves(Stage& stage,
                Other& other,
                composite_half const& forward,
                composite_half const& backward,
                bool completes_other) {
  if constexpr (can_overlap<Stage, Other>) {
    stage.forward_backward(forward, backward, other);
    if constexpr (can_announce_gradients<Other>)
      if (completes_other)
        other.gradients_ready(backward.where);
  }
  return can_overlap<Stage, Other>;
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
  detail::handed const given(memory, step, stream);
  context const& where = given.where();
  (void)visit_stage(stages, step.work.stage, [&]<class Stage>(Stage& stage) {
    if (step.about != subject::pass)
      return detail::run_hook(stage, memory, step, where);
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
}

//! @brief Runs a composite pass, where its stages can do its halves at once, and tells a stage when
//! its weight gradients are complete.
//!
//! @param pair the two items, in either order. @param stream as for run_item.
//! @return false where they cannot, or where these are not a forward pass and a backward pass with
//! both gradients: nothing has run then.
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
  bool const in_order = call(pair[0]) == stage_call::forward;
  item const& forward = pair[in_order ? 0 : 1];
  item const& backward = pair[in_order ? 1 : 0];
  if (call(forward) != stage_call::forward || call(backward) != stage_call::backward)
    return false;
  detail::handed const given_forward(memory, forward, stream);
  detail::handed const given_backward(memory, backward, stream);
  auto const half_of = [](detail::handed const& given) -> composite_half {
    return {given.where(), given.in(), given.out()};
  };
  bool ran = false;
  (void)visit_stage(stages, forward.work.stage, [&]<class Stage>(Stage& stage) {
    (void)visit_stage(stages, backward.work.stage, [&]<class Other>(Other& other) {
      ran = detail::run_halves(
        stage, other, half_of(given_forward), half_of(given_backward), backward.completes_stage);
    });
  });
  return ran;
}

} // namespace pipelining::inline v0_2
