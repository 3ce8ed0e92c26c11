// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief An attempt at the run, as one rank sees it: its command line, and which ranks it works
//! with.

#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/mpi/mpi.hpp>
#include <pipe/mpi/store.hpp>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../saved_state.hpp"
#include "sums.hpp"

namespace gpt {

inline constexpr char const* usage_of_ranks =
  "usage: mpirun -n N gpt_mpi [OPTION VALUE]... [--check]\n"
  "Trains a byte-level GPT in a pipeline of N processes, or in several that share the batch. "
  "Options are those of\ngpt, without --output, and\n\n"
  "  --devices P          devices of a pipeline (N / T), each a process, or T of them with "
  "--tensor T;\n"
  "                       N / P / T pipelines have --microbatches each\n"
  "  --checkpoint FOLDER  write checkpoints there, and go on from the newest that all ranks\n"
  "                       have, written by other devices, stages or shards or by the same\n"
  "  --every K            steps between two checkpoints (10)\n"
  "  --restarts R         when a step fails and all processes live, go on from the checkpoint in\n"
  "                       the same processes, at most R times (0)\n"
  "  --fail-at S          the last stage of the first pipeline fails in step S, once: to see a "
  "restart\n"
  "  --deadline S         seconds that a rank waits for a message before the run fails (60)\n"
  "  --reports FOLDER     when the run fails, every rank also writes its report there\n"
  "  --check              train once more in one process, and compare all gradients and weights\n";

struct rank_options {
  options training{}; //!< of one pipeline
  pp::rank_layout layout{};
  std::int64_t restarts = 0;
  std::int64_t fail_at = 0; //!< counted from 1; 0: never
  bool check = false;
  std::chrono::seconds deadline{60};
  std::string reports{};
};

//! @throws std::invalid_argument with one line for the user
[[nodiscard]] inline rank_options read_rank_options(std::vector<std::string_view> const& words,
                                                    int ranks) {
  rank_options chosen;
  if (std::find(words.begin(), words.end(), "--output") != words.end())
    throw std::invalid_argument("--output is not for gpt_mpi: no files are written");
  detail::known_option const of_ranks[] = {{"--check", &chosen.check},
                                           {"--restarts", &chosen.restarts, 1000000},
                                           {"--fail-at", &chosen.fail_at, 1000000},
                                           {"--deadline", &chosen.deadline, 1000000},
                                           {"--reports", &chosen.reports}};
  chosen.training = read_options(words, {}, of_ranks, ranks);
  if (chosen.restarts > 0 && chosen.training.checkpoint.empty())
    throw std::invalid_argument("--restarts wants a --checkpoint to go on from");
  auto const shards = static_cast<int>(shards_of_stages(chosen.training));
  chosen.layout = pp::layout_of(ranks, static_cast<int>(chosen.training.devices), shards);
  return chosen;
}

//! All that must be the same on all ranks.
[[nodiscard]] inline std::string about_ranks(rank_options const& chosen,
                                             text_to_learn const& text) {
  // All members: one that is new does not compile before it has its place here.
  auto const& [training, layout, restarts, fail_at, check, deadline, reports] =
    chosen; // folders, patience and a failure may be a rank's own
  run_lines lines;
  lines.add("checkpoints", training.checkpoint.empty() ? "no" : "yes");
  lines.add("every", training.every);
  lines.add("restarts", restarts);
  lines.add("check", check ? "yes" : "no");
  return "options=read\n" + about_state(training, layout.replicas, text) +
         about_parts("gpt", training, text).cut + pp::lines_of(layout) + lines.text;
}

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
  [[nodiscard]] pp::mpi_options runner_options() const {
    return {.deadline = chosen.deadline, .elements = "f32"};
  }
  //! Whether this rank speaks for its pipeline, or for all of them.
  [[nodiscard]] bool leads_pipeline() const { return place.device == 0 && place.shard == 0; }
  [[nodiscard]] bool leads() const { return leads_pipeline() && place.replica == 0; }

private:
  std::optional<pp::mpi_store> own_;
};

} // namespace gpt
