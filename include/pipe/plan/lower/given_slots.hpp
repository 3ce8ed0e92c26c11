// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The slots of tied gradients and totals, which are given, not taken.

#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/device_program.hpp>

namespace pipelining::inline v0_3::detail {

//! @brief The last users of slots of the classes that no pass uses: tied gradients, then totals,
//! then copied gradients.
struct slot_uses {
  int* writer = nullptr; //!< [slots] items of the device, or `nothing`
  int* reader = nullptr; //!< [slots]
};

//! The most slots of these classes that a device may have.
[[nodiscard]] constexpr int given_slots(shape const& extents) noexcept {
  return 2 + extents.stages() + most_copies(extents);
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
      if (work.items[needs[k]].stream() == work.items[earlier].stream()) {
        needs[k] = earlier > needs[k] ? earlier : needs[k];
        return;
      }
    needs[need_count] = earlier;
    ++need_count;
  }
};

//! Uses some slots of one class, one after the other, to read or to write. A reader needs the one
//! before it, so that the last stands for all.
//! @param before slots of other classes that come before those of the class
constexpr void use(slot_uses& others,
                   int before,
                   slot const& first,
                   int count,
                   bool writes,
                   slot_user const& by) noexcept {
  for (int index = first.index; index < first.index + count; ++index) {
    int const key = before + index;
    by.need(others.writer[key]);
    by.need(others.reader[key]);
    (writes ? others.writer : others.reader)[key] = by.item_index;
    if (writes)
      others.reader[key] = nothing;
  }
}

//! The slots of a step that is not about a pass, in its class, and whether the step writes them.
struct given_range {
  int first = 0;
  int count = 0;
  bool writes = false;
};
[[nodiscard]] constexpr given_range given_range_of(pipeline_view const& over,
                                                   item const& step) noexcept {
  int const stage = step.work.stage;
  bool const receives = step.what == operation::receive;
  bool const makes = receives || step.what == operation::run;
  switch (step.about) {
  case subject::copied_gradient:
    return {copies_below(over, stage, device_of(over, step.work)), 1, makes};
  case subject::add_copies: return {0, copies_of(over, stage), receives};
  case subject::tied_gradient: return {stage == 0 ? 0 : 1, 1, makes};
  case subject::add_tied: return {0, 2, receives};
  case subject::contribution: return {stage, 1, true};
  case subject::gather: return {stage, step.rows, receives};
  default: return {0, over.extents.stages(), receives};
  }
}

//! The slots of a step that is not about a pass. They are given, not taken: both ends of a message
//! use the same.
//! @param of the pool of `class_of(step.about)`
template <class Pool>
constexpr void assign_given_slots(slot_uses& others,
                                  Pool& of,
                                  pipeline_view const& over,
                                  item& step,
                                  slot_user const& by) noexcept {
  int const stage_count = over.extents.stages();
  slot_class const kind = class_of(step.about);
  bool const of_totals = kind == slot_class::totals;
  bool const tied = kind == slot_class::tied_gradient;
  int const slots = of_totals ? stage_count : tied ? 2 : copies_of(over, step.work.stage);
  if (of.count < slots) {
    of.count = slots;
    of.peak = by.item_index;
  }
  given_range const given = given_range_of(over, step);
  if (of_totals || step.about == subject::add_copies)
    step.rows = given.count;
  slot const first{kind, given.first};
  (given.writes ? step.out : step.in) = first;
  int const before = of_totals ? 2 : tied ? 0 : 2 + stage_count;
  use(others, before, first, given.count, given.writes, by);
}

} // namespace pipelining::inline v0_3::detail
