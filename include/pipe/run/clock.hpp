// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The clock of runners that poll, and the deadlines of all waits. Header for
//! pipelining::detail::polling_clock and pipelining::detail::countdown.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace pipelining::inline v0_3 {

namespace detail {

//! The steady clock of the machine, a sleep between polls, and the threads that runners
//! start next to their own. Tests give runners a clock of their own.
struct polling_clock : std::chrono::steady_clock {
  using thread = std::thread; //!< what `start` returns

  //! Gives the processor away for that long.
  static void sleep_for(std::chrono::nanoseconds length) { std::this_thread::sleep_for(length); }

  //! Starts a thread.
  //! @throws std::system_error when the machine gives none.
  template <class Work>
  [[nodiscard]] static thread start(Work work) {
    return thread(std::move(work));
  }

  //! Where one thread sleeps until another one rings or a time has come.
  class doorbell {
  public:
    //! Returns at once if it was rung since the last return. time_point::max() is never.
    void wait_until(time_point when) {
      std::unique_lock held(lock_);
      auto const rung = [this] { return rung_; };
      if (when == time_point::max())
        come_.wait(held, rung);
      else
        come_.wait_until(held, when, rung);
      rung_ = false;
    }
    //! Wakes the thread that sleeps here, or the next one to come.
    void ring() {
      std::lock_guard const held(lock_);
      rung_ = true;
      come_.notify_one();
    }

  private:
    std::mutex lock_;
    std::condition_variable come_;
    bool rung_ = false;
  };
};

//! The time that is left of a wait. Every deadline of the library is a countdown.
//!
//! A wait looks at it once in a slice or more often. Where much more time has gone by between two
//! looks, the process was suspended (SIGSTOP, a debugger, a snapshot of the machine), and one slice
//! counts. So waits outlive a suspension of all processes of a run, however long it is.
template <class Clock = polling_clock>
class countdown {
public:
  //! Begins now. @param length any, the largest duration as well.
  explicit countdown(std::chrono::nanoseconds length, typename Clock::time_point now = Clock::now())
      : slice_(std::clamp(length / 16, shortest_slice, longest_slice)), left_(length),
        looked_(now) {}

  //! The longest that a wait may sleep until its next look.
  [[nodiscard]] std::chrono::nanoseconds slice() const noexcept {
    return std::clamp(left_, std::chrono::nanoseconds::zero(), slice_);
  }

  //! Looks, and says whether nothing is left.
  [[nodiscard]] bool is_over() { return is_over(Clock::now()); }
  //! The same where the caller has asked the clock.
  [[nodiscard]] bool is_over(typename Clock::time_point now) {
    std::chrono::nanoseconds const since = now - looked_;
    looked_ = now;
    left_ -= since > 2 * slice_ ? slice_ : since;
    return left_ <= std::chrono::nanoseconds::zero();
  }
  //! Looks, and says how much is left; not less than nothing.
  [[nodiscard]] std::chrono::nanoseconds left() {
    return is_over() ? std::chrono::nanoseconds::zero() : left_;
  }

private:
  static constexpr std::chrono::nanoseconds shortest_slice = std::chrono::milliseconds(1);
  // Short enough for a report within a second of any deadline.
  static constexpr std::chrono::nanoseconds longest_slice = std::chrono::milliseconds(200);

  std::chrono::nanoseconds slice_;
  std::chrono::nanoseconds left_;
  typename Clock::time_point looked_;
};

//! Asks until the answer is yes. Never blocks, so that a device that hangs cannot hang the host.
//!
//! @tparam Clock has now() and sleep_for(duration).
//! @param left of the time that this wait, and others with it, may take.
//! @param done is asked first, and then again and again; what it throws ends the wait.
//! @param between is called between two questions.
//! @return false when it is too late.
template <class Clock, class Done, class Between>
[[nodiscard]] bool poll_until(countdown<Clock>& left, Done&& done, Between between) {
  for (int polls = 0; !done(); ++polls) {
    between();
    if (left.is_over())
      return false;
    // Short waits are over in microseconds, long ones do not need a core that spins.
    if (polls > 64)
      Clock::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

} // namespace detail

} // namespace pipelining::inline v0_3
