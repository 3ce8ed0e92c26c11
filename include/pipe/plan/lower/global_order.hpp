// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One order of all passes of all devices.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/timetable.hpp>

#include <bit>
#include <cstdint>
#include <limits>

namespace pipelining::inline v0_3::detail {

//! The row whose next pass ends first; equal ends go by row number. A tree: every node has the
//! first of the two below it, and the rows are its leaves. A change takes no jumps that a processor
//! could foresee wrongly, which took longer than all other work on a pass.
struct row_tree {
  struct node {
    std::int64_t key = absent;
    int row = 0;
  };
  static constexpr std::int64_t absent = std::numeric_limits<std::int64_t>::max() - 1;

  node* nodes; // [2 leaves], node 1 above all
  int leaves;  // a power of two

  //! The leaves of a tree of so many rows.
  [[nodiscard]] static constexpr int leaves_of(int rows) noexcept {
    return static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  }
  [[nodiscard]] constexpr bool empty() const noexcept { return nodes[1].key == absent; }
  [[nodiscard]] constexpr int first() const noexcept { return nodes[1].row; }
  //! A number that grows with a time.
  [[nodiscard]] static constexpr std::int64_t key_of(double end) noexcept {
    auto const bits = std::bit_cast<std::int64_t>(end + 0.0);
    return bits < 0 ? bits ^ std::numeric_limits<std::int64_t>::max() : bits;
  }
  //! A row has another key, or none.
  constexpr void set(int row, std::int64_t key) noexcept {
    node now{key, row};
    int at = leaves + row;
    for (; at > 1; at /= 2) {
      nodes[at] = now;
      node const other = nodes[at ^ 1];
      bool const earlier = other.key < now.key + at % 2; // of equals the left one
      now.key = earlier ? other.key : now.key;
      now.row = earlier ? other.row : now.row;
    }
    nodes[at] = now;
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
  row_tree rows; //!< those whose next pass may follow, fresh
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

//! Enters a row if all that its next pass waits for is in the order already.
constexpr void offer(order_merge& merge, pipeline_view const& over, int row) noexcept {
  int const entry = merge.next[row];
  int const end = merge.table.offsets[row + 1];
  if (entry == end)
    return;
  if (merge.emitted != nullptr) {
    merge.waiting[row] = must_wait(merge, over, entry, end);
    if (merge.waiting[row])
      return;
  }
  merge.rows.set(row, row_tree::key_of(merge.table.ends[entry]));
}

//! Notes the data that a pass of a row has made, and offers the rows that waited for it.
constexpr void
emit(order_merge& merge, pipeline_view const& over, int row, pass const& what) noexcept {
  kind_links const& links = over.links_of(what);
  int const stage_count = over.extents.stages();
  int const unit_count = over.units();
  int const unit = over.unit_of(what);
  for (int k = 0; k < 3 && links.made[k] != kind_links::none; ++k)
    merge.emitted[(links.made[k] * stage_count + what.stage) * unit_count + unit] = true;
  auto const offer_waiting = [&](int other) {
    if (other != row && merge.waiting[other])
      offer(merge, over, other);
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
constexpr void begin(order_merge& merge) noexcept {
  pipeline_view const over = merge.table.over;
  for (int i = 0; merge.emitted != nullptr && i < over.pass_indices(); ++i)
    merge.emitted[i] = false;
  for (int row = 0; row < merge.table.rows(); ++row) {
    merge.next[row] = merge.table.offsets[row];
    merge.waiting[row] = false;
    offer(merge, over, row);
  }
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
  begin(merge);
  while (!merge.rows.empty()) {
    int const row = merge.rows.first();
    // Where others may be offered, this row is out until all that it waits for is known.
    if (merge.emitted != nullptr)
      merge.rows.set(row, row_tree::absent);
    int const end = table.offsets[row + 1];
    int& next = merge.next[row];
    // The halves of a composite pass stay together.
    do {
      int const entry = next;
      merge.order[merge.count] = entry;
      ++merge.count;
      ++next;
      if (merge.emitted != nullptr)
        emit(merge, over, row, table.passes[entry]);
    } while (next < end && table.passes[next].overlapped);
    if (merge.emitted != nullptr)
      offer(merge, over, row);
    else
      merge.rows.set(row, next < end ? row_tree::key_of(table.ends[next]) : row_tree::absent);
  }
}

} // namespace pipelining::inline v0_3::detail
