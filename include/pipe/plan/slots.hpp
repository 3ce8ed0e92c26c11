// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Slots for every buffer of a device, by interval colouring. Header for
//! pipelining::assign_slots.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/message.hpp>
#include <pipe/plan/program.hpp>

namespace pipelining::inline v0_1 {

//! @brief The slots of one class: those free again, in the order in which they became free.
//!
//! The slot that has been free the longest is taken first, so that what still leaves it (a message)
//! is likely gone.
struct slot_pool {
  int* freed = nullptr; //!< [items of the device], slots in the order of their release
  int* released =
    nullptr; //!< [items of the device], by slot: the item that released it last, or `nothing`
  int first = 0;
  int last = 0;
  int count = 0; //!< slots that exist

  [[nodiscard]] constexpr int take() noexcept {
    if (first == last) {
      released[count] = nothing;
      ++count;
      return count - 1;
    }
    ++first;
    return freed[first - 1];
  }
  constexpr void release(int index, int item_index) noexcept {
    freed[last] = index;
    released[index] = item_index;
    ++last;
  }
};

//! @brief What `assign_slots` works on: the pools of one device and, for all devices, which slot
//! holds what.
struct slot_state {
  shape extents;
  slot_pool pools[slot_classes];
  int* held[slot_classes]; //!< by class: [pass_indices] the slot of a message or unit, [S M] for
                           //!< the sequence classes
  int* sent;               //!< [items of the device], sends whose slot is not free yet
};

namespace detail {

[[nodiscard]] constexpr int& held(slot_state& state, slot_class of, int key) noexcept {
  return state.held[static_cast<int>(of)][key];
}

[[nodiscard]] constexpr slot_pool& pool(slot_state& state, slot_class of) noexcept {
  return state.pools[static_cast<int>(of)];
}

//! Takes a slot for `key`, and notes the item after whose completion it may be written.
constexpr int
take(slot_state& state, slot_class of, int key, int* needs, int& need_count) noexcept {
  int const index = pool(state, of).take();
  held(state, of, key) = index;
  int const released = pool(state, of).released[index];
  if (released != nothing) {
    needs[need_count] = released;
    ++need_count;
  }
  return index;
}

constexpr int release(slot_state& state, slot_class of, int key, int item_index) noexcept {
  int const index = held(state, of, key);
  pool(state, of).release(index, item_index);
  return index;
}

//! The pass whose message or hand-off a pass reads, as a number, or `nothing`.
[[nodiscard]] constexpr int source_index(shape const& extents, pass const& reader) noexcept {
  int const per_stage = extents.microbatches * extents.chunks;
  if (reader.kind == pass_kind::forward)
    return reader.stage == 0 ? nothing : pass_index(extents, reader) - per_stage;
  if (reader.kind == pass_kind::backward_weight || reader.stage + 1 == stages(extents))
    return nothing;
  return pass_index(extents, reader) + per_stage;
}

//! The slots of one pass: takes what it makes, reads what it needs, releases what it is the last to
//! read.
constexpr void
run_slots(slot_state& state, item& step, int index, int* needs, int& need_count) noexcept {
  shape const& extents = state.extents;
  pass const& work = step.work;
  bool const forward = work.kind == pass_kind::forward;
  pass unit = work;
  unit.kind = pass_kind::forward;
  int const key = pass_index(extents, unit);
  int const sequence_key = work.stage * extents.microbatches + work.microbatch;
  // Taking comes before releasing: a pass never writes over what it reads.
  if (forward) {
    step.activation = take(state, slot_class::activation, key, needs, need_count);
    if (extents.chunks > 1 && work.chunk == 0)
      (void)take(state, slot_class::sequence, sequence_key, needs, need_count);
  } else {
    step.activation = held(state, slot_class::activation, key);
  }
  bool const state_in_use = extents.chunks > 1 && work.kind != pass_kind::backward_weight;
  if (state_in_use)
    step.state = held(state, slot_class::sequence, sequence_key);
  if (state_in_use && !forward) {
    if (work.chunk == extents.chunks - 1)
      (void)take(state, slot_class::sequence_gradient, sequence_key, needs, need_count);
    step.state_gradient = held(state, slot_class::sequence_gradient, sequence_key);
  }
  if (work.kind == pass_kind::backward_input)
    step.weight_input = take(state, slot_class::weight_input, key, needs, need_count);
  if (reader_stage(extents, work) != nothing) {
    step.out.of = forward ? slot_class::output : slot_class::input_gradient;
    step.out.index = take(state, step.out.of, pass_index(extents, work), needs, need_count);
  }
  int const source = source_index(extents, work);
  if (source != nothing) {
    bool const received = receiver(extents, pass_at(extents, source)) != nothing;
    step.in.of = forward ? (received ? slot_class::received_input : slot_class::output)
                         : (received ? slot_class::received_gradient : slot_class::input_gradient);
    step.in.index = release(state, step.in.of, source, index);
  }
  if (work.kind == pass_kind::backward_weight)
    step.weight_input = release(state, slot_class::weight_input, key, index);
  if (frees_activation(work.kind))
    (void)release(state, slot_class::activation, key, index);
  if (state_in_use && !forward && work.chunk == 0) {
    (void)release(state, slot_class::sequence, sequence_key, index);
    (void)release(state, slot_class::sequence_gradient, sequence_key, index);
  }
}

} // namespace detail

//! @brief The most items that an item needs: every class that a pass may take a slot of, its
//! message and its pass.
inline constexpr int most_needs = 8;

//! @brief Gives every item of a device its slots, and lists for every item the items whose slots or
//! results it takes
//!        over.
//!
//! Greedy interval colouring in program order, which needs exactly as many slots as are in use at
//! once. A slot that is sent stays taken through the next pass of its device, so that the next pass
//! does not wait for the message.
//!
//! @param needs [items][most_needs] items of this device that must be complete first. @param
//! need_counts [items].
//! @param made scratch, [pass_indices]: the item that runs a pass or receives its message.
//! @complexity O(n) for n items.
//! @source Interval graphs are perfect: greedy colouring by start meets the peak overlap
//! (folklore).
constexpr void
assign_slots(slot_state& state, program& work, int* needs, int* need_counts, int* made) noexcept {
  int first_sent = 0;
  int sent_count = 0;
  int sent_before_run = 0; // sends that the pass now in the program has let overlap
  for (int i = 0; i < work.count; ++i) {
    item& step = work.items[i];
    int* const need = needs + i * most_needs;
    int& count = need_counts[i];
    count = 0;
    int const maker = pass_index(state.extents, step.work);
    bool const gradient = step.work.kind != pass_kind::forward;
    if (step.what == operation::run) {
      for (; first_sent < sent_before_run; ++first_sent) {
        item const& sent = work.items[state.sent[first_sent]];
        detail::pool(state, sent.in.of).release(sent.in.index, state.sent[first_sent]);
      }
      detail::run_slots(state, step, i, need, count);
      int const source = detail::source_index(state.extents, step.work);
      if (source != nothing) {
        need[count] = made[source];
        ++count;
      }
      made[maker] = i;
      sent_before_run = sent_count;
    } else if (step.what == operation::send) {
      step.in.of = gradient ? slot_class::input_gradient : slot_class::output;
      step.in.index = detail::held(state, step.in.of, maker);
      need[count] = made[maker];
      ++count;
      state.sent[sent_count] = i;
      ++sent_count;
    } else {
      step.out.of = gradient ? slot_class::received_gradient : slot_class::received_input;
      step.out.index = detail::take(state, step.out.of, maker, need, count);
      made[maker] = i;
    }
  }
}

} // namespace pipelining::inline v0_1
