// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The slots of tied gradients and totals, which are given, not taken.

#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/device_program.hpp>

namespace pipelining::inline v0_3::detail {

//! @brief Who used the slots of the classes that no pass uses: tied gradients, then totals.
struct slot_uses {
  int* writer = nullptr; //!< [2 + S] items of the device, or `nothing`
  int* reader = nullptr; //!< [2 + S]
};

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

//! The class of a step that is not about a pass.
[[nodiscard]] constexpr slot_class step_class(item const& step) noexcept {
  bool const tied = step.about == subject::tied_gradient || step.about == subject::add_tied;
  return tied ? slot_class::tied_gradient : slot_class::totals;
}

//! Uses some slots of totals or tied gradients, one after the other, to read or to write.
constexpr void
use(slot_uses& others, slot const& first, int count, bool writes, slot_user const& by) noexcept {
  for (int index = first.index; index < first.index + count; ++index) {
    int const key = first.of == slot_class::totals ? 2 + index : index;
    by.need(others.writer[key]);
    by.need(others.reader[key]);
    (writes ? others.writer : others.reader)[key] = by.item_index;
    if (writes)
      others.reader[key] = nothing;
  }
}

//! The slots of a step that is not about a pass. They are given, not taken: both ends of a message
//! use the same.
//! @param of the pool of `step_class(step)`
template <class Pool>
constexpr void assign_given_slots(
  slot_uses& others, Pool& of, int stage_count, item& step, slot_user const& by) noexcept {
  int const stage = step.work.stage;
  if (of.count == 0) {
    of.count = step_class(step) == slot_class::totals ? stage_count : 2;
    of.peak = by.item_index;
  }
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
  case subject::early_update:
  case subject::validation:
    first.index = 0;
    step.rows = count = stage_count;
    break;
  default: break;
  }
  (writes ? step.out : step.in) = first;
  use(others, first, count, writes, by);
}

} // namespace pipelining::inline v0_3::detail
