// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What takes long says how far it is.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>

namespace examples {

//! True where the terminal takes text alone.
[[nodiscard]] inline bool is_dumb_terminal() {
  char const* const kind = std::getenv("TERM");
  return kind != nullptr && std::string_view(kind) == "dumb";
}

//! The clock and the line on stderr. What was said last is written by a thread of its own, so that
//! a step that takes long does not do so in silence.
class progress_line {
public:
  //! @param seconds until no time is left. @param first when something is written first
  //! @param pause between two lines of a log
  explicit progress_line(double seconds, double first = 2, double pause = 10)
      : seconds_(seconds), first_(first), pause_(pause) {}
  progress_line(double seconds, std::string what) : progress_line(seconds) { say(std::move(what)); }
  progress_line(progress_line const&) = delete;
  progress_line& operator=(progress_line const&) = delete;
  ~progress_line() { end(); }

  [[nodiscard]] double passed() const {
    return std::chrono::duration<double>(clock::now() - start_).count();
  }
  [[nodiscard]] bool time_left() const { return passed() < seconds_; }
  //! From the first time on: on a terminal a line that the next one overwrites. In a log, or on a
  //! terminal that cannot overwrite, a line after each pause, and none before the first.
  void say(std::string what) {
    std::lock_guard const lock(mutex_);
    what_ = std::move(what);
    if (!writer_.joinable())
      writer_ = std::thread([this] { write(); });
  }
  void end() {
    if (!writer_.joinable())
      return;
    {
      std::lock_guard const lock(mutex_);
      stop_ = true;
    }
    ended_.notify_all();
    writer_.join();
    stop_ = false;
    if (wrote_ && overwrites())
      std::fputs("\r\x1b[K", stderr);
    wrote_ = false;
  }

private:
  static bool overwrites() { return isatty(STDERR_FILENO) != 0 && !is_dumb_terminal(); }

  using clock = std::chrono::steady_clock;

  void write() {
    bool const terminal = overwrites();
    double const pause = terminal ? 0.2 : pause_;
    std::unique_lock lock(mutex_);
    for (double next = terminal ? first_ : std::max(first_, pause);; next = passed() + pause) {
      auto const when =
        start_ + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(next));
      if (ended_.wait_until(lock, when, [this] { return stop_; }))
        return;
      std::fprintf(
        stderr, terminal ? "\r\x1b[K%.1f s: %s" : "%.1f s: %s\n", passed(), what_.c_str());
      std::fflush(stderr);
      wrote_ = true;
    }
  }

  clock::time_point start_ = clock::now();
  double seconds_;
  double first_;
  double pause_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::string what_; // these are guarded
  bool stop_ = false;
  bool wrote_ = false; // by the writer, until it has ended
  std::thread writer_;
};

} // namespace examples
