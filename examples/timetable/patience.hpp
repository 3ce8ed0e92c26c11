// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Long searches: they say that they go on, and end where the user has set a bound.

#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

namespace examples {

//! A search that was given up. Its thread goes on until the program ends, which must not wait for
//! it: std::_Exit.
struct too_long : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! How long to wait, and what to say meanwhile.
struct patience {
  double most_seconds = 0;  //!< the bound; 0 for none
  double first_seconds = 0; //!< when it is first said that the search goes on; then every second
  std::function<void(double)> say = {}; //!< told the seconds that have passed
  std::function<void()> done = {};      //!< called in the end where anything was said
};

//! Says on stderr that a search goes on, on one line of a terminal, every second from the second
//! one on; nothing elsewhere.
[[nodiscard]] inline patience patience_of(std::string const& name, double most_seconds) {
  constexpr double for_ever = 1e9;
  return {most_seconds,
          isatty(STDERR_FILENO) != 0 ? 2 : for_ever,
          [name](double seconds) {
            std::fprintf(stderr,
                         "\rtimetable: %s: searching for %.0f s; --limit-seconds N bounds it",
                         name.c_str(),
                         seconds);
            std::fflush(stderr);
          },
          [] { std::fputs("\r\x1b[K", stderr); }};
}

//! Runs `work` on a thread of its own.
//!
//! @param name what takes long.
//! @throws too_long behind the bound, and whatever `work` throws.
template <class Result>
Result with_patience(std::string const& name, patience const& how, std::function<Result()> work) {
  using namespace std::chrono;
  std::packaged_task<Result()> task(std::move(work));
  std::future<Result> future = task.get_future();
  std::thread thread(std::move(task));
  auto const start = steady_clock::now();
  auto const passed = [start] { return duration<double>(steady_clock::now() - start).count(); };
  bool const bounded = how.most_seconds > 0;
  double next = how.first_seconds;
  bool said = false;
  for (;;) {
    double const until = bounded && how.most_seconds < next ? how.most_seconds : next;
    double const wait = until - passed();
    if (future.wait_for(duration<double>(wait > 0 ? wait : 0)) == std::future_status::ready)
      break;
    double const now = passed();
    if (bounded && now >= how.most_seconds) {
      if (said)
        how.done();
      thread.detach();
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%g", how.most_seconds);
      throw too_long(name + " was given up after " + seconds +
                     " s; allow more with --limit-seconds, or ask for less");
    }
    if (now < next)
      continue;
    how.say(now);
    said = true;
    next = now + 1;
  }
  thread.join();
  if (said)
    how.done();
  return future.get();
}

} // namespace examples
