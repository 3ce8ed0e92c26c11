// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The deadlines of all waits. Header for pipelining::detail::countdown.

#include <algorithm>
#include <chrono>

namespace pipelining::inline v0_3::detail {

//! The time that is left of a wait. Every deadline of the library is a countdown.
//!
//! A wait looks at it once in a slice or more often. Where much more time has gone by between two
//! looks, the process was suspended (SIGSTOP, a debugger, a snapshot of the machine), and one slice
//! counts. So waits outlive a suspension of all processes of a run, however long it is.
template <class Clock>
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

} // namespace pipelining::inline v0_3::detail
