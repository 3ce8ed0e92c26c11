// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The stages of one rank and the runner that drives them.

#include <pipe/cluster/store.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/mpi/mpi.hpp>
#include <pipe/timetable/timetable.hpp>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../clipped_stage.hpp"
#include "../pipeline.hpp"
#include "../sized_runner.hpp"
#include "../training.hpp"
#include "place_of_stage.hpp"

namespace gpt {

//! This rank's share of the model: parameters, activations and optimizer of its own stages only.
//! @tparam Place a stage as the library calls it: `place_of_stage`, or with its optimizer.
template <class Place>
class basic_rank_model {
public:
  //! Whether the optimizer is part of the plan, and may leave steps out.
  static constexpr bool clips = Place::totals_bytes > 0;

  //! @param lengths tokens of the sequence of each microbatch
  //! @param device of the plan that this rank is. @param line the store of its pipeline
  //! @param pipeline the ranks of its pipeline
  //! @param early stages step before they know the norm of all gradients
  basic_rank_model(model_size const& size,
                   pp::timetable_view table,
                   std::vector<std::int64_t> const& lengths,
                   std::uint64_t seed,
                   int device,
                   pp::store& line,
                   MPI_Comm pipeline,
                   replica_group replicas,
                   pp::mpi_ranks const& options,
                   bool early = false)
      : replicas_(replicas), copies_{pipeline, {&line, options.deadline, "the other copies"}},
        places_(make_places(size, table, lengths, seed, device)), homes_(make_homes(table)),
        reports_loss_(device == pp::device_of(table, table.over.extents.stages() - 1)),
        plans_(plan_maker<host_slots>{{size, Place::totals_bytes}, early},
               table,
               lengths,
               places_,
               line,
               pipeline,
               options) {}

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
    if constexpr (clips) {
      return; // the optimizer has stepped, with means
    }
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
    if (places_.back().here) {
      places_.back().fails = fails;
    }
  }

  //! What of each device of the pipeline lay in slots in the last step. Collective.
  [[nodiscard]] std::vector<slot_bytes> slots() {
    return slot_bytes_of(*plans_.now().first, plans_.runner().trace(), plans_.now().sizes);
  }

  //! The most bytes that each device of the pipeline has kept between passes so far, those in slots
  //! not among them; on its device 0. Collective.
  [[nodiscard]] std::vector<std::size_t> peak_bytes() const {
    std::size_t const mine = memory_.pool.peak_bytes();
    int devices = 1;
    MPI_Comm_size(copies_.pipeline, &devices);
    std::vector<std::size_t> all(static_cast<std::size_t>(devices));
    MPI_Gather(&mine, 1, MPI_UNSIGNED_LONG, all.data(), 1, MPI_UNSIGNED_LONG, 0, copies_.pipeline);
    return all;
  }

  //! Ends the run on all ranks.
  [[noreturn]] void fail(std::string const& why) { plans_.runner().fail(why); }

  //! What was made and used again of plans.
  [[nodiscard]] auto const& plans() const { return plans_.plans(); }

  //! One step of the optimizer, unless it was part of the plan.
  void update(adamw const& optimizer, std::int64_t step) {
    if constexpr (!clips) {
      for_each_stage([&](std::size_t, pipeline_stage& stage) { stage.update(optimizer, step); });
    }
  }
  //! @param how must outlive this
  void set_clipping(clipping const& how) {
    if constexpr (clips) {
      for_each_place([&](Place& each) { each.set_clipping(how); });
    }
  }
  //! To be called before anyone looks at the weights. Collective.
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

  //! The mean loss of the step, where the last stage is; of two copies, the first.
  [[nodiscard]] std::optional<double> loss() const {
    auto const& last = places_.back();
    return reports_loss_ ? std::optional(last.here->loss() + last.with_copy.other_loss())
                         : std::nullopt;
  }

  //! Calls visit(number, stage) for each stage of this rank.
  template <class Visit>
  void for_each_stage(Visit visit) {
    for (std::size_t s = 0; s < places_.size(); ++s) {
      if (places_[s].here) {
        visit(s, *places_[s].here);
      }
    }
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
    for (Place& each : places_) {
      if (each.here) {
        visit(each);
      }
    }
  }

  static std::vector<std::vector<int>> make_homes(pp::timetable_view table) {
    bool const copies = table.over.extents.where == pp::placement::bidirectional;
    std::vector<std::vector<int>> homes(copies ? 2 : 1);
    for (std::size_t way = 0; way < homes.size(); ++way) {
      for (int stage = 0; stage < table.over.extents.stages(); ++stage) {
        homes[way].push_back(pp::device_of(table, stage, first_of_way(table.over.extents, way)));
      }
    }
    return homes;
  }

  std::vector<Place> make_places(model_size const& size,
                                 pp::timetable_view table,
                                 std::vector<std::int64_t> const& lengths,
                                 std::uint64_t seed,
                                 int device) {
    pp::shape const& extents = table.over.extents;
    bool const copies = extents.where == pp::placement::bidirectional;
    std::vector<Place> places;
    for (auto const& layers : cut_model(size, extents)) {
      int const stage = static_cast<int>(places.size());
      place_of_stage place;
      for (int route = 0; route < extents.routes(); ++route) {
        auto const way = static_cast<std::size_t>(copies ? route : 0);
        int const microbatch = copies ? first_of_way(extents, way) : route;
        if (place.here || pp::device_of(table, stage, microbatch) != device) {
          continue;
        }
        auto const cut = cut_for(table, lengths, stage)
                           .seen(first_of_way(extents, way), first_of_way(extents, way + 1));
        place.here = std::make_unique<pipeline_stage>(size, layers, cut, seed, memory_);
        place.replicas = replicas_;
        if (copies) {
          place.pipeline = copies_.pipeline;
          place.other = pp::device_of(table, stage, first_of_way(extents, 1 - way));
        }
        if (gathers_weights_of(table, stage)) {
          place.here->shard(weight_shard_count);
        }
      }
      places.push_back(Place(std::move(place)));
    }
    return places;
  }

  device_memory<float> memory_;
  replica_group replicas_;
  copy_group copies_;
  std::vector<Place> places_;
  std::vector<std::vector<int>> homes_; // [ways, stages]
  bool reports_loss_;
  sized_runner<pp::mpi_runner<std::vector<Place>>> plans_;
};

//! The optimizer steps between iterations.
using rank_model = basic_rank_model<place_of_stage>;
//! It steps in them, on clipped gradients.
using clipped_rank_model = basic_rank_model<clipped_stage<place_of_stage>>;

} // namespace gpt
