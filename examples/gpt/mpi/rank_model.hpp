// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The stages of one rank, what they share with other ranks, and the runner that drives
//! them.

#include <pipe/cluster/store.hpp>
#include <pipe/mpi/mpi.hpp>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../host/pipeline.hpp"
#include "rank_run.hpp"

namespace gpt {

//! A stage of the model, where it is at home, be it for some of the microbatches; on all other
//! ranks an empty place that no pass visits. Where a pipeline has two copies of it, one of them.
template <class Stage>
struct place_of_stage : copies_of<Stage> {
  replica_mean mean;
  MPI_Comm pipeline = MPI_COMM_NULL;
  int other = -1; //!< the rank that has the other copy; -1: there is none
  patient_wait wait_for_copy{};
  copy_sum with_copy{};
  bool fails = false;

  void forward(pp::context const& where, pp::input x, pp::output y) {
    if (fails && where.microbatch == 1)
      throw std::runtime_error("it was told to, by --fail-at");
    copies_of<Stage>::forward(where, x, y);
  }

  //! Nothing is added to the gradients of this stage any more in this step, while other stages
  //! still run: the sum with the other copy begins, or that with the replicas.
  void gradients_ready(pp::context const& where) {
    if (other >= 0)
      with_copy.start(*this->here(), other, where.stage, pipeline);
    else
      mean.start(*this->here());
  }

  //! What follows when all stages of the rank are ready, in the order of the stages.
  void add_copy() {
    if (other >= 0) {
      with_copy.finish(*this->here(), wait_for_copy);
      mean.start(*this->here());
    }
  }
  // The same where it is part of the plan, before the totals.
  void copied_gradient(pp::context const&, pp::output) {} //!< it is on its way
  void add_copies(pp::context const& where, pp::totals const&) {
    add_copy();
    join_replicas(where);
  }

  //! Waits for the mean over the replicas, where other stages cannot do anything meanwhile.
  void join_replicas(pp::context const&) {
    mean.share();
    mean.finish(*this->here());
  }
};

//! This rank's share of the model: parameters, activations and optimizer of its own stages only.
//! @tparam Place a stage as the library calls it: a `place_of_stage`, or with its optimizer
template <class Place>
class model_on_rank : with_device_work,
                      public model_in_stages<Place, pp::mpi_runner<std::vector<Place>>> {
public:
  using model = model_in_stages<Place, pp::mpi_runner<std::vector<Place>>>;
  using stage_type = typename Place::stage_type;

  //! @param run with the lengths of sequences; must outlive this
  //! @param make_stages gives those of this rank by way, of what they share
  template <class MakeStages>
  model_on_rank(rank_run& run, pp::timetable_view table, plan_maker plans, MakeStages make_stages)
      : with_device_work(table), model(
                                   make_stages(this->work),
                                   table,
                                   run.o.lengths,
                                   std::move(plans),
                                   [&](copies_of<stage_type> all, int stage) {
                                     return make_place(run, table, std::move(all), stage);
                                   },
                                   run.line(),
                                   run.groups.pipeline,
                                   run.runner_options()),
        pipeline_(run.groups.pipeline), homes_(homes_of(table)),
        reports_loss_(run.place.device == homes_[this->stage_count() - 1]) {}

  //! Forward and backward of all microbatches, and the mean of gradients over the replicas, without
  //! the optimizer.
  //! @return the loss, where it is known
  double step(batch const& pieces) {
    this->for_each_stage([&](std::size_t, stage_type& stage) { stage.set_batch(pieces); });
    this->run_plan();
    if constexpr (!model::clips) { // else the optimizer has stepped, with means
      outside_of(this->runner(), [&] {
        this->for_each_called([](Place& each) { each.add_copy(); });
        this->for_each_called([](Place& each) { each.mean.share(); });
        this->for_each_called([](Place& each) { each.mean.finish(*each.here()); });
      });
    }
    Place const& last = this->called().back();
    return reports_loss_ ? last.here()->loss() + last.with_copy.other_loss() : 0;
  }
  [[nodiscard]] bool reports_loss() const { return reports_loss_; }

  //! The last stage throws in the next step, where it is here.
  void fail_in_next_step(bool fails) { this->called().back().fails = fails; }

  //! One step of the optimizer, unless it was part of the plan.
  void update(adamw const& optimizer, std::int64_t step) {
    if constexpr (!model::clips)
      this->for_each_stage([&](std::size_t, stage_type& stage) { stage.update(optimizer, step); });
  }
  //! What clipping has done; steps rolled back of the whole pipeline, on its device 0. Collective.
  [[nodiscard]] clipping_report clipping_done() {
    auto found = model::clipping_done();
    auto const here = found.rolled_back;
    MPI_Reduce(&here, &found.rolled_back, 1, MPI_INT64_T, MPI_SUM, 0, pipeline_);
    return found;
  }

  //! The devices that have the stages, and then those of their second copies, if there are any.
  [[nodiscard]] std::vector<int> const& homes() const { return homes_; }

private:
  static Place
  make_place(rank_run& run, pp::timetable_view table, copies_of<stage_type> all, int stage) {
    auto const& extents = table.over.extents;
    place_of_stage<stage_type> place{{std::move(all)}, replica_mean(run.replicas())};
    if (extents.where == pp::placement::bidirectional) {
      bool const first = place.of.front() != nullptr;
      place.pipeline = run.groups.pipeline;
      place.wait_for_copy = {&run.line(), run.chosen.deadline, "the other copies"};
      place.other = pp::device_of(table, stage, first_of_way(extents, first ? 1 : 0));
      place.of.assign(2, place.here());
    }
    return Place(std::move(place));
  }

  MPI_Comm pipeline_;
  std::vector<int> homes_;
  bool reports_loss_;
};

} // namespace gpt
