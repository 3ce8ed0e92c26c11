// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which ranks a rank works with.

#include <pipe/cluster/rank_layout.hpp>

#include <mpi.h>

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
    if (layout.replicas > 1) {
      split(pp::rank_axis::data, replicas);
    }
    if (layout.shards > 1) {
      split(pp::rank_axis::tensor, shards);
    }
  }
};

} // namespace gpt
