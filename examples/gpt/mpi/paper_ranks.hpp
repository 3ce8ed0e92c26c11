// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Ranks of WeiPipe, whose microbatches stay while weights travel round the ring of ranks:
//! between steps every rank has the parameters of one group of layers.

#include <pipe/cluster/store.hpp>
#include <pipe/mpi/mpi.hpp>

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "../papers/weight_travel.hpp"
#include "rank_run.hpp"

namespace gpt {

//! The parameters of group g on rank g, and the way from there to rank 0, which has the first
//! microbatch, and back from the last rank, which has the last one.
class groups_on_ranks {
public:
  std::vector<std::int64_t> numbers; //!< of the parameters of each group

  groups_on_ranks(rank_run& run, std::vector<layer_range> const& groups, step_cut const& cut)
      : numbers(parameter_counts(run.o.size, groups)), rank_(run.place.device),
        last_(static_cast<int>(groups.size()) - 1),
        own_(run.o.size, groups[static_cast<std::size_t>(rank_)], cut, seed_of(run.o), work_),
        world_(run.groups.pipeline), wait_{&run.line(), run.chosen.deadline, "the other ranks"} {
    weights_.resize(static_cast<std::size_t>(numbers[static_cast<std::size_t>(rank_)]));
    gradients_.resize(weights_.size());
    outgoing_.resize(groups.size());
  }

  //! Before a step: the weights set out, once for forward passes and once for backward passes.
  void begin() {
    copy_out(own_, &parameter<float>::value, weights_.data());
    auto const count = static_cast<int>(weights_.size());
    for (bool const back : {false, true})
      if (rank_ != 0)
        check(
          MPI_Isend(weights_.data(), count, MPI_FLOAT, 0, tag(rank_, back), world_, &one_more()));
    if (rank_ != last_)
      check(MPI_Irecv(
        gradients_.data(), count, MPI_FLOAT, last_, gradient_tag(rank_), world_, &one_more()));
  }
  //! After it: the gradients are here.
  void end() {
    for (MPI_Request& request : under_way_)
      wait_(request);
    under_way_.clear();
    copy_in(own_, &parameter<float>::gradient, gradients_.data());
  }

  //! What the first microbatch takes: weights of a group; with gradients, zeros after them.
  void send(std::size_t group, bool with_gradients, float* to) {
    auto const count = static_cast<int>(numbers[group]);
    if (group == 0) {
      std::copy(weights_.begin(), weights_.end(), to);
    } else {
      MPI_Request request = MPI_REQUEST_NULL;
      int const home = static_cast<int>(group);
      check(MPI_Irecv(to, count, MPI_FLOAT, home, tag(home, with_gradients), world_, &request));
      wait_(request);
    }
    if (with_gradients)
      std::fill_n(to + count, count, 0.0F);
  }
  //! What the last one puts back.
  void receive_gradients(std::size_t group, float const* from) {
    auto const home = static_cast<int>(group);
    auto& numbers_out = outgoing_[group];
    numbers_out.assign(from, from + numbers[group]);
    if (home == rank_) {
      gradients_ = numbers_out;
      return;
    }
    check(MPI_Isend(numbers_out.data(),
                    static_cast<int>(numbers_out.size()),
                    MPI_FLOAT,
                    home,
                    gradient_tag(home),
                    world_,
                    &one_more()));
  }

  [[nodiscard]] host_stage<float>& own() { return own_; }

private:
  static int tag(int group, bool back) { return 3 * group + (back ? 1 : 0); }
  static int gradient_tag(int group) { return 3 * group + 2; }
  static void check(int code) { check_begun(code, "move weights or gradients"); }
  MPI_Request& one_more() { return under_way_.emplace_back(MPI_REQUEST_NULL); }

  int rank_;
  int last_; // rank
  host::device_work<float> work_;
  host_stage<float> own_;
  MPI_Comm world_;
  patient_wait wait_;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  std::vector<std::vector<float>> outgoing_; // by group, on the last rank
  std::vector<MPI_Request> under_way_;       // of this step
};

//! This rank's share of the model, and of the microbatches.
class travelling_rank {
public:
  //! The optimizer steps between iterations.
  [[nodiscard]] static constexpr bool counts_steps() { return false; }

  travelling_rank(rank_run& run, pp::timetable_view table)
      : with_(run.o.size, table), home_(run, with_.groups, with_.cut),
        device_(
          run.o.size, with_.groups, with_.cut.seen_in_turn(run.place.device, run.o.devices), home_),
        microbatches_(static_cast<std::size_t>(run.o.microbatches), &device_),
        pipeline_(run.groups.pipeline), mean_(run.replicas()),
        runner_(with_.plan, microbatches_, run.line(), pipeline_, run.runner_options()) {}

  //! @return the mean loss on the first rank: each has those of its microbatches
  double step(batch const& pieces) {
    if (fails_)
      fail("failed in this step: it was told to, by --fail-at");
    device_.set_batch(pieces);
    outside_of(runner_, [&] { home_.begin(); });
    runner_.step();
    outside_of(runner_, [&] {
      home_.end();
      mean_.take(*this);
    });
    std::vector<float> all(device_.losses().size());
    MPI_Reduce(device_.losses().data(),
               all.data(),
               static_cast<int>(all.size()),
               MPI_FLOAT,
               MPI_SUM,
               0,
               pipeline_); // of one number and zeros
    return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(with_.cut.tokens());
  }
  [[nodiscard]] bool reports_loss() const { return runner_.rank() == 0; }
  void finish() {} //!< nothing is under way between steps
  [[nodiscard]] pp::dynamic_timetable trace() { return runner_.trace(); }
  //! The next step fails, where the last group is at home.
  void fail_in_next_step(bool fails) {
    fails_ = fails && runner_.rank() + 1 == static_cast<int>(with_.groups.size());
  }
  //! One step of the optimizer, of the group that is at home here.
  void update(adamw const& optimizer, std::int64_t step) { home_.own().update(optimizer, step); }

  //! What stays and what travels. Collective.
  [[nodiscard]] std::vector<device_row> rows() {
    auto const own = device_.sent_bytes();
    std::vector<std::int64_t> sent(with_.groups.size());
    MPI_Allgather(&own, 1, MPI_INT64_T, sent.data(), 1, MPI_INT64_T, pipeline_);
    return travel_rows(with_, trace(), sent);
  }

  //! Calls visit(group, its layers) for the group that is at home here.
  template <class Visit>
  void for_each_stage(Visit visit) {
    visit(static_cast<std::size_t>(runner_.rank()), home_.own());
  }
  template <class Visit>
  void for_each_parameter(Visit visit) {
    home_.own().for_each_parameter(visit);
  }
  //! Of group g, rank g.
  [[nodiscard]] std::vector<int> homes() const {
    std::vector<int> all(with_.groups.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  [[noreturn]] void fail(std::string const& why) { runner_.fail(why); }

private:
  travelling_plan with_;
  groups_on_ranks home_;
  visited_device<groups_on_ranks> device_;
  std::vector<visited_device<groups_on_ranks>*> microbatches_; // where each is
  MPI_Comm pipeline_;
  replica_mean mean_;
  bool fails_ = false;
  pp::mpi_runner<std::vector<visited_device<groups_on_ranks>*>> runner_;
};

} // namespace gpt
