// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Waits for MPI that end with the run. Header for pipelining::detail::mpi_wait.

#include <pipe/cluster/failure_origin.hpp>
#include <pipe/cluster/store.hpp>

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace pipelining::inline v0_3::detail {

//! Thrown to leave a program. Unless it was told, this rank is one to tell the others.
struct mpi_stop {
  std::string reason;
  failure_cause cause;
};

//! The words of MPI for an error code.
[[nodiscard]] inline std::string mpi_words(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  (void)MPI_Error_string(code, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

//! Waits in which a dead peer, another rank's failure and the deadline all end the wait.
template <class Clock>
struct mpi_wait {
  basic_store<Clock>& line;
  std::chrono::nanoseconds deadline;
  typename Clock::time_point next_look{};
  std::atomic<unsigned> pulse = 0; // looks so far: a sign of life for the watchdog

  //! Looks at the store, but at most once in a millisecond.
  //! @throws mpi_stop when some rank has failed.
  void look(typename Clock::time_point now) {
    if (now < next_look)
      return;
    next_look = now + std::chrono::milliseconds(1);
    pulse.store(pulse.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (auto reason = line.failure())
      throw mpi_stop{std::move(*reason), failure_cause::told};
  }

  //! Tests a request until it is done: eagerly for a millisecond, then with short sleeps.
  //! @return an MPI error code, or nothing when the deadline has passed.
  //! @throws mpi_stop when some rank has failed.
  std::optional<int> wait(MPI_Request& request, MPI_Status& status) {
    int done = 0;
    if (int const code = MPI_Test(&request, &done, &status); done != 0 || code != MPI_SUCCESS)
      return code;
    auto const start = Clock::now();
    for (countdown<Clock> left(deadline, start);;) {
      if (int const code = MPI_Test(&request, &done, &status); done != 0 || code != MPI_SUCCESS)
        return code;
      auto const now = Clock::now();
      look(now);
      if (left.is_over(now))
        return std::nullopt;
      if (now - start < std::chrono::milliseconds(1))
        std::this_thread::yield();
      else
        Clock::sleep_for(std::chrono::microseconds(50));
    }
  }

  //! The first failure of the run, once the store knows of one; asked for when a message has failed
  //! and the store may say why.
  std::optional<std::string> verdict() {
    for (countdown<Clock> left(std::chrono::seconds(1)); !left.is_over();) {
      if (auto reason = line.failure())
        return reason;
      Clock::sleep_for(std::chrono::milliseconds(1));
    }
    return std::nullopt;
  }
};

} // namespace pipelining::inline v0_3::detail
