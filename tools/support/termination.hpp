// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief SIGTERM as a wish that a program looks at, instead of its end, and SIGXFSZ and SIGPIPE as
//! errors.

#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

namespace example {

namespace detail {
inline volatile std::sig_atomic_t was_asked_to_end = 0;
}

//! From now on SIGTERM ends nothing: a launcher that ends all processes when one has failed lets
//! them report first.
inline void keep_termination_for_later() {
  (void)std::signal(SIGTERM, [](int) { detail::was_asked_to_end = 1; });
}

//! From now on a file that grows beyond the limit of the process (ulimit -f) is the error of a
//! call, which is reported, and no signal that ends the process without a word.
inline void report_files_beyond_limits() {
  (void)std::signal(SIGXFSZ, SIG_IGN);
}

//! The same of output that nobody reads any more: a training does not end without a word because
//! its reader has. Not for processes of a launcher, which ends them by their pipes.
inline void report_output_without_reader() {
  (void)std::signal(SIGPIPE, SIG_IGN);
}

//! True when this process has had a SIGTERM, and not because the run has failed: launchers send it
//! to all processes when one has died, a moment before or after the store knows why.
template <class Store>
[[nodiscard]] bool asked_to_end(Store& line) {
  if (detail::was_asked_to_end == 0)
    return false;
  auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (!line.failure() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return !line.failure();
}

} // namespace example
