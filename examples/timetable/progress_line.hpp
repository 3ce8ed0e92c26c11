// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What takes long says how far it is.

#include <chrono>
#include <cstdio>
#include <string>
#include <unistd.h>

namespace examples {

//! The clock and the line on stderr.
class progress_line {
public:
  //! @param seconds until no time is left
  explicit progress_line(double seconds) : seconds_(seconds) {}

  [[nodiscard]] double passed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  [[nodiscard]] bool time_left() const { return passed() < seconds_; }
  //! From the second second on: on a terminal a line that the next one overwrites, elsewhere a line from time to time.
  void say(std::string const& what) {
    double const now = passed();
    if (now < next_)
      return;
    bool const terminal = isatty(STDERR_FILENO) != 0;
    next_ = terminal ? now + 0.2 : now * 2;
    std::fprintf(stderr, terminal ? "\r\x1b[K%.1f s: %s" : "%.1f s: %s\n", now, what.c_str());
    std::fflush(stderr);
    said_ = terminal;
  }
  void end() const {
    if (said_)
      std::fputs("\r\x1b[K", stderr);
  }

private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double seconds_;
  double next_ = 2;
  bool said_ = false;
};

} // namespace examples
