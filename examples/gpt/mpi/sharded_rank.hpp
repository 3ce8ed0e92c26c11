// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A rank of a pipeline whose stages are shards: of layers (tensor parallel), or of the
//! vocabulary with layers between.

#include <pipe/flow/shape.hpp>
#include <pipe/mpi/mpi.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../adamw.hpp"
#include "../text.hpp"
#include "rank_run.hpp"
#include "replica_sum.hpp"

namespace gpt {

namespace pp = pipelining;

//! The stages that are at home on this rank, and the runner that drives them.
//! @tparam Stage as the library calls it
template <class Stage>
class sharded_rank {
public:
  static constexpr bool clips = false; //!< the optimizer steps between iterations

  //! @param make called with the number of each stage that is at home here; returns a unique_ptr
  template <class Sizes, class Make>
  sharded_rank(rank_run& run, pp::timetable_view table, Sizes const& sizes, Make make)
      : plan_(pp::lower(table, sizes)), mean_(run.replicas()) {
    for (int stage = 0; stage < table.over.extents.stages(); ++stage) {
      homes_.push_back(pp::device_of(table, stage));
      stages_.push_back(homes_.back() == run.place.device ? make(stage) : nullptr);
    }
    runner_ = std::make_unique<pp::mpi_runner<stages_here>>(
      plan_, stages_, run.line(), run.groups.pipeline, run.runner_options());
  }

  //! Forward and backward of all microbatches, and the mean of gradients over the replicas, without
  //! the optimizer.
  void step(batch const& pieces) {
    if (fails_) {
      fail("failed in this step: it was told to, by --fail-at");
    }
    for_each_stage([&](std::size_t, Stage& stage) { stage.set_batch(pieces); });
    runner_->step();
    outside_of(*runner_, [&] { mean_.take(*this); });
  }
  //! The next step fails, where the last stage is.
  void fail_in_next_step(bool fails) { fails_ = fails && stages_.back() != nullptr; }
  //! One step of the optimizer.
  void update(adamw const& optimizer, std::int64_t step) {
    for_each_stage([&](std::size_t, Stage& stage) { stage.update(optimizer, step); });
  }
  //! The mean loss of the step, where the last stage is.
  [[nodiscard]] std::optional<double> loss() const {
    return stages_.back() ? std::optional(stages_.back()->loss()) : std::nullopt;
  }

  //! When each pass of the last step ran, in seconds. Collective.
  [[nodiscard]] pp::dynamic_timetable trace() { return runner_->trace(); }
  [[nodiscard]] pp::plan const& plan() const { return plan_; }

  //! Calls visit(number, stage) for each stage of this rank.
  template <class Visit>
  void for_each_stage(Visit visit) {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (stages_[s]) {
        visit(s, *stages_[s]);
      }
    }
  }
  [[nodiscard]] std::size_t stage_count() const { return homes_.size(); }
  [[nodiscard]] std::size_t ways() const { return 1; }
  [[nodiscard]] int home_of(std::size_t stage, std::size_t) const { return homes_[stage]; }
  //! Ends the run on all ranks.
  [[noreturn]] void fail(std::string const& why) { runner_->fail(why); }

private:
  using stages_here = std::vector<std::unique_ptr<Stage>>; // null: elsewhere

  pp::plan plan_;
  replica_mean mean_;
  bool fails_ = false;
  std::vector<int> homes_; // device, by stage
  stages_here stages_;
  std::unique_ptr<pp::mpi_runner<stages_here>> runner_;
};

} // namespace gpt
