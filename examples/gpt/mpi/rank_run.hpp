// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief An attempt at the run, as one rank sees it, and which ranks it works with.

#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/mpi/mpi.hpp>
#include <pipe/mpi/store.hpp>

#include <mpi.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "../options.hpp"
#include "../text.hpp"
#include "rank_options.hpp"
#include "sums.hpp"

namespace gpt {

namespace pp = pipelining;

//! The communicators of a rank. All ranks make theirs together, new ones for every attempt at the
//! run: those of an earlier one may have messages that nobody fetches.
struct rank_groups {
  MPI_Comm pipeline = MPI_COMM_NULL; //!< a rank is a device of the plan
  MPI_Comm replicas = MPI_COMM_NULL; //!< of the same stages in other pipelines; null: none
  MPI_Comm shards = MPI_COMM_SELF;   //!< all shards of these stages

  rank_groups(pp::rank_layout const& layout, int rank) {
    auto const split = [rank, &layout](pp::rank_axis axis, MPI_Comm& communicator) {
      auto const group = pp::group_of(layout, axis, rank);
      MPI_Comm_split(MPI_COMM_WORLD, group.number, group.index, &communicator);
      MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
    };
    split(pp::rank_axis::pipeline, pipeline);
    if (layout.replicas > 1)
      split(pp::rank_axis::data, replicas);
    if (layout.shards > 1)
      split(pp::rank_axis::tensor, shards);
  }
};

struct progress {
  std::int64_t attempt = 0;
  std::int64_t step = 0;
  bool trains = false; //!< all ranks are connected, and have begun with steps
};

//! What a rank knows of the run, and whom it works with.
struct rank_run {
  rank_options const& chosen;
  options o; //!< those of training, with the lengths that follow from the schedule
  int rank;  //!< of all
  pp::rank_place place;
  text_to_learn text;
  pp::store& everyone;
  progress& now;
  rank_groups groups;
  std::int64_t first = 0; //!< the step that it begins with

  //! Collective. What it is given must outlive it.
  rank_run(
    rank_options const& with, int number, text_to_learn learnt, pp::store& all, progress& how_far)
      : chosen(with), o(with.training), rank(number), place(pp::place_of(with.layout, number)),
        text(std::move(learnt)), everyone(all), now(how_far), groups(with.layout, number) {
    if (with.layout.devices != pp::ranks_of(with.layout))
      own_.emplace(groups.pipeline, with.deadline);
  }

  //! The store of this pipeline, which knows its ranks by the numbers of their devices.
  [[nodiscard]] pp::store& line() { return own_ ? own_->line() : everyone; }
  [[nodiscard]] std::string pipeline_name() const {
    return pp::group_of(chosen.layout, pp::rank_axis::pipeline, rank).name;
  }
  [[nodiscard]] patient_wait wait_for(char const* whom) const {
    return {&everyone, chosen.deadline, whom};
  }
  [[nodiscard]] replica_group replicas() const {
    return {groups.replicas, wait_for("its replicas")};
  }
  [[nodiscard]] pp::mpi_ranks runner_options() const {
    return {.deadline = chosen.deadline, .elements = "f32"};
  }
  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(o.seed); }
  //! Whether this rank speaks for its pipeline, or for all of them.
  [[nodiscard]] bool leads_pipeline() const { return place.device == 0 && place.shard == 0; }
  [[nodiscard]] bool leads() const { return leads_pipeline() && place.replica == 0; }

private:
  std::optional<pp::mpi_store> own_;
};

} // namespace gpt
