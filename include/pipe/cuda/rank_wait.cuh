// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Waiting for other ranks, but not for ever. Header for pipelining::cuda::rank_wait.

#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cuda/error.cuh>
#include <pipe/run/clock.hpp>
#include <pipe/run/polling.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace pipelining::inline v0_3::cuda::detail {

using rooms::run_stop;

//! The sum of two limits, of which the first may be the largest duration.
[[nodiscard]] constexpr std::chrono::nanoseconds both(std::chrono::nanoseconds one,
                                                      std::chrono::nanoseconds other) {
  return std::min(one, std::chrono::nanoseconds::max() - other) + other;
}

//! The stop after a wait that has taken too long.
[[nodiscard]] inline run_stop too_late(char const* what) {
  return {std::string(what) + " took longer than the deadline", rooms::failure_cause::deadline};
}

//! Waits of a rank for others: their deadline, reasons to end early, and words for a report then.
template <class Store, class Clock>
struct rank_wait {
  Store& line;                       //!< where others tell that they have stopped
  std::chrono::nanoseconds deadline; //!< of one wait
  rooms::rank_standing& now;         //!< what this rank does outside of the items of its program
  //! Time left for all waits of a step together; none outside of a step.
  std::optional<rooms::countdown<Clock>>& step;

  //! Polls until `done()`. Sleeps between polls once it has waited for a while.
  //! @throws detail::run_stop past the deadline or when another rank has failed; what `done`
  //! throws.
  template <class Done>
  void wait(char const* what, Done done) const {
    rooms::countdown<Clock> left(deadline);
    bool const in_time = rooms::poll_until<Clock>(left, done, [&] {
      if (std::optional<std::string> reason = line.failure())
        throw detail::run_stop{std::move(*reason), rooms::failure_cause::told};
      if (step && step->is_over())
        throw detail::too_late(what);
    });
    if (!in_time)
      throw detail::too_late(what);
  }
};

} // namespace pipelining::inline v0_3::cuda::detail
