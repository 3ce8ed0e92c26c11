// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Reports that ranks give each other and the user when a run over NCCL fails. Header for
//! pipelining::cuda::failure_report.

#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/nccl_error.cuh>
#include <pipe/cuda/rank_wait.cuh>
#include <pipe/run/clock.hpp>
#include <pipe/run/error.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::cuda::detail {

//! Why a rank has stopped.
struct stop_reason {
  rooms::failure_cause cause = rooms::failure_cause::own; //!< whose failure it was
  std::string text{};  //!< without the rank; of another rank: all that it has reported
  bool thrown = false; //!< by a stage or a library: the exception is to be nested
};

//! Understands the exception in flight. @pre called from a handler.
template <run_store Store>
[[nodiscard]] stop_reason why_stopped(Store& line) {
  try {
    throw;
  } catch (detail::run_stop const& stopped) {
    return {stopped.cause, stopped.reason};
  } catch (std::exception const& thrown) {
    // A wait in the store ends with the reason of another rank, and what comes after that reason is
    // its consequence.
    if (std::optional<std::string> const reason = line.failure())
      return {rooms::failure_cause::told, *reason};
    rooms::failure_cause cause = rooms::failure_cause::own;
    if (dynamic_cast<nccl_error const*>(&thrown) != nullptr)
      cause = rooms::failure_cause::library;
    if (dynamic_cast<deadline_error const*>(&thrown) != nullptr)
      cause = rooms::failure_cause::deadline;
    return {cause, thrown.what(), true};
  } catch (...) {
    return {rooms::failure_cause::own, "an exception of a type that is no std::exception", true};
  }
}

//! One rank's part in a report: it tells the others why it stopped and where it stood, hears
//! where they stood, and says with which rank it began.
template <run_store Store, class Clock>
class failure_report {
public:
  //! @param name tells the runs of one store apart. @param patience the longest that others may
  //! take to answer.
  failure_report(Store& line, std::string const& name, int rank, std::chrono::nanoseconds patience)
      : line_(line), name_(name), rank_(rank), patience_(patience) {}

  //! Tells the others. To be called once, before anything is ended that they may wait for.
  //! @param what this rank could not do: "failed", "could not connect"; where `why` says nothing,
  //! all that is to be said.
  //! @param where this rank stood.
  void tell(char const* what, stop_reason const& why, rooms::rank_standing where) {
    where.cause = why.cause;
    own_line_ = "\n  rank " + std::to_string(rank_) + ' ' + where.text;
    rooms::tell_standing(line_, name_, rank_, where);
    reason_ = why.text;
    if (why.cause == rooms::failure_cause::told)
      return;
    reason_ = "rank " + std::to_string(rank_) + ' ' + what +
              (why.text.empty() ? std::string() : ": " + why.text) + own_line_;
    line_.abort(reason_);
    reason_ = rooms::first_failure<Clock>(line_, patience_).value_or(reason_);
  }

  //! The whole report, once the others have had the time to answer.
  //! @param stuck streams or communicators of this rank could not be ended.
  //! @param world_ranks [devices] the numbers of the ranks in the whole run; empty: the same.
  [[nodiscard]] run_error made(bool stuck, std::vector<int> const& world_ranks) const {
    int const named = rooms::rank_named_in(reason_);
    rooms::failure_origin const origin = rooms::trace_origin(line_, name_, named, patience_);
    std::string text = "nccl: " + reason_ + describe(origin);
    if (text.find("\n  rank " + std::to_string(rank_) + ' ') == std::string::npos)
      text += own_line_;
    if (stuck)
      text += "\n  its streams are still busy; end the process";
    for (std::size_t device = 0; device < world_ranks.size(); ++device) {
      text += device > 0 ? ", " : "\n  in the whole run: ";
      text += "rank " + std::to_string(device) + " is " + std::to_string(world_ranks[device]);
    }
    return {text, origin.rank < 0 ? rank_ : origin.rank};
  }

private:
  Store& line_;
  std::string const& name_;
  int rank_;
  std::chrono::nanoseconds patience_;
  std::string reason_{};
  std::string own_line_{};
};

} // namespace pipelining::inline v0_3::cuda::detail
