// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Threads that make a plan together. Header for pipelining::thread_workers.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace pipelining::inline v0_3 {

//! @brief Threads that verify, lower and prove the devices of a plan side by side:
//! `lower(table, sizes, {}, thread_workers{})`. The plan is, byte for byte, that of one thread.
//!
//! They start with the first work, and wait for more until this is destroyed. One thread at a time
//! gives them work. Size functions are called from several threads at once.
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
    auto const work = [&](int i) noexcept {
      try {
        part(i);
      } catch (...) {
        thrown[static_cast<std::size_t>(i)] = std::current_exception();
      }
    };
    while (static_cast<int>(threads_.size()) + 1 < parts)
      threads_.emplace_back(
        [this, i = static_cast<int>(threads_.size()) + 1, turn = turn_.load()] { serve(i, turn); });
    if (parts > 1)
      begin(
        parts, [](void const* of, int i) { (*static_cast<decltype(work)*>(of))(i); }, &work);
    if (parts > 0)
      work(0);
    for (int left = busy_; left > 0; left = busy_)
      wait(busy_, left);
    for (std::exception_ptr const& each : thrown)
      if (each)
        std::rethrow_exception(each);
  }

  ~thread_workers() {
    begin(0, nullptr, nullptr);
    for (std::thread& each : threads_)
      each.join();
  }

private:
  using call = void (*)(void const* work, int part);

  void begin(int parts, call what, void const* work) const noexcept {
    parts_ = parts;
    what_ = what;
    work_ = work;
    busy_ = static_cast<int>(threads_.size());
    turn_ += 1;
    turn_.notify_all();
  }
  // What a further thread does: its part of one work after the other.
  void serve(int part, int turn) const noexcept {
    for (bool ends = false; !ends; ++turn) {
      wait(turn_, turn);
      ends = what_ == nullptr;
      if (part < parts_)
        what_(work_, part);
      if (busy_.fetch_sub(1) == 1)
        busy_.notify_one();
    }
  }
  // The next work comes soon as a rule, before a thread that sleeps would be awake.
  static void wait(std::atomic<int> const& number, int old) noexcept {
    for (int i = 0; i < 500 && number == old; ++i)
      std::this_thread::yield();
    number.wait(old);
  }

  int count_;
  mutable std::vector<std::thread> threads_{};
  mutable std::atomic<int> turn_ = 0; // the work that is given
  mutable std::atomic<int> busy_ = 0; // threads that have not ended it
  mutable int parts_ = 0;
  mutable call what_ = nullptr;
  mutable void const* work_ = nullptr;
};

} // namespace pipelining::inline v0_3
#endif
