// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Messages between threads without a buffer in between. Header for pipelining::rendezvous.

#include <pipe/core/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace pipelining::inline v0_1 {

//! @brief The meeting points of all messages of a plan: sender and receiver post, the second of
//! them copies.
//!
//! Posting never blocks and buffers nothing: the data stays in the sender's slot until the receiver
//! has posted. Posts of one direction between two devices meet in order, since both ends post in
//! the order of the plan. All members may be called from several threads, but `reset`.
class rendezvous {
public:
  //! Makes a place for each message of a plan.
  //! @param work must outlive the object.
  explicit rendezvous(plan_view const& work)
      : work_(work), meetings_(static_cast<std::size_t>(message_indices(work))),
        doors_(static_cast<std::size_t>(work.extents.devices)) {}

  //! @brief Forgets all posts. No thread may be in any other member.
  void reset() noexcept {
    for (meeting& point : meetings_) {
      point.posts.store(0, std::memory_order_relaxed);
      point.done.store(false, std::memory_order_relaxed);
    }
    aborted_.store(false, std::memory_order_relaxed);
  }

  //! @brief Posts one end of a message; copies when the other end is there.
  //! @param memory the slot to send from or to receive into.
  void post(item const& step, std::byte* memory) {
    meeting& point = at(step);
    bool const sends = step.what == operation::send;
    (sends ? point.from : point.to) = memory;
    if (point.posts.fetch_add(1, std::memory_order_acq_rel) == 0)
      return;
    std::int64_t const bytes = sends ? step.in_bytes : step.out_bytes;
    if (bytes > 0)
      std::memcpy(point.to, point.from, static_cast<std::size_t>(bytes));
    point.done.store(true, std::memory_order_release);
    open(step.peer);
  }

  //! @brief True when a message has been copied.
  [[nodiscard]] bool done(item const& step) const noexcept {
    return meetings_[index(step)].done.load(std::memory_order_acquire);
  }

  //! @brief Blocks device `device` until a message has been copied.
  //! @return false when the run was aborted or the deadline has passed.
  [[nodiscard]] bool
  wait(item const& step, int device, std::chrono::steady_clock::time_point deadline) {
    if (done(step))
      return true;
    door& mine = doors_[static_cast<std::size_t>(device)];
    std::unique_lock lock(mine.guard);
    mine.opened.wait_until(lock, deadline, [&] { return done(step) || aborted(); });
    return done(step);
  }

  //! @brief Ends all waits, now and until `reset`.
  void abort() {
    aborted_.store(true, std::memory_order_release);
    for (std::size_t device = 0; device < doors_.size(); ++device)
      open(static_cast<int>(device));
  }
  //! Whether a device has given up.
  [[nodiscard]] bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }

private:
  struct meeting {
    std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::atomic<int> posts = 0;
    std::atomic<bool> done = false;
  };
  struct door {
    std::mutex guard;
    std::condition_variable opened;
  };

  [[nodiscard]] std::size_t index(item const& step) const noexcept {
    return static_cast<std::size_t>(message_index(work_, step));
  }
  [[nodiscard]] meeting& at(item const& step) noexcept { return meetings_[index(step)]; }

  void open(int device) {
    door& theirs = doors_[static_cast<std::size_t>(device)];
    // Taking the lock once keeps the wake-up from falling between the waiter's check and its sleep.
    { std::lock_guard const lock(theirs.guard); }
    theirs.opened.notify_all();
  }

  plan_view work_;
  std::vector<meeting> meetings_;
  std::vector<door> doors_;
  std::atomic<bool> aborted_ = false;
};

} // namespace pipelining::inline v0_1
