// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief In which order stages add up their weight gradients. Header for
//! pipelining::sums_in_order.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/timetable/timetable.hpp>

namespace pipelining::inline v0_3 {
namespace detail {

//! Whether one stage does.
[[nodiscard]] constexpr bool sums_in_order(timetable_view table, int stage) noexcept {
  pass const* last = nullptr;
  int last_row = 0;
  int visits = 0; // of whole weights, each with a sum of its own
  int added = 0;  // in this visit
  for (int row = 0; row < table.rows(); ++row)
    for (pass const& what : table.row(row)) {
      if (what.stage != stage)
        continue;
      if ((*table.over.declared)[what.kind].calls == stage_call::collect_gradients) {
        ++visits;
        added = 0;
      }
      if (!adds_gradients(*table.over.declared, what.kind))
        continue;
      bool const follows =
        last == nullptr ||
        (row == last_row && (what.microbatch > last->microbatch ||
                             (what.microbatch == last->microbatch && what.chunk < last->chunk)));
      if (!follows || (++added > 1 && visits > 1))
        return false;
      last = &what;
      last_row = row;
    }
  return true;
}

} // namespace detail

//! @brief Whether every stage adds up its weight gradients in the order of a plain loop:
//! microbatches from the first to the last, and of each the chunks from the last to the first.
//!
//! Then gradients have the bits of that loop, and of every other such timetable. Otherwise they
//! differ by rounding: where a schedule goes back from the last microbatch, where a stage has
//! copies on several devices, each with a sum of its own, and where sharded weights are visited
//! more than once for several microbatches.
//!
//! @complexity O(n S) for n passes.
[[nodiscard]] constexpr bool sums_in_order(timetable_view table) noexcept {
  for (int stage = 0; stage < stages(table.over.extents); ++stage)
    if (!detail::sums_in_order(table, stage))
      return false;
  return true;
}

} // namespace pipelining::inline v0_3
