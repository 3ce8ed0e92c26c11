// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The command line of the example.

#include <pipe/cluster/rank_layout.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../options.hpp"
#include "../saved_state.hpp"
#include "../text.hpp"

namespace gpt {

namespace pp = pipelining;

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
[[nodiscard]] inline rank_options read_rank_options(std::vector<std::string_view> const& given,
                                                    int ranks) {
  using namespace gpt::detail;
  rank_options chosen;
  auto words = given;
  chosen.check = take_word(words, "--check");
  if (std::find(words.begin(), words.end(), "--output") != words.end())
    throw std::invalid_argument("--output is not for gpt_mpi: no files are written");
  auto const devices = take_number(words, "--devices", 0);
  chosen.restarts = take_number(words, "--restarts", 0);
  chosen.fail_at = take_number(words, "--fail-at", 0);
  chosen.deadline = std::chrono::seconds(take_number(words, "--deadline", 60));
  chosen.reports = take_value(words, "--reports").value_or("");
  chosen.training = read_options(words);
  if (chosen.restarts > 0 && chosen.training.checkpoint.empty())
    throw std::invalid_argument("--restarts wants a --checkpoint to go on from");
  auto const shards = has_shards_of_stages(chosen.training) ? shards_of_stages(chosen.training) : 1;
  chosen.training.devices = devices != 0 ? devices : std::max<std::int64_t>(ranks / shards, 1);
  chosen.layout =
    pp::layout_of(ranks, static_cast<int>(chosen.training.devices), static_cast<int>(shards));
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
         about_parts("gpt", training, text).cut + pp::lines_of(layout) + lines.text();
}

} // namespace gpt
