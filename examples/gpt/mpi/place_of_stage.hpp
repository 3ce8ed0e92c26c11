// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A stage where it is at home, and what it shares with other ranks: the other copy of it in
//! its pipeline, its replicas in others.

#include <pipe/run/context.hpp>

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "../pipeline.hpp"
#include "patient_wait.hpp"
#include "replica_sum.hpp"

namespace gpt {

//! What a rank shares with the rank of its pipeline that has the other copies of its stages.
struct copy_group {
  MPI_Comm pipeline = MPI_COMM_NULL;
  patient_wait wait{};
};

//! A stage of the model, where it is at home, be it for some of the microbatches; on all other
//! ranks an empty place that no pass visits. Where a pipeline has two copies of it, one of them.
struct place_of_stage {
  static constexpr bool takes_chunks = true;
  std::unique_ptr<pipeline_stage> here{};
  replica_group replicas{};
  MPI_Comm pipeline = MPI_COMM_NULL;
  int other = -1;                 //!< the rank that has the other copy; -1: there is none
  std::vector<float> gradients{}; //!< all of the stage behind each other, where it has replicas
  replica_sum sum{};
  copy_sum with_copy{};
  bool fails = false;

  void forward(pp::context const& where, pp::input x, pp::output y) {
    if (fails && where.microbatch == 1) {
      throw std::runtime_error("it was told to, by --fail-at");
    }
    here->forward(where, x, y);
  }
  void backward(pp::context const& where, pp::input dy, pp::output dx) {
    here->backward(where, dy, dx);
  }
  void backward_input(pp::context const& where, pp::input dy, pp::output dx) {
    here->backward_input(where, dy, dx);
  }
  void backward_weight(pp::context const& where) { here->backward_weight(where); }
  void gather_weights(pp::context const& where, pp::output out) {
    here->gather_weights(where, out);
  }
  void use_weights(pp::context const& where, pp::input in) { here->use_weights(where, in); }
  void collect_gradients(pp::context const& where, pp::output out) {
    here->collect_gradients(where, out);
  }
  void scatter_gradients(pp::context const& where, pp::input in) {
    here->scatter_gradients(where, in);
  }

  //! Nothing is added to the gradients of this stage any more in this step, while other stages
  //! still run: the sum with the other copy begins, or that with the replicas.
  void gradients_ready(pp::context const& where) {
    if (other >= 0) {
      with_copy.start(*here, other, where.stage, pipeline);
    } else {
      start_replicas();
    }
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
  void take_mean() {
    auto from = gradients.begin();
    here->for_each_parameter([&](parameter<float>& p) {
      auto const count = static_cast<std::ptrdiff_t>(p.gradient.size());
      std::copy_n(from, count, p.gradient.begin());
      from += count;
    });
  }

  template <class Visit>
  void for_each_parameter(Visit visit) {
    here->for_each_parameter(visit);
  }
  void refresh() { here->refresh(); }

  static constexpr std::int64_t totals_bytes = 0; //!< the optimizer is not called by the library

private:
  void start_replicas() {
    if (replicas.communicator == MPI_COMM_NULL) {
      return;
    }
    gradients.clear();
    here->for_each_parameter([&](parameter<float> const& p) {
      gradients.insert(gradients.end(), p.gradient.begin(), p.gradient.end());
    });
    sum.start(gradients, replicas.communicator);
  }
};

} // namespace gpt
