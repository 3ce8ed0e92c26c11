// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Adds up the gradients of the two copies of a stage that pipelines keep which enter at
//! both ends, while other stages still run.

#include <mpi.h>

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "../parameter.hpp"

namespace gpt {

//! What a copy of a stage exchanges with the other copy, which is on another rank: gradients, and
//! the loss of its half of the microbatches. A sum of two does not depend on who is first, so both
//! ranks come to the same bits.
class copy_sum {
public:
  //! Begins, when the gradients of this copy are complete.
  //! @param other the rank that has the other copy. @param tag of the stage
  template <class Stage>
  void start(Stage& stage, int other, int tag, MPI_Comm pipeline) {
    mine_.clear();
    stage.for_each_parameter([this](parameter<float> const& p) {
      mine_.insert(mine_.end(), p.gradient.begin(), p.gradient.end());
    });
    theirs_.resize(mine_.size());
    loss_ = stage.loss();
    auto const count = static_cast<int>(mine_.size());
    check(MPI_Irecv(theirs_.data(), count, MPI_FLOAT, other, 2 * tag, pipeline, &requests_[0]));
    check(MPI_Irecv(&other_loss_, 1, MPI_DOUBLE, other, 2 * tag + 1, pipeline, &requests_[1]));
    check(MPI_Isend(mine_.data(), count, MPI_FLOAT, other, 2 * tag, pipeline, &requests_[2]));
    check(MPI_Isend(&loss_, 1, MPI_DOUBLE, other, 2 * tag + 1, pipeline, &requests_[3]));
  }

  //! The end: the gradients of the stage are the sum.
  //! @param await waits for a request
  template <class Stage, class Await>
  void finish(Stage& stage, Await& await) {
    for (MPI_Request& request : requests_) {
      await(request);
    }
    auto const* theirs = theirs_.data();
    stage.for_each_parameter([&theirs](parameter<float>& p) {
      for (float& x : p.gradient) {
        x += *theirs++;
      }
    });
  }

  //! The loss of the other half of the microbatches, where the stage has any.
  [[nodiscard]] double other_loss() const { return other_loss_; }

private:
  static void check(int code) {
    if (code != MPI_SUCCESS) {
      throw std::runtime_error("MPI could not begin to add up the gradients of two copies");
    }
  }

  std::vector<float> mine_;
  std::vector<float> theirs_;
  double loss_ = 0;
  double other_loss_ = 0;
  MPI_Request requests_[4]{MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};

} // namespace gpt
