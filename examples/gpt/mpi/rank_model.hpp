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
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../training.hpp"
#include "rank_run.hpp"

namespace gpt {

//! What a rank shares with the rank of its pipeline that has the other copies of its stages.
struct copy_group {
  MPI_Comm pipeline = MPI_COMM_NULL;
  patient_wait wait{};
};

//! A stage of the model, where it is at home, be it for some of the microbatches; on all other
//! ranks an empty place that no pass visits. Where a pipeline has two copies of it, one of them.
struct place_of_stage : stage_copies {
  std::unique_ptr<pipeline_stage> here{};
  replica_group replicas{};
  MPI_Comm pipeline = MPI_COMM_NULL;
  int other = -1;                 //!< the rank that has the other copy; -1: there is none
  std::vector<float> gradients{}; //!< all of the stage behind each other, where it has replicas
  replica_sum sum{};
  copy_sum with_copy{};
  bool fails = false;

  void forward(pp::context const& where, pp::input x, pp::output y) {
    if (fails && where.microbatch == 1)
      throw std::runtime_error("it was told to, by --fail-at");
    stage_copies::forward(where, x, y);
  }

  //! Nothing is added to the gradients of this stage any more in this step, while other stages
  //! still run: the sum with the other copy begins, or that with the replicas.
  void gradients_ready(pp::context const& where) {
    if (other >= 0)
      with_copy.start(*here, other, where.stage, pipeline);
    else
      start_replicas();
  }

  //! What follows when all stages of the rank are ready, in the order of the stages.
  void add_copy(patient_wait const& wait) {
    if (other >= 0) {
      with_copy.finish(*here, wait);
      start_replicas();
    }
  }

  //! Waits for the mean over the replicas, where other stages cannot do anything meanwhile.
  void join_replicas() {
    if (replicas.communicator != MPI_COMM_NULL) {
      sum.share(replicas.wait);
      sum.finish(replicas.wait);
      take_mean();
    }
  }

  //! Puts the mean over the replicas where the optimizer looks for gradients.
  void take_mean() { copy_in(*here, &parameter<float>::gradient, gradients.data()); }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    here->for_each_parameter(visit);
  }
  void refresh() { here->refresh(); }

private:
  void start_replicas() {
    if (replicas.communicator == MPI_COMM_NULL)
      return;
    gradients.clear();
    append(gradients, *here, &parameter<float>::gradient);
    sum.start(gradients, replicas.communicator);
  }
};

//! This rank's share of the model: parameters, activations and optimizer of its own stages only.
//! @tparam Place a stage as the library calls it: `place_of_stage`, or with its optimizer.
template <class Place>
class basic_rank_model {
public:
  //! Whether the optimizer is part of the plan, and may leave steps out.
  static constexpr bool clips = Place::totals_bytes > 0;

  //! @param run with the lengths of sequences; must outlive this
  basic_rank_model(rank_run& run, pp::timetable_view table)
      : replicas_(run.replicas()), copies_{run.groups.pipeline,
                                           {&run.line(), run.chosen.deadline, "the other copies"}},
        places_(make_places(run, table)), homes_(make_homes(table)),
        reports_loss_(run.place.device == pp::device_of(table, table.over.extents.stages() - 1)),
        plans_(plan_maker<host_slots>{{run.o.size, Place::totals_bytes}, run.o.post_validation},
               table,
               run.o.lengths,
               places_,
               run.line(),
               run.groups.pipeline,
               run.runner_options()) {}

  //! The steps that follow are of this timetable: see `sized_runner`. Collective.
  //! @pre the same schedule, devices and microbatches as before; one copy of every stage
  void use(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    plans_.use(table, lengths);
    for_each_stage([&](std::size_t s, pipeline_stage& stage) {
      stage.set_cut(cut_for(table, lengths, static_cast<int>(s)));
    });
  }

  //! Forward and backward of all microbatches, and the mean of gradients over the replicas, without
  //! the optimizer.
  void step(batch const& pieces) {
    for_each_stage([&](std::size_t, pipeline_stage& stage) { stage.set_batch(pieces); });
    plans_.step();
    if constexpr (clips)
      return; // the optimizer has stepped, with means
    outside_of(plans_.runner(), [&] {
      for_each_place([&](Place& each) { each.add_copy(copies_.wait); });
      if (replicas_.communicator != MPI_COMM_NULL) {
        for_each_place([&](Place& each) { each.sum.share(replicas_.wait); });
        for_each_place([&](Place& each) { each.sum.finish(replicas_.wait); });
        for_each_place([&](Place& each) { each.take_mean(); });
      }
    });
  }

  //! The last stage throws in the next step, where it is here.
  void fail_in_next_step(bool fails) {
    if (places_.back().here)
      places_.back().fails = fails;
  }

  [[nodiscard]] std::vector<device_row> slots() { return plans_.slots(); }
  [[nodiscard]] std::vector<std::size_t> peak_bytes() { return plans_.peak_bytes(); }

  [[noreturn]] void fail(std::string const& why) { plans_.runner().fail(why); }

  [[nodiscard]] auto const& plans() const { return plans_.plans(); }

  //! One step of the optimizer, unless it was part of the plan.
  void update(adamw const& optimizer, std::int64_t step) {
    if constexpr (!clips)
      for_each_stage([&](std::size_t, pipeline_stage& stage) { stage.update(optimizer, step); });
  }
  //! @param how must outlive this
  void set_clipping(clipping const& how) {
    if constexpr (clips)
      for_each_place([&](Place& each) { each.set_clipping(how); });
  }
  void finish() { plans_.finish(); }
  //! How many steps were taken and left out, which all stages know. What an early step has left to
  //! be validated is validated before. Collective.
  [[nodiscard]] step_counts counts() {
    finish();
    step_counts found;
    for_each_place([&](Place& each) { found = each.counts(); });
    return found;
  }
  void set_counts(step_counts const& counts) {
    for_each_place([&](Place& each) { each.set_counts(counts); });
  }
  //! What clipping has done; steps rolled back of the whole pipeline, on its device 0. Collective.
  [[nodiscard]] clipping_report clipping_done(std::uint64_t weights) {
    clipping_report found;
    std::int64_t rolled_back = 0;
    if constexpr (clips) {
      for_each_place([&](Place& each) {
        found.clipped = each.counts().clipped;
        found.left_out = each.counts().left_out;
        rolled_back += each.rolled_back();
      });
    }
    MPI_Reduce(&rolled_back, &found.rolled_back, 1, MPI_INT64_T, MPI_SUM, 0, copies_.pipeline);
    found.corrected = plans_.early_steps().corrected();
    found.repeated = plans_.early_steps().repeated();
    found.weights = weights;
    return found;
  }

  [[nodiscard]] std::optional<double> loss() const {
    auto const& last = places_.back();
    return reports_loss_ ? std::optional(last.here->loss() + last.with_copy.other_loss())
                         : std::nullopt;
  }

  template <class Visit>
  void for_each_stage(Visit visit) {
    for (std::size_t s = 0; s < places_.size(); ++s)
      if (places_[s].here)
        visit(s, *places_[s].here);
  }
  [[nodiscard]] std::size_t stage_count() const { return places_.size(); }
  //! 2 where there is a second copy of every stage.
  [[nodiscard]] std::size_t ways() const { return homes_.size(); }
  //! The device that has a stage, or its copy.
  [[nodiscard]] int home_of(std::size_t stage, std::size_t way) const { return homes_[way][stage]; }

private:
  // In the order of the stages, which is the same on all replicas.
  template <class Visit>
  void for_each_place(Visit visit) {
    for (Place& each : places_)
      if (each.here)
        visit(each);
  }

  static std::vector<std::vector<int>> make_homes(pp::timetable_view table) {
    bool const copies = table.over.extents.where == pp::placement::bidirectional;
    std::vector<std::vector<int>> homes(copies ? 2 : 1);
    for (std::size_t way = 0; way < homes.size(); ++way)
      for (int stage = 0; stage < table.over.extents.stages(); ++stage)
        homes[way].push_back(pp::device_of(table, stage, first_of_way(table.over.extents, way)));
    return homes;
  }

  std::vector<Place> make_places(rank_run const& run, pp::timetable_view table) {
    pp::shape const& extents = table.over.extents;
    bool const copies = extents.where == pp::placement::bidirectional;
    std::vector<Place> places;
    for (auto const& layers : cut_model(run.o.size, extents)) {
      int const stage = static_cast<int>(places.size());
      place_of_stage place{{{extents, {}}}};
      for (int route = 0; route < extents.routes(); ++route) {
        auto const way = static_cast<std::size_t>(copies ? route : 0);
        int const microbatch = copies ? first_of_way(extents, way) : route;
        if (place.here || pp::device_of(table, stage, microbatch) != run.place.device)
          continue;
        auto const cut = cut_for(table, run.o.lengths, stage)
                           .seen(first_of_way(extents, way), first_of_way(extents, way + 1));
        place.here =
          std::make_unique<pipeline_stage>(run.o.size, layers, cut, seed_of(run.o), work_);
        place.of.assign(static_cast<std::size_t>(extents.routes()), place.here.get());
        place.replicas = replicas_;
        if (copies) {
          place.pipeline = copies_.pipeline;
          place.other = pp::device_of(table, stage, first_of_way(extents, 1 - way));
        }
        if (gathers_weights_of(table, stage))
          place.here->shard(weight_shard_count);
      }
      places.push_back(Place(std::move(place)));
    }
    return places;
  }

  host::device_work<float> work_;
  replica_group replicas_;
  copy_group copies_;
  std::vector<Place> places_;
  std::vector<std::vector<int>> homes_; // [ways, stages]
  bool reports_loss_;
  sized_runner<pp::mpi_runner<std::vector<Place>>> plans_;
};

using rank_model = basic_rank_model<place_of_stage>;
using clipped_rank_model = basic_rank_model<clipped_stage<place_of_stage>>;

} // namespace gpt
