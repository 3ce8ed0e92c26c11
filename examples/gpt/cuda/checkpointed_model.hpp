// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A model on GPUs in training, with checkpoints between its steps.

#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "../saved_state.hpp"
#include "gpu_report.hpp"
#include "named_state.hpp"

namespace gpt {

//! Where a process keeps its checkpoints, which another cut of the model may go on from.
[[nodiscard]] inline pp::checkpoint_place checkpoints_in(gpu_options const& o,
                                                         std::string const& owner,
                                                         pp::rank_layout const& layout,
                                                         text_to_learn const& text) {
  char const* const program = o.numbers == operands::bf16 ? "gpt on GPUs in bf16" : "gpt on GPUs";
  run_lines lines;
  lines.add("sequences-of-step", layout.replicas * o.common.microbatches);
  return {o.common.checkpoint,
          owner,
          about_parts(program, o.common, text).learning + lines.text(),
          layout};
}

//! All that must be the same on all ranks.
[[nodiscard]] inline std::string
about_ranks(gpu_options const& o, pp::checkpoint_place const& files, text_to_learn const& text) {
  // All members: one that is new does not compile before it has its place here.
  auto const& [common, numbers, graph, deadline] = o; // patience is a rank's own
  run_lines lines;
  lines.add("graph", graph ? "yes" : "no");
  lines.add("checkpoints", common.checkpoint.empty() ? "no" : "yes");
  lines.add("every", common.every);
  return about_run("gpt over NCCL", common, text) + files.about + pp::lines_of(files.layout) +
         lines.text();
}

//! What has the stages of one process. Ranks that have theirs elsewhere make the same calls.
template <class Model>
struct checkpointed_model {
  Model& model;
  saved_steps saved;
  std::int64_t done = 0; //!< steps so far

  //! Goes on from a checkpoint, where there is one. @param load of `saved`: `load(tensors)`
  template <class Load>
  void restore(Load load) {
    named_state const state(model, model.parts(), model.counts_steps());
    if (load(state.all())) {
      done = saved.first;
      state.use(model);
    }
  }
  //! Whether there are steps left. @param tells where they begin, if not at the beginning
  [[nodiscard]] bool has_steps(bool tells) const {
    if (tells && saved.first > 0)
      std::printf("goes on after step %lld\n", static_cast<long long>(saved.first));
    return saved.first < saved.steps;
  }

  double step(batch const& pieces) { return model.step(pieces); }
  void update(adamw const& optimizer, std::int64_t step) {
    model.update(optimizer, step);
    done = step + 1;
  }
  void use(pp::timetable_view table, std::vector<std::int64_t> const& lengths) {
    model.use(table, lengths);
  }
  [[nodiscard]] auto const& plans() const { return model.plans(); }
  [[nodiscard]] auto const& plan_in_use() const { return model.plan_in_use(); }
  //! Between steps, when the times of the last one have been read.
  void begin_step() {
    if (done > saved.first && saved.wants(done)) {
      named_state const state(model, model.parts(), model.counts_steps());
      try {
        pp::checkpoint_place place = saved.files;
        for (auto const& each : state.in_files()) {
          pp::save_tensors(place, done, each);
          place.owner += "-more";
        }
      } catch (std::runtime_error const& error) {
        if constexpr (requires { model.runner().fail(error.what()); }) // on all ranks
          model.runner().fail(std::string("could not save its state: ") + error.what());
        throw;
      }
    }
  }
  void finish() {
    begin_step(); // there is none
    model.finish();
  }
  [[nodiscard]] pp::dynamic_timetable trace() { return model.trace(); }
};

} // namespace gpt
