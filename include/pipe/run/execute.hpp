// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The loop that every executor runs, and one item of it on the stages of the user. Header
//! for pipelining::detail::execute and pipelining::detail::run_item.

#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/run/arena.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/hooks.hpp>
#include <pipe/run/stage.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

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
  if (group.size() > 1 && group.front().what == operation::run && device.run_together(first, group))
    return end;
  if (group.front().what == operation::run)
    for (int i = first; i < end; ++i)
      device.run(i, steps[static_cast<std::size_t>(i)]);
  else
    device.post(first, group);
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
bool advance(plan const& work, int device_number, int& next, Device& device, Ready ready) {
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

//! Runs the program of one device, once, without a pause.
//! @throws what the device throws.
template <execution_device Device>
void execute(plan const& work, int device_number, Device& device) {
  int next = 0;
  (void)advance(work, device_number, next, device, [](auto&, int) { return true; });
}

//! The rows that a device has when it steps early: rows of the stages of the devices up to it. The
//! others are zeros. They can be told from all rows later on, so they need not be kept.
//! @param memory of a device that has these rows. @param copy holds them
[[nodiscard]] inline totals early_totals(arena const& memory, std::vector<std::byte>& copy) {
  totals rows = memory.readable_totals();
  copy.resize(static_cast<std::size_t>(rows.stride * rows.rows));
  for (int stage = 0; stage < rows.rows; ++stage)
    if (device_of(memory.work, stage) <= memory.device)
      std::copy_n(rows.data + stage * rows.stride, rows.stride, copy.data() + stage * rows.stride);
  rows.data = copy.data();
  return rows;
}

//! Steps where the rows so far say that the step is right, unless later ones tell otherwise.
//! The host decides; what a GPU steps with lies in its memory, where missing rows are zeros.
//! @throws what the stage throws.
template <can_step_early Stage>
void step_early(Stage& stage, arena const& memory, context const& where) {
  std::vector<std::byte> copy;
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
  std::vector<std::byte> copy;
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

//! The arguments of a pass: its context, with all inputs and outputs.
class handed {
public:
  handed(arena const& memory, item const& step, void* stream)
      : where_(memory.bare_context_of(step, stream)) {
    std::span<use const> const uses = memory.work.uses_of(step);
    if (uses.size() > few)
      make_room(uses);
    input* in = in_;
    output* out = out_;
    for (use const& one : uses) {
      if (one.at == slot_place::outputs) {
        *out++ = memory.at(one);
      } else if (one.at == slot_place::inputs) {
        buffer const from = memory.at(one);
        *in++ = {from.slot, from.data, from.bytes};
      } else {
        memory.keep(one, where_);
      }
    }
    where_.inputs = {in_, in};
    where_.outputs = {out_, out};
  }
  handed(handed const&) = delete;
  handed& operator=(handed const&) = delete;

  [[nodiscard]] context const& where() const noexcept { return where_; }
  //! The first one; without a slot where there is none.
  [[nodiscard]] input const& in() const noexcept { return *in_; }
  //! The same of what it fills.
  [[nodiscard]] output const& out() const noexcept { return *out_; }

private:
  static constexpr std::size_t few = 4; // more than a pass has as a rule

  void make_room(std::span<use const> uses) {
    auto const count = [&](slot_place at) {
      return static_cast<std::size_t>(std::ranges::count(uses, at, &use::at));
    };
    if (std::size_t const read = count(slot_place::inputs); read > few) {
      many_inputs_ = std::make_unique<input[]>(read);
      in_ = many_inputs_.get();
    }
    if (std::size_t const filled = count(slot_place::outputs); filled > few) {
      many_outputs_ = std::make_unique<output[]>(filled);
      out_ = many_outputs_.get();
    }
  }

  context where_;
  input few_inputs_[few];
  output few_outputs_[few];
  input* in_ = few_inputs_;
  output* out_ = few_outputs_;
  std::unique_ptr<input[]> many_inputs_{};
  std::unique_ptr<output[]> many_outputs_{};
};

//! Tells a stage of its gradients, where a pass of it has completed them.
template <class Stage>
void announce(Stage& stage, item const& step, context const& where) {
  if constexpr (can_announce_gradients<Stage>)
    if (step.completes_stage)
      stage.gradients_ready(where);
}

//! A composite pass, its forward pass first if it has one.
struct ordered_pair {
  item const& first;
  item const& second;
  bool whole; // a forward pass and a backward pass with both gradients
};
//! Two items that run together, in either order, as such.
[[nodiscard]] inline ordered_pair in_order(plan const& work, std::span<item const> pair) {
  auto const calls = [&](std::size_t at) { return work.over.declared[pair[at].work.kind].calls; };
  std::size_t const first =
    calls(0) != stage_call::forward && calls(1) == stage_call::forward ? 1 : 0;
  return {pair[first],
          pair[1 - first],
          calls(first) == stage_call::forward && calls(1 - first) == stage_call::backward};
}

//! Runs both halves of a composite pass. @pre the stages can.
template <class Stage, class Other>
void run_halves(Stage& stage,
                Other& other,
                ordered_pair const& halves,
                composite_half const& first,
                composite_half const& second) {
  if constexpr (can_overlap<Stage, Other>)
    if (halves.whole)
      return stage.forward_backward(first, second, other);
  if constexpr (can_braid<Stage, Other>)
    stage.braid(halves.first.work.kind, first, halves.second.work.kind, second, other);
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
    memory.copy(step);
    return true;
  }
  handed const given(memory, step, stream);
  context const& where = given.where();
  bool goes_on = true;
  (void)visit_stage(stages, step.work.stage, [&]<class Stage>(Stage& stage) {
    if (step.about != subject::pass) {
      goes_on = run_hook(stage, memory, step, where);
      return;
    }
    run_pass(stage,
             memory.work.over.declared[step.work.kind].calls,
             step.work.kind,
             where,
             given.in(),
             given.out());
    announce(stage, step, where);
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
      begun = stage.begin_pass(step.work.kind, given.where(), given.in(), given.out());
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
      handed const given(memory, step, nullptr);
      context where = given.where();
      where.abandoned = abandoned;
      stage.finish_pass(step.work.kind, where, given.in(), given.out());
      if (!abandoned)
        announce(stage, step, where);
    }
  });
}

//! True when the stages of a composite pass can do its halves at once.
//! @param pair the two items, in either order.
template <class Stages>
[[nodiscard]] bool runs_as_one(Stages& stages, plan const& work, std::span<item const> pair) {
  if (pair.size() != 2)
    return false;
  ordered_pair const halves = in_order(work, pair);
  bool can = false;
  (void)visit_stage(stages, halves.first.work.stage, [&]<class Stage>(Stage&) {
    (void)visit_stage(stages, halves.second.work.stage, [&]<class Other>(Other&) {
      can = (can_overlap<Stage, Other> && halves.whole) || can_braid<Stage, Other>;
    });
  });
  return can;
}

//! The CUDA streams of the halves of a composite pass; null where they run on the calling
//! thread.
struct pair_streams {
  void* first = nullptr;  //!< of the forward pass, or of the first half where there is none
  void* second = nullptr; //!< of the other half
};

//! Runs a composite pass, and tells stages when their weight gradients are complete.
//!
//! @param pair the two items, in either order.
//! @param join called when both halves have run, or are enqueued; what follows on the first stream
//! must then follow both.
//! @pre runs_as_one.
//! @throws what the stage throws.
template <class Stages, class Join>
void run_composite(Stages& stages,
                   arena const& memory,
                   std::span<item const> pair,
                   pair_streams const& on,
                   Join join) {
  ordered_pair const halves = in_order(memory.work, pair);
  handed const first(memory, halves.first, on.first);
  handed const second(memory, halves.second, on.second);
  (void)visit_stage(stages, halves.first.work.stage, [&]<class Stage>(Stage& stage) {
    (void)visit_stage(stages, halves.second.work.stage, [&]<class Other>(Other& other) {
      run_halves(stage,
                 other,
                 halves,
                 {first.where(), first.in(), first.out()},
                 {second.where(), second.in(), second.out()});
      join();
      announce(stage, halves.first, first.where());
      context after_both = second.where();
      after_both.stream = on.first;
      announce(other, halves.second, after_both);
    });
  });
}

} // namespace pipelining::inline v0_3::detail
