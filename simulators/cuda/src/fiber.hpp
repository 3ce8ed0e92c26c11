// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Threads that run one at a time and hand over by name, without the kernel where that can
//! be.

#include <atomic>
#include <functional>
#include <memory>
#include <semaphore>

namespace standin::detail {

//! @brief A thread with its own stack and thread-local variables that runs while another one has
//! resumed it.
//!
//! On x86-64 it is a kernel thread that has been put to sleep for good and whose registers, stack
//! and thread-local storage the one that resumes it goes on with: 10 ns, no system call. So
//! exceptions in flight, doctest's contexts and everything else thread-local are its own.
//! Elsewhere, under sanitizers and with STANDIN_FIBERS=kernel in the environment the kernel
//! switches.
class fiber {
public:
  //! @brief The one that calls, which may be a thread that is nobody's fiber.
  static fiber& current();
  //! @brief True where no kernel switches.
  static bool switch_without_kernel();

  //! @brief One that runs the body when it is first resumed; the body says who goes on when it has
  //! ended.
  //! @pre Resumed, from then on, only by fibers of the calling kernel thread.
  static fiber& make(std::function<fiber&()> body);
  //! @brief Lets another one run it, from here on. @pre Not the current one.
  void resume();
  //! @brief Keeps it for the next `make`; one whose body has not ended never goes on.
  static void end(fiber* ended);

  fiber() = default;
  fiber(fiber const&) = delete;
  fiber& operator=(fiber const&) = delete;

private:
  static void run(fiber& self) noexcept;

  std::atomic<void*> stack_{nullptr}; //!< where its registers are, while it does not run
  std::binary_semaphore resumed_{0};  //!< instead, where the kernel switches
  std::function<fiber&()> body_{};
  bool ended_ = false;
};

struct end_fiber {
  void operator()(fiber* ended) const { fiber::end(ended); }
};
using fiber_ptr = std::unique_ptr<fiber, end_fiber>;

} // namespace standin::detail
