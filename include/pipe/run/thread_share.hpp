// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The threads of a runner, and the devices that each of them runs. Header for
//! pipelining::detail::thread_share.

#include <pipe/flow/shape.hpp>
#include <pipe/run/rendezvous.hpp>

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The place of a device in its program. On a cache line of its own: it changes with every pass.
struct alignas(cache_line) device_standing {
  std::atomic<int> position = 0;       // the item that the device is at
  std::atomic<int> waits_on = nothing; // the item that it waits for, or nothing
  std::atomic<bool> at_home = true;    // it has ended its errand
  std::atomic<int> in_hand = nothing;  // the thread that is in its program now, or nothing
  int next = 0;                        // the item to go on with; of who has it in hand
  bool again = false;                  // the iteration begins again
};

//! The door of a thread, where it is called and sleeps, between errands and in a step.
struct alignas(cache_line) thread_standing {
  std::atomic<int> called = 0; // errands that it was sent on
  std::atomic<int> back = 0;   // errands that it is back from
  sleeping_place door;
};

//! The threads of the devices.
//!
//! Only the thread that `runs_on` names begins with a device, and only one that has it in hand
//! touches its program. The caller may give a device to another thread at any time: one that still
//! has it in hand wakes the other when it puts it back.
struct thread_share {
  std::vector<device_standing> devices;
  std::vector<thread_standing> threads;
  std::vector<std::atomic<int>> runs_on; // [P], apart from what changes with every pass
  std::vector<int> seen;                 // [P], the items of calls at the last look of the caller
  // Written at the end of an errand.
  alignas(cache_line) std::atomic<int> running = 0; // calls from which threads are not back
  sleeping_place caller;

  thread_share(int device_count, int thread_count)
      : devices(static_cast<std::size_t>(device_count)),
        threads(static_cast<std::size_t>(thread_count)),
        runs_on(static_cast<std::size_t>(device_count)),
        seen(static_cast<std::size_t>(device_count), nothing) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(devices.size()); }
  [[nodiscard]] device_standing& at(int device) noexcept {
    return devices[static_cast<std::size_t>(device)];
  }
  [[nodiscard]] device_standing const& at(int device) const noexcept {
    return devices[static_cast<std::size_t>(device)];
  }
  [[nodiscard]] bool is_home(int device) const noexcept {
    return at(device).at_home.load(std::memory_order_relaxed);
  }
  [[nodiscard]] int thread_of(int device) const noexcept {
    return runs_on[static_cast<std::size_t>(device)].load(std::memory_order_seq_cst);
  }
  [[nodiscard]] bool is_away(int thread) const noexcept {
    thread_standing const& its = threads[static_cast<std::size_t>(thread)];
    return its.called.load(std::memory_order_acquire) != its.back.load(std::memory_order_acquire);
  }
  void open(int thread) { threads[static_cast<std::size_t>(thread)].door.open(); }
  void open_all() {
    for (thread_standing& each : threads)
      each.door.open();
  }

  //! Gives all devices to the first threads, neighbours to one, and calls these.
  //! @pre all threads are back.
  void send(int count) {
    for (int device = 0; device < size(); ++device) {
      auto const d = static_cast<std::size_t>(device);
      runs_on[d].store(device * count / size(), std::memory_order_relaxed);
      devices[d].at_home.store(false, std::memory_order_relaxed);
      seen[d] = nothing;
    }
    running.store(count, std::memory_order_relaxed);
    for (int thread = 0; thread < count; ++thread)
      call(thread);
  }

  //! Releases everything that the caller has done to a thread that looks, or wakes it.
  void call(int thread) {
    threads[static_cast<std::size_t>(thread)].called.fetch_add(1, std::memory_order_seq_cst);
    open(thread);
  }

  //! The end of a call. The last one hands all that devices have done to the caller.
  void go_home(int thread) {
    threads[static_cast<std::size_t>(thread)].back.fetch_add(1, std::memory_order_release);
    if (running.fetch_sub(1, std::memory_order_seq_cst) == 1)
      caller.open();
  }

  //! @return whether this thread has the device in hand now, and the device has not ended.
  [[nodiscard]] bool take(int device, int thread) {
    device_standing& its = at(device);
    int none = nothing;
    if (thread_of(device) != thread || is_home(device) ||
        !its.in_hand.compare_exchange_strong(none, thread, std::memory_order_seq_cst))
      return false;
    if (!is_home(device))
      return true;
    put_back(device, thread);
    return false;
  }
  void put_back(int device, int thread) {
    at(device).in_hand.store(nothing, std::memory_order_seq_cst);
    if (int const other = thread_of(device); other != thread)
      open(other);
  }

  //! Calls `visit(device)` for every device of a thread that has not ended, until it says true.
  //! @return whether it has; false where the thread has no such device.
  template <class Visit>
  bool any_of(int thread, Visit visit) const {
    for (int device = 0; device < size(); ++device)
      if (thread_of(device) == thread && !is_home(device) && visit(device))
        return true;
    return false;
  }
  [[nodiscard]] bool has_any(int thread) const {
    return any_of(thread, [](int) { return true; });
  }

  //! Gives devices whose thread has been in one call of another device since the last look to
  //! threads that have none. So nobody waits for a device whose stage sleeps, but its neighbours.
  void spread() {
    for (int device = 0; device < size(); ++device) {
      device_standing const& its = at(device);
      int const busy = its.in_hand.load(std::memory_order_seq_cst);
      int const item = busy == nothing ? nothing : its.position.load(std::memory_order_relaxed);
      int const before = std::exchange(seen[static_cast<std::size_t>(device)], item);
      if (item == nothing || item != before)
        continue;
      if (thread_of(device) != busy)
        give(device, busy);
      for (int other = 0; other < size(); ++other)
        if (other != device && !is_home(other) && thread_of(other) == busy)
          give(other, idle());
    }
  }

private:
  //! A thread that has no device to run, or nothing.
  [[nodiscard]] int idle() const {
    for (int thread = 0; thread < static_cast<int>(threads.size()); ++thread)
      if (!has_any(thread))
        return thread;
    return nothing;
  }
  void give(int device, int thread) {
    for (int away = running.load(); thread != nothing;) {
      if (away == 0)
        return; // the errand is over
      if (!running.compare_exchange_weak(away, away + 1))
        continue;
      runs_on[static_cast<std::size_t>(device)].store(thread, std::memory_order_seq_cst);
      return call(thread);
    }
  }
};

} // namespace pipelining::inline v0_3::detail
