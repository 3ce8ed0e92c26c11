// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Launches graphs next to the thread that waits for them. Header for
//! pipelining::cuda::graph_launcher.

#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/plan/plan.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/polling.hpp>

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>

namespace pipelining::inline v0_3::cuda::detail {

//! Refuses plans that decide on the host, in the middle of an iteration, whether it goes on:
//! for runners that launch an iteration as a whole.
//! @throws std::invalid_argument
inline void refuse_validation(plan const& work) {
  if (work.validation != step_validation::at_once)
    throw std::invalid_argument(
      "run: a CUDA graph is launched as a whole, and cannot ask the host in the middle of an "
      "iteration whether the optimizer's step of the one before was right; run without a graph, or "
      "lower the plan with step_validation::at_once");
}

//! A thread that launches graphs, one at a time, for a runner that waits with a deadline.
//!
//! A launch waits while the queue of its GPU is full, and for ever where the GPU has not begun a
//! graph with more nodes than the queue holds. Nothing ends such a launch from outside, so it is
//! abandoned with its thread. Until a launch returns, its runner makes no call of CUDA, which
//! could wait for the same.
template <class Clock>
class graph_launcher {
  struct shared;

public:
  //! @param gpu of the graphs.
  //! @throws std::system_error when the machine gives no thread.
  explicit graph_launcher(int gpu) : shared_(std::make_shared<shared>()) {
    shared_->gpu = gpu;
    thread_ = Clock::start([all = shared_] { serve(*all); });
  }
  graph_launcher(graph_launcher const&) = delete;
  graph_launcher& operator=(graph_launcher const&) = delete;
  ~graph_launcher() {
    rooms::countdown<Clock> none(std::chrono::nanoseconds::zero());
    (void)end(none);
  }

  //! Launches a graph on a stream, and records an event after it.
  //! @pre idle, and `end` has not been called. What is given lives until the launch has returned.
  void begin(graph const& what, cudaStream_t on, event& behind) {
    shared_->what = &what;
    shared_->on = on;
    shared_->behind = &behind;
    shared_->doing = deed::launch;
    shared_->bell.ring();
  }
  //! True when no launch is in progress.
  [[nodiscard]] bool idle() const noexcept { return shared_->doing != deed::launch; }
  //! Throws what the last launch has thrown, once. @pre idle.
  void check() {
    if (std::exception_ptr const failure = std::exchange(shared_->failure, nullptr))
      std::rethrow_exception(failure);
  }

  //! Ends the thread, if need be after the launch in progress.
  //! @param left of the time that this may take, with what else looks at it.
  //! @return false when that has not returned by then: it is abandoned, and what it uses must
  //! live on.
  [[nodiscard]] bool end(rooms::countdown<Clock>& left) {
    if (!thread_.joinable())
      return ended_; // asked before
    ended_ = rooms::poll_until<Clock>(left, [this] { return idle(); });
    leave();
    if (ended_)
      thread_.join();
    else
      thread_.detach();
    return ended_;
  }

private:
  enum class deed { nothing, launch, leave };

  // Of both threads; the last of them frees it.
  struct shared {
    int gpu = 0;
    std::atomic<deed> doing{deed::nothing};
    graph const* what = nullptr; // these are of the launch in progress, or of nobody
    cudaStream_t on = nullptr;
    event* behind = nullptr;
    std::exception_ptr failure{};
    typename Clock::doorbell bell{};
  };

  void leave() {
    shared_->doing = deed::leave;
    shared_->bell.ring();
  }

  static void serve(shared& all) {
    bool current = false; // a thread begins on GPU 0
    for (;;) {
      while (all.doing == deed::nothing)
        all.bell.wait_until(Clock::time_point::max());
      if (all.doing == deed::leave)
        return;
      try {
        if (!std::exchange(current, true))
          cuda::check(cudaSetDevice(all.gpu), "cudaSetDevice");
        all.what->launch(all.on);
        // Here, since it may find the queue full that the graph has just left room in.
        all.behind->record(all.on);
      } catch (...) {
        all.failure = std::current_exception();
      }
      deed launched = deed::launch;
      if (!all.doing.compare_exchange_strong(launched, deed::nothing))
        return; // abandoned
    }
  }

  std::shared_ptr<shared> shared_;
  typename Clock::thread thread_;
  bool ended_ = false;
};

} // namespace pipelining::inline v0_3::cuda::detail
