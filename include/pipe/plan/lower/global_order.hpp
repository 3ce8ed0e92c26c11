// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One order of all passes of all devices.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>

namespace pipelining::inline v0_3::detail {

//! A binary heap of rows, the one whose next pass ends first on top; equal ends go by row number.
struct row_heap {
  int* rows;
  double const* key; // [rows]
  int count = 0;

  [[nodiscard]] constexpr bool before(int a, int b) const noexcept {
    return key[a] != key[b] ? key[a] < key[b] : a < b;
  }
  constexpr void push(int row) noexcept { rise(count++, row); }
  constexpr int pop() noexcept {
    int const top = rows[0];
    --count;
    replace_top(rows[count]);
    return top;
  }
  //! Puts a row where the top was: the same with another key, or another row. It belongs far down
  //! as a rule, so the others move up first.
  constexpr void replace_top(int moved) noexcept {
    int at = 0;
    for (int child = 1; child < count; child = 2 * at + 1) {
      if (child + 1 < count && before(rows[child + 1], rows[child]))
        ++child;
      rows[at] = rows[child];
      at = child;
    }
    rise(at, moved);
  }
  //! Puts a row where there is none, or above.
  constexpr void rise(int at, int row) noexcept {
    for (; at > 0 && before(row, rows[(at - 1) / 2]); at = (at - 1) / 2)
      rows[at] = rows[(at - 1) / 2];
    rows[at] = row;
  }
};

//! @brief The state of the merge of rows into one order, on arrays of the caller.
struct order_merge {
  timetable_view table; //!< whose rows are merged
  int* order;           //!< [n], entries in global order
  //! [pass_indices]; null where every pass takes time. Then the pass that ends first waits for
  //! nothing that is not in the order yet.
  bool* emitted;
  int* next;     //!< [rows]
  double* key;   //!< [rows], the end of each row's next pass
  int* heap;     //!< [rows]
  bool* waiting; //!< [rows], rows whose next pass waits for a pass not in the order yet
  int count = 0; //!< passes in the order
};

//! True when an entry, or the other half of its composite pass, waits for a pass that is not in the
//! order yet: the halves start together, so the first goes once both may.
[[nodiscard]] constexpr bool
must_wait(order_merge const& merge, pipeline_view const& over, int entry, int end) noexcept {
  for (int i = entry; i < end && (i == entry || merge.table.passes[i].overlapped); ++i) {
    dependency_list const needed = dependencies(over, merge.table.passes[i]);
    for (int k = 0; k < needed.count; ++k)
      if (!merge.emitted[needed.index(k)])
        return true;
  }
  return false;
}

//! Puts a row into the heap if all that its next pass waits for is in the order already.
constexpr void
offer(order_merge& merge, pipeline_view const& over, row_heap& heap, int row) noexcept {
  int const entry = merge.next[row];
  int const end = merge.table.offsets[row + 1];
  if (entry == end)
    return;
  if (merge.emitted != nullptr) {
    merge.waiting[row] = must_wait(merge, over, entry, end);
    if (merge.waiting[row])
      return;
  }
  merge.key[row] = merge.table.ends[entry];
  heap.push(row);
}

//! Notes the data that a pass of a row has made, and offers the rows that waited for it.
constexpr void emit(order_merge& merge,
                    pipeline_view const& over,
                    row_heap& heap,
                    int row,
                    pass const& what) noexcept {
  kind_links const& links = over.links_of(what);
  int const stage_count = over.extents.stages();
  int const unit_count = over.units();
  int const unit = over.unit_of(what);
  for (int k = 0; k < 3 && links.made[k] != kind_links::none; ++k)
    merge.emitted[(links.made[k] * stage_count + what.stage) * unit_count + unit] = true;
  auto const offer_waiting = [&](int other) {
    if (other != row && merge.waiting[other])
      offer(merge, over, heap, other);
  };
  int const devices = over.extents.devices;
  int const rows = merge.table.rows();
  for (int number = 0; number < graph_width(over); ++number)
    if (int const consumer = receiver(over, what, number); consumer != kind_links::none)
      for (int other = consumer; other < rows; other += devices)
        offer_waiting(other);
  for (int other = row % devices; rows > devices && other < rows; other += devices)
    offer_waiting(other);
}

//! @brief Prepares a merge: the rows whose first pass waits for nothing are offered.
[[nodiscard]] constexpr row_heap begin(order_merge& merge) noexcept {
  pipeline_view const over = merge.table.over;
  for (int i = 0; merge.emitted != nullptr && i < over.pass_indices(); ++i)
    merge.emitted[i] = false;
  row_heap heap{merge.heap, merge.key};
  for (int row = 0; row < merge.table.rows(); ++row) {
    merge.next[row] = merge.table.offsets[row];
    merge.waiting[row] = false;
    offer(merge, over, heap, row);
  }
  return heap;
}

//! @brief Appends passes to the order, the earliest end first among those whose dependencies are in
//! it, until none may follow.
//!
//! The result is a linear extension of the order of every row and of all dependencies, also where
//! passes take no time. Each device enqueues its part of it; then no wait of any kind can point
//! forward, which is why the plan drains on bounded queues too.
//!
//! @complexity O(log P) per pass.
//! @source own derivation, see docs/explanation/plan.md.
constexpr void merge_rows(order_merge& merge) noexcept {
  timetable_view const& table = merge.table;
  pipeline_view const over = table.over;
  row_heap heap = begin(merge);
  while (heap.count > 0) {
    // Where nobody waits, the row stays where it is until its next key is known.
    int const row = merge.emitted == nullptr ? heap.rows[0] : heap.pop();
    // The halves of a composite pass stay together.
    do {
      int const entry = merge.next[row];
      merge.order[merge.count] = entry;
      ++merge.count;
      ++merge.next[row];
      if (merge.emitted != nullptr)
        emit(merge, over, heap, row, table.passes[entry]);
    } while (merge.next[row] < table.offsets[row + 1] && table.passes[merge.next[row]].overlapped);
    if (merge.emitted != nullptr) {
      offer(merge, over, heap, row);
    } else if (merge.next[row] < table.offsets[row + 1]) {
      merge.key[row] = table.ends[merge.next[row]];
      heap.replace_top(row);
    } else {
      heap.pop();
    }
  }
}

} // namespace pipelining::inline v0_3::detail
