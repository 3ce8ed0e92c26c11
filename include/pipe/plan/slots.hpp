// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Slots for every buffer of a device, by interval colouring. Header for
//! pipelining::assign_slots.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/message.hpp>
#include <pipe/plan/program.hpp>

#include <cstddef>

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
  int count = 0;      //!< slots that exist
  int peak = nothing; //!< the item that was the first to need that many

  [[nodiscard]] constexpr int take(int item_index) noexcept {
    if (first == last) {
      released[count] = nothing;
      peak = item_index;
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

//! @brief Who used the slots of the classes that no pass uses: tied gradients, then totals.
struct slot_uses {
  int* writer = nullptr; //!< [2 + S] items of the device, or `nothing`
  int* reader = nullptr; //!< [2 + S]
};

//! @brief What `assign_slots` works on: the pools of one device and, for all devices, which slot
//! holds what.
struct slot_state {
  shape extents;
  bool evaluates = false; //!< no backward passes: nothing is kept for them
  slot_pool pools[slot_classes];
  int* held[pass_slot_classes]; //!< by class: [pass_indices] the slot of a message or unit, [S M]
                                //!< for the sequence classes
  int* sent;          //!< [items of the device], sends whose slot is not free yet
  slot_uses others{}; //!< of slots that no pass uses; null where the plan has none
};

namespace detail {

[[nodiscard]] constexpr int& held(slot_state& state, slot_class of, int key) noexcept {
  return state.held[static_cast<int>(of)][key];
}

[[nodiscard]] constexpr slot_pool& pool(slot_state& state, slot_class of) noexcept {
  return state.pools[static_cast<int>(of)];
}

//! An item that takes slots, and the items that must be complete before it may write to them.
struct slot_taker {
  int item_index;
  int* needs; // [most_needs]
  int& need_count;
};

//! Takes a slot for `key`, and notes the item after whose completion it may be written.
constexpr int take(slot_state& state, slot_class of, int key, slot_taker const& by) noexcept {
  int const index = pool(state, of).take(by.item_index);
  held(state, of, key) = index;
  int const released = pool(state, of).released[index];
  if (released != nothing) {
    by.needs[by.need_count] = released;
    ++by.need_count;
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

//! The key of what a stage keeps for a unit, and of the state of a sequence on a stage.
[[nodiscard]] constexpr int unit_key(shape const& extents, pass unit) noexcept {
  unit.kind = pass_kind::forward;
  return pass_index(extents, unit);
}
[[nodiscard]] constexpr int sequence_key(shape const& extents, pass const& work) noexcept {
  return work.stage * extents.microbatches + work.microbatch;
}

//! Takes the slots of what a pass makes, and looks up those that it goes on using.
constexpr void take_slots(slot_state& state, item& step, slot_taker const& by) noexcept {
  shape const& extents = state.extents;
  pass const& work = step.work;
  bool const forward = work.kind == pass_kind::forward;
  int const unit = unit_key(extents, work);
  int const sequence = sequence_key(extents, work);
  bool const state_in_use = extents.chunks > 1 && work.kind != pass_kind::backward_weight;
  step.activation = forward ? take(state, slot_class::activation, unit, by)
                            : held(state, slot_class::activation, unit);
  if (state_in_use && forward && work.chunk == 0)
    (void)take(state, slot_class::sequence, sequence, by);
  if (state_in_use)
    step.state = held(state, slot_class::sequence, sequence);
  if (state_in_use && !forward) {
    if (work.chunk == extents.chunks - 1)
      (void)take(state, slot_class::sequence_gradient, sequence, by);
    step.state_gradient = held(state, slot_class::sequence_gradient, sequence);
  }
  if (work.kind == pass_kind::backward_input)
    step.weight_input = take(state, slot_class::weight_input, unit, by);
  if (reader_stage(extents, work) != nothing) {
    step.out.of = forward ? slot_class::output : slot_class::input_gradient;
    step.out.index = take(state, step.out.of, pass_index(extents, work), by);
  }
}

//! Releases what a pass is the last to read. Comes after all that start together have taken: no
//! pass ever writes over what it, or the other half of a composite pass, reads.
constexpr void release_slots(slot_state& state, item& step, int index) noexcept {
  shape const& extents = state.extents;
  pass const& work = step.work;
  bool const forward = work.kind == pass_kind::forward;
  int const unit = unit_key(extents, work);
  int const sequence = sequence_key(extents, work);
  int const source = source_index(extents, work);
  if (source != nothing) {
    bool const received = receiver(extents, pass_at(extents, source)) != nothing;
    step.in.of = forward ? (received ? slot_class::received_input : slot_class::output)
                         : (received ? slot_class::received_gradient : slot_class::input_gradient);
    step.in.index = release(state, step.in.of, source, index);
  }
  if (work.kind == pass_kind::backward_weight)
    step.weight_input = release(state, slot_class::weight_input, unit, index);
  if (frees_activation(work.kind) || state.evaluates)
    (void)release(state, slot_class::activation, unit, index);
  if (extents.chunks == 1 || work.kind == pass_kind::backward_weight)
    return;
  bool const last =
    state.evaluates ? work.chunk == extents.chunks - 1 : !forward && work.chunk == 0;
  if (last)
    (void)release(state, slot_class::sequence, sequence, index);
  if (last && !forward)
    (void)release(state, slot_class::sequence_gradient, sequence, index);
}

//! An item of a device that uses slots of totals or tied gradients, and what it needs: at most one
//! item of each stream, the latest.
struct slot_user {
  program const& work;
  int item_index;
  int* needs; // [most_needs]
  int& need_count;

  constexpr void need(int earlier) const noexcept {
    if (earlier == nothing)
      return;
    for (int k = 0; k < need_count; ++k)
      if (stream_of(work.items[needs[k]]) == stream_of(work.items[earlier])) {
        needs[k] = earlier > needs[k] ? earlier : needs[k];
        return;
      }
    needs[need_count] = earlier;
    ++need_count;
  }
};

//! Uses some slots of totals or tied gradients, one after the other, to read or to write.
constexpr void
use(slot_state& state, slot const& first, int count, bool writes, slot_user const& by) noexcept {
  slot_pool& of = pool(state, first.of);
  if (of.count == 0) {
    of.count = first.of == slot_class::totals ? stages(state.extents) : 2;
    of.peak = by.item_index;
  }
  for (int index = first.index; index < first.index + count; ++index) {
    int const key = first.of == slot_class::totals ? 2 + index : index;
    by.need(state.others.writer[key]);
    by.need(state.others.reader[key]);
    (writes ? state.others.writer : state.others.reader)[key] = by.item_index;
    if (writes)
      state.others.reader[key] = nothing;
  }
}

//! The slots of a step that is not about a pass. They are given, not taken: both ends of a message
//! use the same.
constexpr void assign_other_slots(slot_state& state, item& step, slot_user const& by) noexcept {
  int const stage = step.work.stage;
  bool writes = step.what == operation::receive;
  slot first{slot_class::totals, stage};
  int count = step.rows;
  switch (step.about) {
  case subject::tied_gradient:
    first = {slot_class::tied_gradient, stage == 0 ? 0 : 1};
    count = 1;
    writes = writes || step.what == operation::run;
    break;
  case subject::add_tied:
    first = {slot_class::tied_gradient, 0};
    count = 2;
    break;
  case subject::contribution:
    step.rows = count = 1;
    writes = true;
    break;
  case subject::update:
    first.index = 0;
    step.rows = count = stages(state.extents);
    break;
  default: break;
  }
  (writes ? step.out : step.in) = first;
  use(state, first, count, writes, by);
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
//! @param needs [items][most_needs] items of this device that must be complete first.
//! @param need_counts [items].
//! @param made scratch, [pass_indices]: the item that runs a pass or receives its message.
//! @complexity O(n) for n items.
//! @source Interval graphs are perfect: greedy colouring by start meets the peak overlap
//! (folklore).
constexpr void
assign_slots(slot_state& state, program& work, int* needs, int* need_counts, int* made) noexcept {
  int first_sent = 0;
  int sent_count = 0;
  int sent_before_run = 0; // sends that the pass now in the program has let overlap
  for (int i = 0; i < work.count; ++i)
    need_counts[i] = 0;
  auto const need = [needs, need_counts](int i, int earlier) {
    needs[i * most_needs + need_counts[i]] = earlier;
    ++need_counts[i];
  };
  for (int i = 0; i < work.count;) {
    item& step = work.items[i];
    int const end = end_of_group({work.items, static_cast<std::size_t>(work.count)}, i);
    if (step.about != subject::pass) {
      detail::assign_other_slots(state, step, {work, i, needs + i * most_needs, need_counts[i]});
      ++i;
      continue;
    }
    int const maker = pass_index(state.extents, step.work);
    bool const gradient = step.work.kind != pass_kind::forward;
    if (step.what == operation::run) {
      for (; first_sent < sent_before_run; ++first_sent) {
        item const& sent = work.items[state.sent[first_sent]];
        detail::pool(state, sent.in.of).release(sent.in.index, state.sent[first_sent]);
      }
      for (int k = i; k < end; ++k)
        detail::take_slots(state, work.items[k], {k, needs + k * most_needs, need_counts[k]});
      for (int k = i; k < end; ++k) {
        detail::release_slots(state, work.items[k], k);
        int const source = detail::source_index(state.extents, work.items[k].work);
        if (source != nothing)
          need(k, made[source]);
      }
      for (int k = i; k < end; ++k)
        made[pass_index(state.extents, work.items[k].work)] = k;
      sent_before_run = sent_count;
      i = end;
      continue;
    }
    if (step.what == operation::send) {
      step.in.of = gradient ? slot_class::input_gradient : slot_class::output;
      step.in.index = detail::held(state, step.in.of, maker);
      need(i, made[maker]);
      state.sent[sent_count] = i;
      ++sent_count;
    } else {
      step.out.of = gradient ? slot_class::received_gradient : slot_class::received_input;
      step.out.index =
        detail::take(state, step.out.of, maker, {i, needs + i * most_needs, need_counts[i]});
      made[maker] = i;
    }
    ++i;
  }
}

} // namespace pipelining::inline v0_1
