// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Long searches: they end where the user has set a bound.

#include <pipe/view/append.hpp>

#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace examples {

//! A search that was given up. Its thread goes on until the program ends, which must not wait for
//! it: std::_Exit.
struct too_long : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! Runs `work`, on a thread of its own where there is a bound.
//!
//! @param name what takes long. @param most_seconds the bound; 0 for none.
//! @throws too_long after the bound, and whatever `work` throws.
template <class Result>
Result with_patience(std::string const& name, double most_seconds, std::function<Result()> work) {
  if (!(most_seconds > 0))
    return work();
  std::packaged_task<Result()> task(std::move(work));
  std::future<Result> future = task.get_future();
  std::thread thread(std::move(task));
  if (future.wait_for(std::chrono::duration<double>(most_seconds)) != std::future_status::ready) {
    thread.detach();
    std::string reason = name + " was given up after ";
    pipelining::append_number(reason, most_seconds);
    throw too_long(reason + " s; allow more with --limit-seconds, or ask for less");
  }
  thread.join();
  return future.get();
}

} // namespace examples
