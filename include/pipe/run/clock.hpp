// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The clock of runners that poll. Header for pipelining::polling_clock.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace pipelining::inline v0_2 {

//! @brief The steady clock of the machine, a sleep between polls, and the threads that runners
//! start beside their own. Tests give runners a clock of their own.
struct polling_clock : std::chrono::steady_clock {
  using thread = std::thread; //!< what `start` returns

  //! Gives the processor away for that long.
  static void sleep_for(std::chrono::nanoseconds length) { std::this_thread::sleep_for(length); }

  //! @brief Starts a thread.
  //! @throws std::system_error when the machine gives none.
  template <class Work>
  [[nodiscard]] static thread start(Work work) {
    return thread(std::move(work));
  }

  //! @brief Where one thread sleeps until another one rings or a time has come.
  class doorbell {
  public:
    //! @brief Returns at once if it was rung since the last return. time_point::max() is never.
    void wait_until(time_point when) {
      std::unique_lock held(lock_);
      auto const rung = [this] { return rung_; };
      if (when == time_point::max())
        come_.wait(held, rung);
      else
        come_.wait_until(held, when, rung);
      rung_ = false;
    }
    //! @brief Wakes the thread that sleeps here, or the next one to come.
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

} // namespace pipelining::inline v0_2
