// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Waiting for other ranks, but not for ever. Header for pipelining::cuda::patience.

#include <pipe/run/standing.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace pipelining::inline v0_1 {
namespace cuda {

namespace detail {

//! Thrown inside a runner to end the run on this rank.
struct stop {
  std::string reason;
  failure_cause cause = failure_cause::own;
};

} // namespace detail

//! @brief How long a rank waits for others, what ends its waiting early, and what a report says of
//! it then.
template <class Store, class Clock>
struct patience {
  Store& line;
  std::chrono::nanoseconds deadline;
  rank_standing& now; //!< what this rank does outside of the items of its program

  //! @brief Polls until `done()`. Sleeps between polls once it has waited for a while.
  //! @throws detail::stop past the deadline or when another rank has failed; what `done` throws.
  template <class Done>
  void wait(char const* what, Done done) const {
    auto const end = Clock::now() + deadline;
    for (int polls = 0; !done(); ++polls) {
      if (std::optional<std::string> reason = line.failure())
        throw detail::stop{std::move(*reason), failure_cause::told};
      if (Clock::now() >= end)
        throw detail::stop{std::string(what) + " took longer than the deadline",
                           failure_cause::deadline};
      if (polls > 64)
        Clock::sleep_for(std::chrono::microseconds(20));
    }
  }
};

} // namespace cuda
} // namespace pipelining::inline v0_1
