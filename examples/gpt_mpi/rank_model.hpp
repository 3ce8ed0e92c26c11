// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The stages of one rank, and the runner that drives them.

#include <pipe/core/shape.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/run/context.hpp>
#include <pipe/run/mpi.hpp>
#include <pipe/run/store.hpp>
#include <pipe/timetable/timetable.hpp>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../gpt/pipeline.hpp"

namespace gpt {

//! A stage of the model, where it is at home; on all other ranks an empty place that no pass
//! visits.
struct place_of_stage {
  std::unique_ptr<pipeline_stage> here;

  void forward(pp::context const& where, pp::input x, pp::output y) { here->forward(where, x, y); }
  void backward(pp::context const& where, pp::input dy, pp::output dx) {
    here->backward(where, dy, dx);
  }
  void backward_input(pp::context const& where, pp::input dy, pp::output dx) {
    here->backward_input(where, dy, dx);
  }
  void backward_weight(pp::context const& where) { here->backward_weight(where); }
};

//! This rank's share of the model: parameters, activations and optimizer of its own stages only.
class rank_model {
public:
  //! @throws std::invalid_argument for a timetable that keeps two copies of each stage
  rank_model(model_size const& size,
             pp::timetable_view table,
             std::uint64_t seed,
             int rank,
             pp::store& line,
             pp::mpi_ranks const& options)
      : places_(make_places(size, table.extents, seed, rank, memory_)),
        runner_(lower(size, table), places_, line, MPI_COMM_WORLD, options) {}

  //! Forward and backward of all microbatches, without the optimizer.
  void step(batch const& pieces) {
    for_each_stage([&](std::size_t, pipeline_stage& stage) { stage.set_batch(pieces); });
    runner_.step();
  }

  //! Ends the run on all ranks.
  [[noreturn]] void fail(std::string const& why) { runner_.fail(why); }

  //! One step of the optimizer.
  void update(adamw const& optimizer, std::int64_t step) {
    for_each_stage([&](std::size_t, pipeline_stage& stage) { stage.update(optimizer, step); });
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
  static std::vector<place_of_stage> make_places(model_size const& size,
                                                 pp::shape const& extents,
                                                 std::uint64_t seed,
                                                 int rank,
                                                 device_memory<float>& memory) {
    check_one_copy(extents);
    std::vector<place_of_stage> places;
    for (auto const& layers : cut_layers(size.layers, pp::stages(extents))) {
      place_of_stage place;
      if (pp::device_of(extents, static_cast<int>(places.size())) == rank) {
        place.here =
          std::make_unique<pipeline_stage>(size, layers, cut_for(size, extents), seed, memory);
      }
      places.push_back(std::move(place));
    }
    return places;
  }

  static pp::plan lower(model_size const& size, pp::timetable_view table) {
    auto const chunks = cut_sequence(size.sequence, table.extents.chunks);
    return pp::lower(table, message_sizes{size, &chunks});
  }

  device_memory<float> memory_;
  std::vector<place_of_stage> places_;
  pp::mpi_runner<std::vector<place_of_stage>> runner_;
};

} // namespace gpt
