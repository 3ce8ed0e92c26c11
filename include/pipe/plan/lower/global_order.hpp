// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One order of all passes of all devices.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/timetable/timetable.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

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

//! @brief The merge of rows into one order: the earliest end first among those whose dependencies
//! are in it, until none may follow.
//!
//! The result is a linear extension of the order of every row and of all dependencies, also where
//! passes take no time. Each device enqueues its part of it; then no wait of any kind can point
//! forward, which is why the plan drains on bounded queues too.
//!
//! @complexity O(log P) per pass.
//! @source own derivation, see docs/explanation/plan.md.
class order_merge {
public:
  explicit order_merge(timetable_view const& table)
      : table_(table),
        nodes_(2 * at(row_tree::leaves_of(table.rows()))), tree_{nodes_.data(),
                                                                 row_tree::leaves_of(table.rows())},
        next_(table.offsets, table.offsets + table.rows()) {
    for (int entry = 0; entry < table.size() && all_take_time_; ++entry)
      all_take_time_ = table.ends[entry] > table.starts[entry];
    if (all_take_time_)
      return;
    emitted_ = std::make_unique<bool[]>(at(table.over.pass_indices()));
    waiting_ = std::make_unique<bool[]>(at(table.rows()));
  }

  //! Entries of all rows, fewer where they are circular.
  [[nodiscard]] std::vector<int> run() {
    std::vector<int> order(at(table_.size()));
    int* last = order.data();
    for (int row = 0; row < table_.rows(); ++row)
      offer(row);
    while (!tree_.empty()) {
      int const row = tree_.first();
      int const end = table_.offsets[row + 1];
      int& next = next_[at(row)];
      // Where others may be offered, this row is out until all that it waits for is known.
      if (!all_take_time_)
        tree_.set(row, row_tree::absent);
      do { // the halves of a composite pass stay together
        *last++ = next++;
        if (!all_take_time_)
          emit(row, table_.passes[last[-1]]);
      } while (next < end && table_.passes[next].overlapped);
      if (all_take_time_)
        tree_.set(row, next < end ? row_tree::key_of(table_.ends[next]) : row_tree::absent);
      else
        offer(row);
    }
    order.resize(static_cast<std::size_t>(last - order.data()));
    return order;
  }

private:
  [[nodiscard]] static std::size_t at(int number) noexcept {
    return static_cast<std::size_t>(number);
  }
  //! True when an entry, or the other half of its composite pass, waits for a pass that is not in
  //! the order yet: the halves start together, so the first goes once both may.
  [[nodiscard]] bool must_wait(int entry, int end) const noexcept {
    for (int i = entry; i < end && (i == entry || table_.passes[i].overlapped); ++i) {
      dependency_list const needed = dependencies(table_.over, table_.passes[i]);
      for (int k = 0; k < needed.count; ++k)
        if (!emitted_[at(needed.index(k))])
          return true;
    }
    return false;
  }
  //! Enters a row if all that its next pass waits for is in the order already.
  void offer(int row) noexcept {
    int const entry = next_[at(row)];
    int const end = table_.offsets[row + 1];
    if (entry == end)
      return;
    bool const waits = !all_take_time_ && must_wait(entry, end);
    if (!all_take_time_)
      waiting_[at(row)] = waits;
    if (!waits)
      tree_.set(row, row_tree::key_of(table_.ends[entry]));
  }
  //! Notes the data that a pass of a row has made, and offers the rows that waited for it.
  void emit(int row, pass const& what) noexcept {
    pipeline_view const& over = table_.over;
    for (int const made : over.links_of(what).made)
      if (made != kind_links::none)
        emitted_[at((made * over.extents.stages() + what.stage) * over.units() +
                    over.unit_of(what))] = true;
    int const devices = over.extents.devices;
    auto const offer_waiting = [&](int device) {
      for (int other = device; other < table_.rows(); other += devices)
        if (other != row && waiting_[at(other)])
          offer(other);
    };
    for (int number = 0; number < graph_width(over); ++number)
      if (int const consumer = receiver(over, what, number); consumer != kind_links::none)
        offer_waiting(consumer);
    if (table_.rows() > devices)
      offer_waiting(row % devices);
  }

  timetable_view table_;
  std::vector<row_tree::node> nodes_;
  row_tree tree_;         // of those whose next pass may follow
  std::vector<int> next_; // [rows]
  // Where every pass takes time, the one that ends first waits for nothing that is not in the order
  // yet.
  bool all_take_time_ = true;
  std::unique_ptr<bool[]> emitted_; // [pass_indices]
  std::unique_ptr<bool[]> waiting_; // [rows], whose next pass waits for one not in the order yet
};

} // namespace pipelining::inline v0_3::detail
