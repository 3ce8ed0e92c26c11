// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief One order of all passes of all devices. Header for pipelining::global_order.

#include <pipe/core/shape.hpp>
#include <pipe/timetable/dependencies.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>

namespace pipelining::inline v0_1 {

namespace detail {

//! A binary heap of devices, the one whose next pass ends first on top; equal ends go by device
//! number.
struct device_heap {
  int* devices;
  double const* key; // [P]
  int count = 0;

  [[nodiscard]] constexpr bool before(int a, int b) const noexcept {
    return key[a] != key[b] ? key[a] < key[b] : a < b;
  }
  constexpr void push(int device) noexcept {
    int at = count;
    ++count;
    while (at > 0 && before(device, devices[(at - 1) / 2])) {
      devices[at] = devices[(at - 1) / 2];
      at = (at - 1) / 2;
    }
    devices[at] = device;
  }
  constexpr int pop() noexcept {
    int const top = devices[0];
    --count;
    int const moved = devices[count];
    int at = 0;
    while (2 * at + 1 < count) {
      int child = 2 * at + 1;
      if (child + 1 < count && before(devices[child + 1], devices[child]))
        ++child;
      if (!before(devices[child], moved))
        break;
      devices[at] = devices[child];
      at = child;
    }
    devices[at] = moved;
    return top;
  }
};

} // namespace detail

//! @brief The state of the merge of device rows into one order, on arrays of the caller. Like
//! `simulation`, it can
//!        stop after any pass and go on later.
struct order_merge {
  timetable_view table;
  int* order;    //!< [n], entries in global order
  bool* emitted; //!< [pass_indices]
  int* next;     //!< [P]
  double* key;   //!< [P], the end of each device's next pass
  int* heap;     //!< [P]
  bool* waiting; //!< [P], devices whose next pass waits for a pass not in the order yet
  int heap_count = 0;
  int count = 0;
};

namespace detail {

//! Puts a device into the heap if all that its next pass waits for is in the order already.
constexpr void offer(order_merge& merge, device_heap& heap, int device) noexcept {
  int const entry = merge.next[device];
  merge.waiting[device] = false;
  if (entry == merge.table.offsets[device + 1])
    return;
  // The two halves of a composite pass start together: the first goes once both may.
  for (int i = entry; i < merge.table.offsets[device + 1]; ++i) {
    if (i > entry && !merge.table.passes[i].overlapped)
      break;
    dependency_list const needed = dependencies(merge.table.extents, merge.table.passes[i]);
    for (int k = 0; k < needed.count; ++k)
      if (!merge.emitted[needed.index[k]])
        merge.waiting[device] = true;
  }
  if (merge.waiting[device])
    return;
  merge.key[device] = merge.table.ends[entry];
  heap.push(device);
}

} // namespace detail

//! @brief Prepares a merge: the devices whose first pass waits for nothing are offered.
constexpr void begin(order_merge& merge) noexcept {
  for (int i = 0; i < pass_indices(merge.table.extents); ++i)
    merge.emitted[i] = false;
  detail::device_heap heap{merge.heap, merge.key};
  for (int device = 0; device < merge.table.extents.devices; ++device) {
    merge.next[device] = merge.table.offsets[device];
    detail::offer(merge, heap, device);
  }
  merge.heap_count = heap.count;
}

//! @brief Appends passes to the order, the earliest end first among those whose dependencies are in
//! it.
//!
//! The result is a linear extension of the order of every device and of all dependencies, also
//! where passes take no time. Each device enqueues its part of it; then no wait of any kind can
//! point forward, which is why the plan drains on bounded queues too.
//!
//! @param budget about how many passes to append at most.
//! @return the number appended.
//! @complexity O(log P) per pass.
//! @source own derivation, see docs/explanation/plan.md.
constexpr int advance(order_merge& merge, int budget) noexcept {
  timetable_view const& table = merge.table;
  detail::device_heap heap{merge.heap, merge.key, merge.heap_count};
  int appended = 0;
  while (heap.count > 0 && appended < budget) {
    int const device = heap.pop();
    // The halves of a composite pass stay together.
    do {
      int const entry = merge.next[device];
      pass const& what = table.passes[entry];
      merge.order[merge.count] = entry;
      ++merge.count;
      ++appended;
      ++merge.next[device];
      merge.emitted[pass_index(table.extents, what)] = true;
      int const consumer =
        device_of(table.extents, consumer_stage(table.extents, what), what.microbatch);
      if (consumer != device && merge.waiting[consumer])
        detail::offer(merge, heap, consumer);
    } while (merge.next[device] < table.offsets[device + 1] &&
             table.passes[merge.next[device]].overlapped);
    detail::offer(merge, heap, device);
  }
  merge.heap_count = heap.count;
  return appended;
}

} // namespace pipelining::inline v0_1
