// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A thread that watches steps which run on the caller's own thread. Header for
//! pipelining::detail::watchdog.

#include <pipe/run/clock.hpp>
#include <pipe/run/error.hpp>
#include <pipe/run/polling.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace pipelining::inline v0_3 {

namespace detail {

//! States of the watched thread. A step that is spoken of does not end, so its plan stays.
enum class watched_state { away, in_step, spoken_of };

//! Data that the watching and the watched thread share.
template <class Clock>
struct watch_post {
  std::chrono::nanoseconds deadline{};
  std::function<void()> still{};     // called once in a slice of a call that lasts
  std::function<std::string()> hung; // tells others, and gives the sentence for stderr
  std::atomic<watched_state> state = watched_state::away;
  std::atomic<bool> dismissed = false;
  typename Clock::doorbell bell{};
};

//! Ends the process when a step gives no sign of life for a deadline.
template <class Clock>
class watchdog {
public:
  //! While it lives, the step is watched.
  class watch {
  public:
    explicit watch(watchdog& by) : state_(by.post_->state) {
      state_.store(watched_state::in_step, std::memory_order_release);
    }
    watch(watch const&) = delete;
    watch& operator=(watch const&) = delete;
    ~watch() {
      for (auto was = watched_state::in_step; !state_.compare_exchange_weak(
             was, watched_state::away, std::memory_order_acq_rel, std::memory_order_relaxed);
           was = watched_state::in_step)
        std::this_thread::yield();
    }

  private:
    std::atomic<watched_state>& state_;
  };

  //! @param pulse changes while the watched thread is in the library; outlives this.
  //! @param still is called by the watching thread, once in a slice in which there was no sign of
  //! life. @param hung the same, before the process ends; returns the sentence for stderr.
  //! @throws std::system_error when the machine gives no thread.
  watchdog(std::chrono::nanoseconds deadline,
           std::atomic<unsigned> const& pulse,
           std::function<void()> still,
           std::function<std::string()> hung)
      : post_(std::make_unique<watch_post<Clock>>()) {
    // A wait inside of a hook, as long as the deadline, ends before that and says more.
    constexpr std::chrono::nanoseconds grace = std::chrono::milliseconds(400);
    post_->deadline = std::min(deadline, std::chrono::nanoseconds::max() - grace) + grace;
    post_->still = std::move(still);
    post_->hung = std::move(hung);
    thread_ = Clock::start([&post = *post_, &pulse] { serve(post, pulse); });
  }
  watchdog(watchdog const&) = delete;
  watchdog& operator=(watchdog const&) = delete;
  ~watchdog() {
    post_->dismissed.store(true, std::memory_order_relaxed);
    post_->bell.ring();
    thread_.join();
  }

private:
  static void serve(watch_post<Clock>& post, std::atomic<unsigned> const& pulse) {
    countdown<Clock> left(post.deadline);
    for (unsigned seen = pulse.load(std::memory_order_relaxed);;) {
      post.bell.wait_until(Clock::now() + left.slice());
      if (post.dismissed.load(std::memory_order_relaxed))
        return;
      unsigned const now = pulse.load(std::memory_order_relaxed);
      auto was = watched_state::in_step;
      if (now != std::exchange(seen, now) ||
          !post.state.compare_exchange_strong(
            was, watched_state::spoken_of, std::memory_order_acquire, std::memory_order_relaxed)) {
        left = countdown<Clock>(post.deadline);
        continue;
      }
      if (left.is_over()) {
        std::string const sentence = post.hung() + "; this process ends with status " +
                                     std::to_string(run_error::hung_status) + '\n';
        (void)std::fputs(sentence.c_str(), stderr);
        (void)std::fflush(stderr);
        // Others have time to hear of it and to report, before a launcher ends them.
        Clock::sleep_for(std::chrono::milliseconds(500));
        std::_Exit(run_error::hung_status);
      }
      post.still();
      post.state.store(watched_state::in_step, std::memory_order_release);
    }
  }

  std::unique_ptr<watch_post<Clock>> post_;
  typename Clock::thread thread_;
};

//! Watches nothing. With a clock that is not the machine's, what models the machine ends what
//! hangs.
struct no_watchdog {
  struct watch {
    explicit watch(no_watchdog const&) noexcept {}
    ~watch() {} // not trivial, so that an object for its scope alone is no unused variable
  };
  no_watchdog(std::chrono::nanoseconds,
              std::atomic<unsigned> const&,
              std::function<void()> const&,
              std::function<std::string()> const&) noexcept {}
};

//! The watchdog of runners with that clock.
template <class Clock>
using watchdog_for = std::
  conditional_t<std::derived_from<Clock, std::chrono::steady_clock>, watchdog<Clock>, no_watchdog>;

} // namespace detail

} // namespace pipelining::inline v0_3
