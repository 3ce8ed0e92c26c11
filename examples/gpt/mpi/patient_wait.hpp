// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief How a rank waits for messages that are not the runner's.

#include <pipe/cluster/store.hpp>
#include <pipe/run/clock.hpp>

#include <mpi.h>

#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace gpt {

namespace pp = pipelining;

//! How a rank waits for what the runner knows nothing of.
struct patient_wait {
  pp::store* line = nullptr; //!< tells whether somebody has failed
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  char const* whom = "its replicas";

  //! Waits for MPI, but not for somebody who is gone.
  //! @throws std::runtime_error with what goes on after "rank 2"
  void operator()(MPI_Request& request) const {
    pp::detail::countdown<> left(deadline);
    for (int done = 0;;) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        throw std::runtime_error(std::string("cannot reach ") + whom + " by MPI");
      }
      if (done != 0) {
        return;
      }
      if (auto const reason = line->failure()) {
        throw std::runtime_error(std::string("has lost one of ") + whom + ": " + *reason);
      }
      if (left.is_over()) {
        throw std::runtime_error(std::string("has waited for ") + whom + " beyond the deadline");
      }
      std::this_thread::yield();
    }
  }
};

//! Does of a step what the runner knows nothing of. Where it fails, the run ends on all ranks.
template <class Runner, class Work>
void outside_of(Runner& runner, Work work) {
  std::string failure;
  try {
    work();
    return;
  } catch (std::runtime_error const& error) {
    failure = error.what();
  }
  runner.fail(failure);
}

//! Something that MPI reads from and writes to. Where a step has failed, it is left to MPI: what is
//! still under way may end in a later attempt at the run.
template <class Used>
class left_to_mpi {
public:
  template <class... Words>
  explicit left_to_mpi(Words&&... words)
      : used_(std::make_unique<Used>(std::forward<Words>(words)...)) {}
  ~left_to_mpi() {
    if (std::uncaught_exceptions() > before_) {
      (void)used_.release();
    }
  }
  left_to_mpi(left_to_mpi const&) = delete;
  left_to_mpi& operator=(left_to_mpi const&) = delete;

  [[nodiscard]] Used& operator*() const { return *used_; }

private:
  int before_ = std::uncaught_exceptions();
  std::unique_ptr<Used> used_;
};

} // namespace gpt
