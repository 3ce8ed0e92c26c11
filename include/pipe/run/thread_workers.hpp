// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Threads that make a plan together. Header for pipelining::thread_workers.

#include <pipe/config.hpp>

#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Threads that lower and prove the devices of a plan side by side:
//! `lower(table, sizes, {}, thread_workers{})`. The plan is, byte for byte, that of one thread.
//!
//! Size functions are called from several threads at once.
class thread_workers {
public:
  //! @param count threads, the caller's among them; 0: one for each core.
  explicit thread_workers(int count = 0) noexcept
      : count_(count > 0 ? count : static_cast<int>(std::thread::hardware_concurrency())) {}

  //! @brief How many there are, 1 at least.
  [[nodiscard]] int count() const noexcept { return count_ > 0 ? count_ : 1; }

  //! @brief Calls `part(i)` for every i in [0, parts), each in a thread of its own, the first in
  //! the caller's.
  //! @throws what the first part that throws does. std::system_error where the machine gives no
  //! thread.
  template <class Part>
  void run(int parts, Part const& part) const {
    std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(parts));
    auto const work = [&](std::size_t i) {
      try {
        part(static_cast<int>(i));
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    };
    joined_threads others;
    for (std::size_t i = 1; i < thrown.size(); ++i)
      others.all.emplace_back(work, i);
    if (!thrown.empty())
      work(0);
    others.join();
    for (std::exception_ptr const& each : thrown)
      if (each)
        std::rethrow_exception(each);
  }

private:
  // Where one cannot be started, those before it end first.
  struct joined_threads {
    std::vector<std::thread> all{};

    joined_threads() = default;
    joined_threads(joined_threads const&) = delete;
    joined_threads& operator=(joined_threads const&) = delete;
    ~joined_threads() { join(); }
    void join() {
      for (std::thread& each : all)
        if (each.joinable())
          each.join();
    }
  };

  int count_;
};

} // namespace pipelining::inline v0_3
