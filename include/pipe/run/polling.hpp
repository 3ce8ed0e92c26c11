// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The clock of runners that poll. Header for pipelining::detail::polling_clock.

#include <pipe/run/clock.hpp>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace pipelining::inline v0_3::detail {

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

//! Asks until the answer is yes. Never blocks, so that a device that hangs cannot hang the host.
//!
//! @tparam Clock has now() and sleep_for(duration).
//! @param left of the time that this wait, and others with it, may take.
//! @param done is asked first, and then again and again; what it throws ends the wait.
//! @param between is called between two questions.
//! @return false when it is too late.
template <class Clock, class Done, class Between = void (*)()>
[[nodiscard]] bool poll_until(
  countdown<Clock>& left, Done&& done, Between between = [] {}) {
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

} // namespace pipelining::inline v0_3::detail
