// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One order of all passes of all devices. Header for pipelining::global_order.

#include <pipe/core/pipeline.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>

namespace pipelining::inline v0_2 {

namespace detail {

//! A binary heap of rows, the one whose next pass ends first on top; equal ends go by row number.
struct row_heap {
  int* rows;
  double const* key; // [rows]
  int count = 0;

  [[nodiscard]] constexpr bool before(int a, int b) const noexcept {
    return key[a] != key[b] ? key[a] < key[b] : a < b;
  }
  constexpr void push(int row) noexcept {
    int at = count;
    ++count;
    while (at > 0 && before(row, rows[(at - 1) / 2])) {
      rows[at] = rows[(at - 1) / 2];
      at = (at - 1) / 2;
    }
    rows[at] = row;
  }
  constexpr int pop() noexcept {
    int const top = rows[0];
    --count;
    int const moved = rows[count];
    int at = 0;
    while (2 * at + 1 < count) {
      int child = 2 * at + 1;
      if (child + 1 < count && before(rows[child + 1], rows[child]))
        ++child;
      if (!before(rows[child], moved))
        break;
      rows[at] = rows[child];
      at = child;
    }
    rows[at] = moved;
    return top;
  }
};

} // namespace detail

//! @brief The state of the merge of rows into one order, on arrays of the caller. Like
//! `simulation`, it can
//!        stop after any pass and go on later.
struct order_merge {
  timetable_view table; //!< whose rows are merged
  int* order;    //!< [n], entries in global order
  bool* emitted; //!< [pass_indices]
  int* next;     //!< [rows]
  double* key;   //!< [rows], the end of each row's next pass
  int* heap;     //!< [rows]
  bool* waiting; //!< [rows], rows whose next pass waits for a pass not in the order yet
  int heap_count = 0; //!< devices on the heap
  int count = 0;      //!< passes in the order
};

namespace detail {

//! Puts a row into the heap if all that its next pass waits for is in the order already.
constexpr void
offer(order_merge& merge, pipeline const& over, row_heap& heap, int row) noexcept {
  int const entry = merge.next[row];
  merge.waiting[row] = false;
  if (entry == merge.table.offsets[row + 1])
    return;
  // The two halves of a composite pass start together: the first goes once both may.
  for (int i = entry; i < merge.table.offsets[row + 1]; ++i) {
    if (i > entry && !merge.table.passes[i].overlapped)
      break;
    dependency_list const needed = dependencies(over, merge.table.passes[i]);
    for (int k = 0; k < needed.count; ++k)
      if (!merge.emitted[needed.index[k]])
        merge.waiting[row] = true;
  }
  if (merge.waiting[row])
    return;
  merge.key[row] = merge.table.ends[entry];
  heap.push(row);
}

//! Notes what a pass has made.
constexpr void emit(order_merge& merge, pipeline const& over, pass const& what) noexcept {
  kind_links const& links = links_of(over, what);
  int const stage_count = stages(over.extents);
  int const unit_count = units(over);
  int const unit = unit_of(over, what);
  for (int k = 0; k < 3 && links.made[k] != kind_links::none; ++k)
    merge.emitted[(links.made[k] * stage_count + what.stage) * unit_count + unit] = true;
}

} // namespace detail

//! @brief Prepares a merge: the rows whose first pass waits for nothing are offered.
constexpr void begin(order_merge& merge) noexcept {
  pipeline const over = merge.table.over();
  for (int i = 0; i < pass_indices(over); ++i)
    merge.emitted[i] = false;
  detail::row_heap heap{merge.heap, merge.key};
  for (int row = 0; row < merge.table.rows(); ++row) {
    merge.next[row] = merge.table.offsets[row];
    detail::offer(merge, over, heap, row);
  }
  merge.heap_count = heap.count;
}

//! @brief Appends passes to the order, the earliest end first among those whose dependencies are in
//! it.
//!
//! The result is a linear extension of the order of every row and of all dependencies, also where
//! passes take no time. Each device enqueues its part of it; then no wait of any kind can point
//! forward, which is why the plan drains on bounded queues too.
//!
//! @param budget about how many passes to append at most.
//! @return the number appended.
//! @complexity O(log P) per pass.
//! @source own derivation, see docs/explanation/plan.md.
constexpr int advance(order_merge& merge, int budget) noexcept {
  timetable_view const& table = merge.table;
  pipeline const over = table.over();
  int const devices = table.extents.devices;
  int const rows = table.rows();
  int const width = graph_width(over);
  detail::row_heap heap{merge.heap, merge.key, merge.heap_count};
  int appended = 0;
  while (heap.count > 0 && appended < budget) {
    int const row = heap.pop();
    // The halves of a composite pass stay together.
    do {
      int const entry = merge.next[row];
      pass const& what = table.passes[entry];
      merge.order[merge.count] = entry;
      ++merge.count;
      ++appended;
      ++merge.next[row];
      detail::emit(merge, over, what);
      for (int number = 0; number < width; ++number) {
        int const consumer = receiver(over, what, number);
        if (consumer != kind_links::none && merge.waiting[consumer])
          detail::offer(merge, over, heap, consumer);
      }
      for (int other = row % devices; rows > devices && other < rows; other += devices)
        if (other != row && merge.waiting[other])
          detail::offer(merge, over, heap, other);
    } while (merge.next[row] < table.offsets[row + 1] &&
             table.passes[merge.next[row]].overlapped);
    detail::offer(merge, over, heap, row);
  }
  merge.heap_count = heap.count;
  return appended;
}

} // namespace pipelining::inline v0_2
