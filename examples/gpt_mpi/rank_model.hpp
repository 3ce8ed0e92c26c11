// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The stages of one rank, the runner that drives them, and what they share with their
//! replicas.

#include <pipe/core/shape.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/mpi.hpp>
#include <pipe/run/store.hpp>
#include <pipe/timetable/timetable.hpp>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../gpt/pipeline.hpp"
#include "replica_sum.hpp"

namespace gpt {

//! What a rank shares with the ranks that have the same stages in other pipelines.
struct replica_group {
  MPI_Comm communicator = MPI_COMM_NULL; //!< null: there is one pipeline alone
  pp::store* everyone = nullptr;         //!< of the whole run: tells whether a replica has failed
  std::chrono::seconds deadline{60};

  //! Waits for MPI, but not for a replica that is gone.
  //! @throws std::runtime_error with what goes on after "rank 2"
  void operator()(MPI_Request& request) const {
    auto const end = std::chrono::steady_clock::now() + deadline;
    for (int done = 0;;) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        throw std::runtime_error("cannot reach its replicas by MPI");
      }
      if (done != 0) {
        return;
      }
      if (auto const reason = everyone->failure()) {
        throw std::runtime_error("has lost a replica: " + *reason);
      }
      if (std::chrono::steady_clock::now() >= end) {
        throw std::runtime_error("has waited for its replicas beyond the deadline");
      }
      std::this_thread::yield();
    }
  }
};

//! A stage of the model, where it is at home, be it for some of the microbatches; on all other
//! ranks an empty place that no pass visits.
struct place_of_stage {
  std::unique_ptr<pipeline_stage> here{};
  MPI_Comm replicas = MPI_COMM_NULL;
  std::vector<float> gradients{}; //!< all of the stage behind each other, where it has replicas
  replica_sum sum{};
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
  //! still run: the sum with the replicas begins.
  void gradients_ready(pp::context const&) {
    if (replicas == MPI_COMM_NULL) {
      return;
    }
    gradients.clear();
    here->for_each_parameter([&](parameter<float> const& p) {
      gradients.insert(gradients.end(), p.gradient.begin(), p.gradient.end());
    });
    sum.start(gradients, replicas);
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
};

//! @throws std::invalid_argument for pipelines that keep two copies of each stage
inline void check_one_copy(pp::shape const& extents) {
  if (extents.where == pp::placement::bidirectional) {
    throw std::invalid_argument(
      "schedules that enter at both ends keep two copies of each stage, whose gradients would have "
      "to be added up; the example has one copy: take dualpipe-v, which folds them");
  }
}

//! This rank's share of the model: parameters, activations and optimizer of its own stages only.
class rank_model {
public:
  //! @param lengths tokens of the sequence of each microbatch
  //! @param device of the plan that this rank is. @param line the store of its pipeline
  //! @param pipeline the ranks of its pipeline
  //! @throws std::invalid_argument for a timetable that keeps two copies of each stage
  rank_model(model_size const& size,
             pp::timetable_view table,
             std::vector<std::int64_t> const& lengths,
             std::uint64_t seed,
             int device,
             pp::store& line,
             MPI_Comm pipeline,
             replica_group replicas,
             pp::mpi_ranks const& options)
      : replicas_(replicas),
        places_(make_places(size, table, cut_for(table, lengths), seed, device, memory_, replicas)),
        sizes_(size, cut_for(table, lengths), table), plan_(pp::lower(table, sizes_)),
        runner_(plan_, places_, line, pipeline, options) {}

  //! Forward and backward of all microbatches, and the mean of gradients over the replicas, without
  //! the optimizer.
  void step(batch const& pieces) {
    for_each_stage([&](std::size_t, pipeline_stage& stage) { stage.set_batch(pieces); });
    runner_.step();
    if (replicas_.communicator == MPI_COMM_NULL) {
      return;
    }
    std::string failure;
    try {
      for_each_place([&](place_of_stage& each) { each.sum.share(replicas_); });
      for_each_place([&](place_of_stage& each) { each.sum.finish(replicas_); });
    } catch (std::runtime_error const& error) {
      failure = error.what();
    }
    if (!failure.empty()) {
      runner_.fail(failure);
    }
    for_each_place([&](place_of_stage& each) { each.take_mean(); });
  }

  //! The last stage throws in the next step, where it is here.
  void fail_in_next_step(bool fails) {
    if (places_.back().here) {
      places_.back().fails = fails;
    }
  }

  //! What of each device of the pipeline lay in slots in the last step. Collective.
  [[nodiscard]] std::vector<slot_bytes> slots() {
    return slot_bytes_of(plan_, runner_.trace(), sizes_);
  }

  //! Ends the run on all ranks.
  [[noreturn]] void fail(std::string const& why) { runner_.fail(why); }

  //! One step of the optimizer.
  void update(adamw const& optimizer, std::int64_t step) {
    for_each_stage([&](std::size_t, pipeline_stage& stage) { stage.update(optimizer, step); });
  }

  //! Hands all that this rank has learnt to a packer, or has it filled by an unpacker: weights and
  //! both averages of the optimizer. Gradients are zero between two steps.
  template <class Archive>
  void exchange(Archive& with) {
    for_each_stage([&](std::size_t, pipeline_stage& stage) {
      stage.for_each_parameter([&](parameter<float>& p) {
        with(p.value);
        with(p.mean);
        with(p.square);
      });
      stage.refresh();
    });
  }

  //! The mean loss of the step, where the last stage is.
  [[nodiscard]] std::optional<double> loss() const {
    return places_.back().here ? std::optional(places_.back().here->loss()) : std::nullopt;
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

private:
  // In the order of the stages, which is the same on all replicas.
  template <class Visit>
  void for_each_place(Visit visit) {
    for (place_of_stage& each : places_) {
      if (each.here) {
        visit(each);
      }
    }
  }

  static std::vector<place_of_stage> make_places(model_size const& size,
                                                 pp::timetable_view table,
                                                 step_cut const& cut,
                                                 std::uint64_t seed,
                                                 int device,
                                                 device_memory<float>& memory,
                                                 replica_group const& replicas) {
    pp::shape const& extents = table.extents;
    check_one_copy(extents);
    std::vector<place_of_stage> places;
    for (auto const& layers : cut_model(size, extents)) {
      place_of_stage place;
      bool here = false;
      for (int route = 0; route < pp::routes(extents); ++route) {
        here = here || pp::device_of(table, static_cast<int>(places.size()), route) == device;
      }
      if (here) {
        place.here = std::make_unique<pipeline_stage>(size, layers, cut, seed, memory);
        place.replicas = replicas.communicator;
        if (gathers_weights_of(table, static_cast<int>(places.size()))) {
          place.here->shard(weight_shard_count);
        }
      }
      places.push_back(std::move(place));
    }
    return places;
  }

  device_memory<float> memory_;
  replica_group replicas_;
  std::vector<place_of_stage> places_;
  slot_sizes sizes_;
  pp::plan plan_;
  pp::mpi_runner<std::vector<place_of_stage>> runner_;
};

} // namespace gpt
