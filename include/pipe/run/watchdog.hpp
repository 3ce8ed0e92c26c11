// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A thread that watches steps which run on the caller's own thread. Header for
//! pipelining::hung_status and pipelining::detail::watchdog.

#include <pipe/run/clock.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace pipelining::inline v0_3 {

//! @brief The exit status of a process that ended because a stage or a hook has not returned.
//!
//! Where passes run on the caller's own thread nothing else can end one: an exception cannot reach
//! it, and a thread cannot be taken from its function.
inline constexpr int hung_status = 86;

namespace detail {

//! What the watching and the watched thread share.
template <class Clock>
struct watch_post {
  std::chrono::nanoseconds deadline{};
  std::function<void()> still{};     // called once in a slice of a call that lasts
  std::function<std::string()> hung; // tells others, and gives the sentence for stderr
  std::mutex turn{};
  bool in_step = false;   // under turn
  bool dismissed = false; // under turn
  typename Clock::doorbell bell{};
};

//! Ends the process when a step gives no sign of life for a deadline.
template <class Clock>
class watchdog {
public:
  //! While it lives, the step is watched. Costs two locks that nobody else wants.
  class watch {
  public:
    explicit watch(watchdog& by) : by_(by) { by_.set_in_step(true); }
    watch(watch const&) = delete;
    watch& operator=(watch const&) = delete;
    ~watch() { by_.set_in_step(false); }

  private:
    watchdog& by_;
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
    {
      std::lock_guard const held(post_->turn);
      post_->dismissed = true;
    }
    post_->bell.ring();
    thread_.join();
  }

private:
  void set_in_step(bool now) {
    std::lock_guard const held(post_->turn);
    post_->in_step = now;
  }

  static void serve(watch_post<Clock>& post, std::atomic<unsigned> const& pulse) {
    countdown<Clock> left(post.deadline);
    for (unsigned seen = pulse.load(std::memory_order_relaxed);;) {
      post.bell.wait_until(Clock::now() + left.slice());
      std::lock_guard const held(post.turn); // the step cannot end while it is spoken of
      if (post.dismissed)
        return;
      unsigned const now = pulse.load(std::memory_order_relaxed);
      if (!post.in_step || now != std::exchange(seen, now)) {
        left = countdown<Clock>(post.deadline);
        continue;
      }
      if (left.is_over()) {
        std::string const sentence =
          post.hung() + "; this process ends with status " + std::to_string(hung_status) + '\n';
        (void)std::fputs(sentence.c_str(), stderr);
        (void)std::fflush(stderr);
        // Others have time to hear of it and to report, before a launcher ends them.
        Clock::sleep_for(std::chrono::milliseconds(500));
        std::_Exit(hung_status);
      }
      post.still();
    }
  }

  std::unique_ptr<watch_post<Clock>> post_;
  typename Clock::thread thread_;
};

} // namespace detail

} // namespace pipelining::inline v0_3
