// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The loop that every executor runs, and one item of it on the stages of the user. Header
//! for pipelining::detail::execute and pipelining::detail::run_item.

#include <pipe/flow/array_of.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/stage.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>

namespace pipelining::inline v0_3::detail {

//! The calls that the loop makes to a device and its transport.
//!
//! `wait_for(index, item)` orders an item after an earlier one of this device; it may block or not.
//! `run(index, item)` runs or enqueues a pass. `run_together(first, items)` runs the halves of a
//! composite pass as one, or says false where their stages cannot: the loop runs them in turn then.
//! `post(first, items)` posts the messages of one group together. `begins_again()` tells whether a
//! validation has found the optimizer's step of the iteration before wrong. `finish()` comes after
//! the last item.
template <class Device>
concept execution_device =
  requires(Device& device, int index, item const& step, std::span<item const> group) {
  device.wait_for(index, step);
  device.run(index, step);
  { device.run_together(index, group) } -> std::same_as<bool>;
  device.post(index, group);
  { device.begins_again() } -> std::same_as<bool>;
  device.finish();
};

//! Runs one item of a device's program, or one whole group of messages. Decides nothing:
//! order, groups, slots and waits are the plan's. Inlined: the loop around it costs less then.
//!
//! @param steps the program. @param first the item, or the first item of the group.
//! @return the item after it.
//! @throws what the device throws.
//! @complexity O(1) per item, no allocation.
template <execution_device Device>
[[gnu::always_inline]] inline int
execute_item(plan const& work, std::span<item const> steps, int first, Device& device) {
  int const end = end_of_group(steps, first);
  auto const group =
    steps.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
  for (item const& step : group)
    for (int const wait : work.waits_of(step))
      device.wait_for(wait, step);
  if (group.front().what != operation::run)
    device.post(first, group);
  else if (group.size() == 1 || !device.run_together(first, group))
    for (int i = first; i < end; ++i)
      device.run(i, steps[static_cast<std::size_t>(i)]);
  return end;
}

//! Receives what other devices have sent before they knew that the iteration begins again.
//! @param next the item from which on there may be such messages; the end of the program then.
template <execution_device Device>
[[gnu::noinline]] void
receive_early(plan const& work, int device_number, int& next, Device& device) {
  auto const steps = work.program_of(device_number);
  while (next < static_cast<int>(steps.size())) {
    int const end = end_of_group(steps, next);
    auto const from = static_cast<std::size_t>(next);
    if (arrives_early(work, device_number, steps[from]))
      device.post(next, steps.subspan(from, static_cast<std::size_t>(end) - from));
    next = end;
  }
}

//! Goes on with the program of one device; where the iteration must begin again, up to its last
//! validation, and receives what other devices have sent by then.
//!
//! @param next the item to go on with, 0 at first; what comes next then.
//! @param ready `ready(device, next)`, whether the item or group at `next`, or the end of the
//! program, has all that it waits for.
//! @return whether the program has ended; false where something is not ready.
//! @throws what the device throws, and `ready`.
template <execution_device Device, class Ready>
[[gnu::always_inline]] inline bool
advance(plan const& work, int device_number, int& next, Device& device, Ready ready) {
  auto const steps = work.program_of(device_number);
  int const count = static_cast<int>(steps.size());
  int const validated = behind_validation(work, device_number);
  for (;;) {
    if (!ready(device, next))
      return false;
    if (next == count)
      break;
    next = execute_item(work, steps, next, device);
    if (next == validated && device.begins_again())
      receive_early(work, device_number, next, device);
  }
  device.finish();
  return true;
}

//! The rows that a device has when it steps early: rows of the stages of the devices up to it. The
//! others are zeros. They can be told from all rows later on, so they need not be kept.
//! @param memory of a device that has these rows. @param copy holds them
[[nodiscard]] inline totals early_totals(arena const& memory, owned<std::byte>& copy) {
  totals rows = memory.readable_totals();
  copy.get(rows.stride * rows.rows, std::byte{});
  for (int stage = 0; stage < rows.rows; ++stage)
    if (device_of(memory.work, stage) <= memory.device)
      std::copy_n(rows.data + stage * rows.stride, rows.stride, copy.data + stage * rows.stride);
  rows.data = copy.data;
  return rows;
}

//! Steps where the rows so far say that the step is right, unless later ones tell otherwise.
//! The host decides; what a GPU steps with lies in its memory, where missing rows are zeros.
//! @throws what the stage throws.
template <can_step_early Stage>
void step_early(Stage& stage, arena const& memory, context const& where) {
  owned<std::byte> copy;
  totals const known = early_totals(memory, copy);
  if (stage.accepts(where, known))
    stage.optimizer_step(where, memory.host_rows == nullptr ? known : memory.all_totals());
}

//! Looks at the step with all rows, and makes it right.
//! @return false where it was not: forward passes that have run since must run again.
//! @throws what the stage throws.
template <can_step_early Stage>
[[nodiscard]] bool validate_step(Stage& stage, arena const& memory, context const& where) {
  if (stage.accepts(where, memory.readable_totals()))
    return true;
  owned<std::byte> copy;
  stage.roll_back(where, stage.accepts(where, early_totals(memory, copy)));
  stage.optimizer_step(where, memory.all_totals());
  if (memory.work.validation == step_validation::both) // the last plan begins nothing
    stage.begin_iteration(where);
  return false;
}

//! Runs a hook, once gradients are complete. Runners have checked that the stage has the hook.
//! @return false where the iteration must begin again.
template <class Stage>
bool run_hook(Stage& stage, arena const& memory, item const& step, context const& where) {
  if constexpr (can_add_copies<Stage>) {
    if (step.about == subject::copied_gradient)
      stage.copied_gradient(where, memory.output_of(step));
    if (step.about == subject::add_copies)
      stage.add_copies(where, memory.copies_of(step));
  }
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

//! Room for a few, more than a pass has as a rule, or for as many as there are.
template <class T>
struct few_or_many {
  static constexpr std::size_t few = 4;

  T own[few];
  T* first = own;
  owned<T> many{};

  //! Makes room for what a pass is handed in a place. @pre nothing is in it.
  [[gnu::noinline]] void make_room(std::span<use const> uses, slot_place at) {
    std::size_t count = 0;
    for (use const& one : uses)
      count += one.at == at ? 1 : 0;
    if (count > few)
      first = many.get(count);
  }
};

//! The arguments of a pass: its context, with all inputs and outputs.
struct handed {
  context where;
  few_or_many<input> inputs;
  few_or_many<output> outputs;

  handed(arena const& memory, item const& step, void* stream)
      : where{.device = memory.device,
              .stage = step.work.stage,
              .microbatch = step.work.microbatch,
              .chunk = step.work.chunk,
              .stream = stream,
              .recomputing = (*memory.over.declared)[step.work.kind].calls == stage_call::recompute,
              .extents = memory.over.extents,
              .chunks = memory.over.chunks_of(step.work.microbatch),
              .evaluating = memory.work.evaluates,
              .edges = memory.over.edges} {
    std::span<use const> const uses = memory.work.uses_of(step);
    if (uses.size() > few_or_many<input>::few) {
      inputs.make_room(uses, slot_place::inputs);
      outputs.make_room(uses, slot_place::outputs);
    }
    input* next_in = inputs.first;
    output* next_out = outputs.first;
    for (use const& one : uses)
      if (one.at == slot_place::outputs)
        *next_out++ = memory.at(one);
      else if (one.at == slot_place::inputs)
        *next_in++ = to_read(memory.at(one));
      else if (is_kept(one.at))
        where.*member_of(one.at).of = memory.whole(one);
    where.inputs = {inputs.first, next_in};
    where.outputs = {outputs.first, next_out};
  }
  handed(handed const&) = delete;
  handed& operator=(handed const&) = delete;

  //! The first one; without a slot where there is none.
  [[nodiscard]] input const& in() const noexcept { return *inputs.first; }
  //! The same of what it fills.
  [[nodiscard]] output const& out() const noexcept { return *outputs.first; }
};

//! Runs one pass on a stage: calls the member that it asks for. `copy`, and weights of a stage that
//! has none to train, ask for none. Runners have checked that the stage has the member. @throws
//! what the stage throws.
template <class Stage>
void run_pass(Stage& stage, stage_call call, pass_kind kind, handed const& given) {
  using enum stage_call;
  context const& where = given.where;
  input in = given.in();
  output out = given.out();
  constexpr bool trains = !is_frozen<Stage>;
  if constexpr (can_forward<Stage>)
    if (call == forward || (call == recompute && !can_recompute<Stage>))
      return (void)stage.forward(where, in, out);
  if constexpr (can_recompute<Stage>)
    if (call == recompute)
      return (void)stage.recompute(where, in);
  if constexpr (can_backward<Stage> && trains)
    if (call == backward)
      return (void)stage.backward(where, in, out);
  if constexpr (can_split_backward<Stage> || !trains)
    if (call == backward_input || (call == backward && !trains))
      return (void)stage.backward_input(where, in, out);
  if constexpr (can_split_backward<Stage> && trains)
    if (call == backward_weight)
      return (void)stage.backward_weight(where);
  if constexpr (can_gather_weights<Stage>) {
    if (call == gather_weights)
      return (void)stage.gather_weights(where, out);
    if (call == use_weights)
      return (void)stage.use_weights(where, in);
  }
  if constexpr (can_scatter_gradients<Stage> && trains) {
    if (call == collect_gradients)
      return (void)stage.collect_gradients(where, out);
    if (call == scatter_gradients)
      return (void)stage.scatter_gradients(where, in);
  }
  if constexpr (can_perform<Stage>)
    if (call == perform)
      return (void)stage.perform(kind, where, in, out);
}

//! Tells a stage of its gradients, where a pass of it has completed them.
template <class Stage>
void announce(Stage& stage, item const& step, context const& where) {
  if constexpr (can_announce_gradients<Stage>)
    if (step.completes_stage)
      stage.gradients_ready(where);
}

//! Runs the pass of an item on its stage, and tells the stage when its weight gradients are
//! complete; or runs the hook that follows then.
//!
//! Every executor calls it for an item that runs.
//!
//! @param memory the device's slots. @param stream the CUDA stream to enqueue on, if any.
//! @return false where the iteration must begin again: the optimizer's step of the one before was
//! wrong, and is right now.
//! @throws what the stage throws.
template <class Stages>
bool run_item(Stages& stages, arena const& memory, item const& step, void* stream = nullptr) {
  if (is_copy(memory.work.over.declared, step)) {
    output const to = memory.output_of(step);
    std::copy_n(memory.input_of(step).data, to.bytes, to.data);
    return true;
  }
  handed const given(memory, step, stream);
  bool goes_on = true;
  (void)visit_stage(stages, step.work.stage, [&]<class Stage>(Stage& stage) {
    if (step.about != subject::pass) {
      goes_on = run_hook(stage, memory, step, given.where);
      return;
    }
    run_pass(stage, memory.work.over.declared[step.work.kind].calls, step.work.kind, given);
    announce(stage, step, given.where);
  });
  return goes_on;
}

//! Begins the pass of an item that runs next to compute, where its stage does so.
//! @return false where it does not: `run_item` runs the pass then. @throws what the stage throws.
template <class Stages>
bool begin_item(Stages& stages, arena const& memory, item const& step) {
  bool begun = false;
  (void)visit_stage(stages, step.work.stage, [&]<class Stage>(Stage& stage) {
    if constexpr (can_begin<Stage>) {
      handed const given(memory, step, nullptr);
      begun = stage.begin_pass(step.work.kind, given.where, given.in(), given.out());
    }
  });
  return begun;
}

//! Finishes a pass that `begin_item` has begun, and tells the stage when its weight gradients are
//! complete. @param abandoned the step has failed. @throws what the stage throws.
template <class Stages>
void finish_item(Stages& stages, arena const& memory, item const& step, bool abandoned = false) {
  (void)visit_stage(stages, step.work.stage, [&]<class Stage>(Stage& stage) {
    if constexpr (can_begin<Stage>) {
      handed given(memory, step, nullptr);
      given.where.abandoned = abandoned;
      stage.finish_pass(step.work.kind, given.where, given.in(), given.out());
      if (!abandoned)
        announce(stage, step, given.where);
    }
  });
}

//! Calls `visit(composite)` where the stages of a composite pass can do its halves at once.
//!
//! `composite(memory, stream, other_stream, join)` runs it, and tells stages when their weight
//! gradients are complete; it throws what they throw. The first CUDA stream is that of the forward
//! pass, if there is one; both are null where the halves run on the calling thread. `join()` is
//! called when both have run, or are enqueued: what follows on the first stream must follow both.
//!
//! @param pair the two items, in either order.
//! @return false where they cannot. @throws what `visit` throws.
template <class Stages, class Visit>
bool visit_composite(Stages& stages, plan const& work, std::span<item const> pair, Visit visit) {
  if (pair.size() != 2)
    return false;
  using enum stage_call;
  auto const calls = [&](std::size_t at) { return work.over.declared[pair[at].work.kind].calls; };
  std::size_t const at = calls(0) != forward && calls(1) == forward ? 1 : 0;
  item const& one = pair[at];
  item const& two = pair[1 - at];
  bool const whole = calls(at) == forward && calls(1 - at) == backward;
  bool can = false;
  auto const visit_both = [&]<class Stage, class Other>(Stage& stage, Other& other) {
    constexpr bool overlaps = can_overlap<Stage, Other>;
    constexpr bool braids = can_braid<Stage, Other>;
    can = (overlaps && whole) || braids;
    if constexpr (overlaps || braids)
      if (can)
        visit([&](arena const& memory, void* stream, void* other_stream, auto join) {
          handed const given(memory, one, stream);
          handed const given_other(memory, two, other_stream);
          composite_half const first{given.where, given.in(), given.out()};
          composite_half second{given_other.where, given_other.in(), given_other.out()};
          if constexpr (overlaps)
            if (whole)
              stage.forward_backward(first, second, other);
          if constexpr (braids)
            if (!overlaps || !whole)
              stage.braid(one.work.kind, first, two.work.kind, second, other);
          join();
          announce(stage, one, first.where);
          second.where.stream = stream;
          announce(other, two, second.where);
        });
  };
  (void)visit_stage(stages, one.work.stage, [&](auto& stage) {
    (void)visit_stage(stages, two.work.stage, [&](auto& other) { visit_both(stage, other); });
  });
  return can;
}

} // namespace pipelining::inline v0_3::detail
