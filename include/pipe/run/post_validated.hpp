// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Iterations that validate the optimizer's step of the one before. Header for
//! pipelining::post_validated_steps.

#include <pipe/plan/other_plans.hpp>
#include <pipe/run/between_steps.hpp>

#include <utility>

namespace pipelining::inline v0_3 {

//! @brief The numbers that a runner has given to the three plans of an iteration.
struct plan_number::post_validated {
  plan_number first;  //!< of post_validated_plans::first
  plan_number steady; //!< of post_validated_plans::steady
  plan_number last;   //!< of post_validated_plans::last
};

//! @brief Runs iterations whose optimizer's step is taken early and validated in the next
//! iteration.
//!
//! Before anyone else looks at the weights (an evaluation, a checkpoint, the end) call `finish`.
//! Until then a step that has made them may still be rolled back, and runners refuse other plans.
//! Over MPI and NCCL every rank makes one and makes the same calls.
//!
//! An iteration may begin again within `step`. Where the program does something to the stages
//! before each step, such as zeroing gradients, their `begin_iteration` does it then.
//!
//! @tparam Runner thread_runner, mpi_runner, cuda::stream_runner or cuda::nccl_runner.
template <class Runner>
class post_validated_steps {
public:
  //! @param runner must outlive this; all its steps with these plans go through this.
  explicit post_validated_steps(Runner& runner) : runner_(&runner) {}

  //! @brief Gives the runner the plans next to the first one.
  //! @param first the number that the runner has given to `plans.first`, with which it may have
  //! been made.
  //! @throws as `add` of the runner does.
  [[nodiscard]] plan_number::post_validated add(detail::post_validated_plans plans,
                                                plan_number first = {}) const {
    plan_number const steady = runner_->add(std::move(plans.steady));
    return {first, steady, runner_->add(std::move(plans.last))};
  }

  //! @brief Gives the runner plans in the place of others, which are gone then.
  //! @throws as `replace` of the runner does.
  [[nodiscard]] plan_number::post_validated replace(plan_number::post_validated const& which,
                                                    detail::post_validated_plans plans) const {
    return {runner_->replace(which.first, std::move(plans.first)),
            runner_->replace(which.steady, std::move(plans.steady)),
            runner_->replace(which.last, std::move(plans.last))};
  }

  //! @brief Runs an iteration. Iterations of other sizes may follow each other.
  //! @param which the plans of this iteration; they must have been added.
  //! @throws as `step` of the runner does.
  void step(plan_number::post_validated const& which) {
    if (pending_) {
      pending_ = false;
      runner_->step(which.steady);
      if (runner_->begins_again()) {
        ++repeated_;
        runner_->step(which.first);
      }
    } else {
      runner_->step(which.first);
    }
    pending_ = true;
    last_ = which.last;
  }

  //! @brief Validates the step of the last iteration, if that has not been done.
  //! @throws as `step` of the runner does.
  void finish() {
    if (!pending_)
      return;
    pending_ = false;
    runner_->step(last_);
    rolled_back_at_end_ += runner_->begins_again() ? 1 : 0;
  }

  //! @brief Steps of the optimizer that were found wrong, and made right.
  [[nodiscard]] long corrected() const noexcept { return repeated_ + rolled_back_at_end_; }
  //! @brief Iterations that began again because of that.
  [[nodiscard]] long repeated() const noexcept { return repeated_; }

private:
  Runner* runner_;
  plan_number last_{};
  bool pending_ = false;
  long repeated_ = 0;
  long rolled_back_at_end_ = 0;
};

} // namespace pipelining::inline v0_3
