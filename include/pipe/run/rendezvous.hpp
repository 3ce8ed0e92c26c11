// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Messages between threads without a buffer in between. Header for
//! pipelining::detail::rendezvous.

#include <pipe/config.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Bytes that cores fetch and give up together. What one thread writes while others poll something
//! else lies on lines of its own.
inline constexpr std::size_t cache_line = 64;

//! Looks at something that another thread will change, without sleep, for a while. Between looks it
//! gives way to threads that have no core: the other one may be among them.
//! @return whether it has come.
template <class Come>
[[nodiscard]] bool spin_until(std::chrono::nanoseconds length, Come come) {
  if (length <= std::chrono::nanoseconds::zero())
    return come();
  using clock = std::chrono::steady_clock;
  constexpr int looks = 64; // between two looks at the clock
  auto const end = clock::now() + length;
  for (;;) {
    for (int i = 0; i < looks; ++i) {
      if (come())
        return true;
      PIPELINING_RELAX();
    }
    if (clock::now() >= end)
      return false;
    std::this_thread::yield();
  }
}

//! Where one thread sleeps until others have changed something that it looks at. Whoever changes it
//! (with sequentially consistent stores) opens the door, which costs one load unless somebody
//! sleeps there. On a cache line of its own: all who send to one device look at its door only.
class alignas(cache_line) sleeping_place {
public:
  //! @brief Sleeps until `come()`, which reads with sequential consistency.
  template <class Come>
  void wait(Come come) {
    std::unique_lock lock(guard_);
    // From here on, whoever changes what `come` looks at sees that somebody sleeps, or it is seen.
    asleep_.store(true, std::memory_order_seq_cst);
    opened_.wait(lock, come);
    asleep_.store(false, std::memory_order_relaxed);
  }
  //! @brief The same, but not longer than told.
  //! @return whether it has come.
  template <class Come>
  bool wait_for(std::chrono::nanoseconds longest, Come come) {
    std::unique_lock lock(guard_);
    asleep_.store(true, std::memory_order_seq_cst);
    bool const woken = opened_.wait_for(lock, longest, come);
    asleep_.store(false, std::memory_order_relaxed);
    return woken;
  }
  //! @brief Wakes who sleeps.
  void open() {
    if (!asleep_.load(std::memory_order_seq_cst))
      return;
    // Taking the lock once keeps the wake-up from falling between the sleeper's look and its sleep.
    { std::lock_guard const lock(guard_); }
    opened_.notify_all();
  }

private:
  std::mutex guard_;
  std::condition_variable opened_;
  std::atomic<bool> asleep_ = false;
};

//! The meeting points of all messages of a plan: sender and receiver post, the second of
//! them copies.
//!
//! Posting never blocks and buffers nothing: the data stays in the sender's slot until the receiver
//! has posted. Posts of one direction between two devices meet in order, since both ends post in
//! the order of the plan. All members may be called from several threads, but `reset` and
//! `leave_some`.
class rendezvous {
public:
  //! Makes a place for each message of a plan.
  //! @param work must outlive the object.
  explicit rendezvous(plan const& work)
      : work_(work), meetings_(message_indices(work)), meeting_of_(work.messages.size()) {
    pipeline_view const over = work.over;
    for (item const& step : work.items)
      if (step.what != operation::run)
        meeting_of_[static_cast<std::size_t>(step.message)] = message_index(work, over, step);
  }

  //! Forgets all posts. No thread may be in any other member.
  //! @complexity O(1), after an abort O(messages): every round counts on where the last one ended.
  void reset() noexcept {
    if (aborted() || some_left_) {
      for (std::size_t i = 0; i < meetings_.room; ++i)
        meetings_[i].posts.store(0, std::memory_order_relaxed);
      round_ = 0;
      aborted_.store(false, std::memory_order_relaxed);
      some_left_ = false;
    }
    round_ += posts_of_a_round;
  }

  //! Posts one end of a message; copies when the other end is there.
  //! @param memory the slot to send from or to receive into.
  //! @return whether it was; whoever sleeps for the message must be woken then.
  [[nodiscard]] bool post(item const& step, std::byte* memory) {
    meeting& point = meetings_[at(step)];
    bool const sends = step.what == operation::send;
    (sends ? point.from : point.to) = memory;
    // The first end releases its pointer and its data, the second acquires both: one of them alone
    // finds the other's post and copies.
    if (point.posts.fetch_add(1, std::memory_order_acq_rel) == round_ - posts_of_a_round)
      return false;
    std::int64_t const bytes = work_.uses_of(step)[0].bytes;
    if (bytes > 0)
      std::memcpy(point.to, point.from, static_cast<std::size_t>(bytes));
    // Releases the copy to the other end. Sequentially consistent, as is what a door reads next:
    // the sleeper has said that it sleeps, or sees this; see the tests of interleavings.
    point.posts.store(round_, std::memory_order_seq_cst);
    return true;
  }

  //! True when a message has been copied.
  [[nodiscard]] bool done(item const& step) const noexcept {
    return meetings_[at(step)].posts.load(std::memory_order_seq_cst) == round_;
  }

  //! Says that what has not come will not, until `reset`.
  void abort() noexcept { aborted_.store(true, std::memory_order_seq_cst); }
  //! Says whether the round has ended with messages that nobody has posted, as `reset`.
  void leave_some(bool left) noexcept { some_left_ = left; }
  //! True once a device has given up.
  [[nodiscard]] bool aborted() const noexcept { return aborted_.load(std::memory_order_seq_cst); }

private:
  // Both ends, and the copy.
  static constexpr std::uint32_t posts_of_a_round = 3;

  // On a cache line of its own: neighbours belong to other messages, which other cores write.
  struct alignas(cache_line) meeting {
    std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::atomic<std::uint32_t> posts = 0; // of all rounds
  };

  [[nodiscard]] std::size_t at(item const& step) const noexcept {
    return static_cast<std::size_t>(meeting_of_[static_cast<std::size_t>(step.message)]);
  }

  plan const& work_;
  owned<meeting> meetings_;
  std::vector<int> meeting_of_; // of each end of a message, as the plan lists them
  std::uint32_t round_ = 0;     // what `posts` of a complete message is
  // Read at every look, written when a run fails.
  alignas(cache_line) std::atomic<bool> aborted_ = false;
  bool some_left_ = false;
};

} // namespace pipelining::inline v0_3::detail
