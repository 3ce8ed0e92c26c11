// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The command line of the backends on GPUs.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../options.hpp"
#include "../papers/attention_exchange.hpp"
#include "../papers/vocabulary.hpp"
#include "../stage.hpp"
#include "gpu_stage.hpp"

namespace gpt {

inline constexpr char const* gpu_usage =
  "usage: gpt --backend cuda [--bf16] [--graph] [OPTION [VALUE]]...\n"
  "       mpirun -n P gpt --backend nccl [--bf16] [--graph] [--deadline S] [OPTION [VALUE]]...\n"
  "Products by cuBLAS, rows and single numbers by CUB and Thrust, attention by the kernels of the\n"
  "library. A head must have 64 or 128 elements, so the model is of --width 256 and --heads 4 by\n"
  "itself. All options of --with are there. --tensor N wants nccl with N times as many ranks as\n"
  "--devices; more are replicas of the pipeline with --microbatches each,\n"
  "which share the weights that --with sharded-weights or gathered-once gathers.\n\n"
  "  --bf16             products multiply numbers in bf16; what is trained stays in float\n"
  "  --graph            every step but the first is one CUDA graph\n"
  "  --deadline S       nccl: seconds that a rank waits for others before the run fails (60)\n"
  "  --checkpoint       as below, with either backend; ranks go on from the newest that has all\n"
  "                     tensors of each, whoever has written them\n\n";

struct gpu_options {
  options common;
  operands numbers = operands::float32;
  bool graph = false;
  std::chrono::seconds deadline{60};

  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(common.seed); }
};

//! @param ranks of a run over NCCL: as many devices, unless told otherwise; 0: on one GPU
//! @throws std::invalid_argument with one line for the user
[[nodiscard]] inline gpu_options read_gpu_options(std::vector<std::string_view> const& given,
                                                  int ranks = 0) {
  gpu_options chosen;
  std::vector<std::string_view> words{"--width", "256", "--heads", "4"};
  words.insert(words.end(), given.begin(), given.end());
  chosen.numbers = detail::take_word(words, "--bf16") ? operands::bf16 : operands::float32;
  chosen.graph = detail::take_word(words, "--graph");
  chosen.deadline = std::chrono::seconds(detail::take_number(words, "--deadline", 60));
  chosen.common = read_options(words);
  if (ranks > 0 && std::find(words.begin(), words.end(), "--devices") == words.end()) {
    auto const shards = has_shards_of_stages(chosen.common) ? shards_of_stages(chosen.common) : 1;
    chosen.common.devices = std::max(ranks / shards, std::int64_t{1});
  }
  if (chosen.common.post_validation && chosen.graph) {
    throw std::invalid_argument("with --post-validation the host decides in the middle of an "
                                "iteration, which a graph does not let it; leave out --graph");
  }
  auto const& named = registry::find_schedule(chosen.common.schedule);
  if (named.traits.weights_travel || named.traits.stages_go_one_way) {
    throw std::invalid_argument("on GPUs every stage has a device, where it goes forward and back; "
                                "--backend threads has " +
                                chosen.common.schedule);
  }
  return chosen;
}

//! Those of with_vocabulary, where the vocabulary is in shards.
[[nodiscard]] inline std::optional<int> barriers_in(options const& o) {
  return registry::has_shards(o.own.adapted) ? std::optional(barriers_of(o)) : std::nullopt;
}

//! The schedule whose devices take over attention of each other, where that is chosen.
[[nodiscard]] inline std::optional<exchange_schedule> exchange_in(options const& o) {
  return o.own.adapted == registry::adapter::attention_exchange
           ? std::optional(exchange_system::schedule(o))
           : std::nullopt;
}
//! Whether stages are more than layers of a schedule: they have no costs, nor other schedules
//! beside them.
[[nodiscard]] inline bool is_system(options const& o) {
  return barriers_in(o) || exchange_in(o);
}

//! What schedules may lie from the host: attention rounds to bf16, and products may.
[[nodiscard]] inline double allowed_error(operands numbers) {
  return numbers == operands::bf16 ? 0.03 : 0.02;
}

} // namespace gpt
