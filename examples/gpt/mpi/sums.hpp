// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Sums over ranks that go on while other stages run, and how a rank waits for messages that
//! are not the runner's.

#include <pipe/cluster/store.hpp>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../single_device.hpp"

namespace gpt {

//! How a rank waits for what the runner knows nothing of.
struct patient_wait {
  pp::store* line = nullptr; //!< tells whether somebody has failed
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  char const* whom = "its replicas";

  //! Waits for MPI, but not for somebody who is gone.
  //! @throws std::runtime_error with what goes on after "rank 2"
  void operator()(MPI_Request& request) const {
    pp::detail::countdown<pp::detail::polling_clock> left(deadline);
    for (int done = 0;;) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        throw std::runtime_error(std::string("cannot reach ") + whom + " by MPI");
      if (done != 0)
        return;
      if (auto const reason = line->failure())
        throw std::runtime_error(std::string("has lost one of ") + whom + ": " + *reason);
      if (left.is_over())
        throw std::runtime_error(std::string("has waited for ") + whom + " beyond the deadline");
      std::this_thread::yield();
    }
  }
};

//! @param what MPI was asked for
inline void check_begun(int code, char const* what) {
  if (code != MPI_SUCCESS)
    throw std::runtime_error(std::string("MPI could not begin to ") + what);
}

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
    if (std::uncaught_exceptions() > before_)
      (void)used_.release();
  }
  left_to_mpi(left_to_mpi const&) = delete;
  left_to_mpi& operator=(left_to_mpi const&) = delete;

  [[nodiscard]] Used& operator*() const { return *used_; }

private:
  int before_ = std::uncaught_exceptions();
  std::unique_ptr<Used> used_;
};

//! What a rank shares with the ranks that have the same stages in other pipelines.
struct replica_group {
  MPI_Comm communicator = MPI_COMM_NULL; //!< null: there is one pipeline alone
  patient_wait wait{};
};

//! The mean of all gradients of a stage, or of a rank, over its replicas, if there are any.
//!
//! Each rank adds up one slice, in the order of the ranks, and hands the result to all: as many
//! bytes as the fastest algorithms move, and a sum whose bits do not depend on MPI's choice of one.
//! MPI moves data while it is called, so the runner's waits for messages carry this along.
class replica_mean {
public:
  explicit replica_mean(replica_group with) : with_(with) {
    if (!has_replicas())
      return;
    MPI_Comm_size(with_.communicator, &ranks_);
    MPI_Comm_rank(with_.communicator, &own_);
  }

  //! Begins, when the gradients are complete: every rank sends its numbers away. Ranks begin their
  //! sums in the same order. @param of has `for_each_parameter`
  template <class Stage>
  void start(Stage& of) {
    if (!has_replicas())
      return;
    numbers_.clear();
    append(numbers_, of, &parameter<float>::gradient);
    if (numbers_.empty())
      return;
    auto const ranks = static_cast<std::size_t>(ranks_);
    slice_ = (numbers_.size() + ranks - 1) / ranks;
    numbers_.resize(ranks * slice_); // with zeros after them, slices are of one length
    slices_.resize(numbers_.size());
    auto const count = static_cast<int>(slice_);
    check(MPI_Ialltoall(numbers_.data(),
                        count,
                        MPI_FLOAT,
                        slices_.data(),
                        count,
                        MPI_FLOAT,
                        with_.communicator,
                        &request_));
  }
  //! The middle: adds up the slice of this rank, and begins to send it to the others. In the same
  //! order on all ranks, after all starts.
  void share() {
    if (numbers_.empty())
      return;
    with_.wait(request_);
    float* const sum = numbers_.data() + static_cast<std::size_t>(own_) * slice_;
    for (std::size_t i = 0; i < slice_; ++i) {
      float total = slices_[i];
      for (std::size_t at = i + slice_; at < slices_.size(); at += slice_)
        total += slices_[at];
      sum[i] = total / static_cast<float>(ranks_);
    }
    auto const count = static_cast<int>(slice_);
    check(MPI_Iallgather(MPI_IN_PLACE,
                         0,
                         MPI_DATATYPE_NULL,
                         numbers_.data(),
                         count,
                         MPI_FLOAT,
                         with_.communicator,
                         &request_));
  }
  //! The end: the mean lies where the optimizer looks for gradients. Once per start.
  template <class Stage>
  void finish(Stage& of) {
    if (numbers_.empty())
      return;
    with_.wait(request_);
    copy_in(of, &parameter<float>::gradient, numbers_.data());
    numbers_.clear();
  }
  //! All of it at once, for those that do not begin their sums as soon as they can.
  template <class Stage>
  void take(Stage& of) {
    start(of);
    share();
    finish(of);
  }

private:
  [[nodiscard]] bool has_replicas() const { return with_.communicator != MPI_COMM_NULL; }
  static void check(int code) { check_begun(code, "add up gradients among replicas"); }

  replica_group with_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  int own_ = 0;
  int ranks_ = 1;
  std::size_t slice_ = 0;      // numbers of each rank's slice
  std::vector<float> numbers_; // gradients, one parameter after the other; none: no mean is begun
  std::vector<float> slices_;  // [ranks, slice] this rank's slice as each rank has it
};

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
    append(mine_, stage, &parameter<float>::gradient);
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
    for (MPI_Request& request : requests_)
      await(request);
    auto const* theirs = theirs_.data();
    stage.for_each_parameter([&theirs](parameter<float>& p) {
      for (float& x : p.gradient)
        x += *theirs++;
    });
  }

  //! The loss of the other half of the microbatches, where the stage has any.
  [[nodiscard]] double other_loss() const { return other_loss_; }

private:
  static void check(int code) { check_begun(code, "add up the gradients of two copies"); }

  std::vector<float> mine_;
  std::vector<float> theirs_;
  double loss_ = 0;
  double other_loss_ = 0;
  MPI_Request requests_[4]{MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};

//! Sums over the ranks of a communicator, which make the same ones in the same order. A sum has two
//! ends, between which a rank does something else; at most two are under way.
class shard_sums {
public:
  shard_sums(MPI_Comm shards, patient_wait wait) : shards_(shards), wait_(wait) {
    MPI_Comm_size(shards, &ranks_);
    MPI_Comm_rank(shards, &own_);
  }

  //! Hands in this rank's part of the next sum. Returns which one it is.
  std::size_t begin(std::vector<float> const& part) {
    one_sum& here = under_way_[next_ % under_way_.size()];
    here.parts.resize(part.size() * static_cast<std::size_t>(ranks_));
    std::copy(part.begin(), part.end(), part_of(here, own_).begin());
    int const code = MPI_Iallgather(MPI_IN_PLACE,
                                    0,
                                    MPI_DATATYPE_NULL,
                                    here.parts.data(),
                                    static_cast<int>(part.size()),
                                    MPI_FLOAT,
                                    shards_,
                                    &here.request);
    check_begun(code, "add up the parts of shards");
    return next_++;
  }

  //! Waits for the parts of all ranks, and adds them up in the order of the ranks: the bits of what
  //! MPI_Iallreduce gives depend on its choice of an algorithm.
  void end(std::size_t which, std::vector<float>& sum) {
    one_sum& here = under_way_[which % under_way_.size()];
    wait_(here.request);
    sum.clear();
    for (int rank = 0; rank < ranks_; ++rank)
      add_to(sum, part_of(here, rank));
  }

private:
  struct one_sum {
    std::vector<float> parts{}; // [ranks, numbers of a part]
    MPI_Request request = MPI_REQUEST_NULL;
  };
  [[nodiscard]] std::span<float> part_of(one_sum& of, int rank) const {
    auto const count = of.parts.size() / static_cast<std::size_t>(ranks_);
    return std::span(of.parts).subspan(static_cast<std::size_t>(rank) * count, count);
  }

  MPI_Comm shards_;
  patient_wait wait_;
  int ranks_ = 1;
  int own_ = 0;
  std::array<one_sum, 2> under_way_;
  std::size_t next_ = 0;
};

} // namespace gpt
