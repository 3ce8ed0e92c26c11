// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The machine that a program runs on: a GPU, or the stand-in. Which one is decided by the
//! linker: on_gpu.cpp or on_standin.cpp.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace machine {

//! @brief The time of that machine, for runners: real, or virtual on the stand-in.
struct clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<clock, duration>;
  static constexpr bool is_steady = true;
  static time_point now();
  static void sleep_for(duration length);

  //! A thread of that machine, as polling_clock has them.
  class thread {
  public:
    void join();
    void detach();
    [[nodiscard]] bool joinable() const noexcept { return joinable_; }

  private:
    friend struct clock;
    struct real;
    std::shared_ptr<real> real_{};
    bool joinable_ = false;
  };
  static thread start(std::function<void()> work);

  class doorbell {
  public:
    doorbell();
    void wait_until(time_point when);
    void ring();

  private:
    struct real;
    std::shared_ptr<real> real_;
  };
};

//! @brief Why nothing can run here, as a sentence; "" when they can.
std::string obstacle();
//! @brief True on the stand-in, where sizes are small.
bool on_model();
//! @brief A fresh machine, where the machine is a model.
void begin();
//! @brief The rules that the model has seen broken since begin(), one per line; "" on a GPU.
std::string findings();

//! @brief For tests, see main.cpp: notes that something could not be tested here. The program then
//! ends with 77, which CTest shows as skipped.
void skip(std::string const& sentence);

} // namespace machine
