// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Trains a byte-level GPT in a pipeline of virtual devices on one GPU, and compares
//! schedules with each other bit by bit and with the model on the host.
//!
//! What to read, in this order: layer.cuh (a layer as products, rows and attention), stage.cuh
//! (what a stage does in each pass and where it keeps what), pipelined_model.cuh (how the library
//! runs the stages), then this file. The host's model in examples/gpt has the same layers, one
//! function each.

#include <pipe/core/shape.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../gpt/options.hpp"
#include "../gpt/report.hpp"
#include "../gpt/text.hpp"
#include "../gpt/training.hpp"
#include "../support/split_words.hpp"
#include "gpu_model.hpp"
#include "relative_error.hpp"

namespace {

using namespace gpt;

constexpr char const* gpu_usage =
  "usage: gpt_cuda [--bf16] [--graph] [OPTION [VALUE]]...\n"
  "The model of `gpt` in a pipeline of virtual devices on one GPU, an arena each: products by "
  "cuBLAS,\n"
  "rows and single numbers by CUB, attention by the kernels of the library. Options are those of\n"
  "`gpt` but for --with, --clip, --post-validation, --costs and --output; a head must have 64 or "
  "128\n"
  "elements, so the model is of --width 256 and --heads 4 by itself.\n\n"
  "  --bf16             products multiply numbers in bf16; what is trained stays in float\n"
  "  --graph            every step but the first is one CUDA graph\n\n";

constexpr int skipped = 77;

struct gpu_options {
  options common;
  operands numbers = operands::float32;
  bool graph = false;
};

//! @throws std::invalid_argument with one line for the user
gpu_options read_gpu_options(std::vector<std::string_view> const& given) {
  gpu_options chosen;
  std::vector<std::string_view> words{"--width", "256", "--heads", "4"};
  for (auto const word : given) {
    if (word == "--bf16") {
      chosen.numbers = operands::bf16;
    } else if (word == "--graph") {
      chosen.graph = true;
    } else {
      words.push_back(word);
    }
  }
  for (auto const* const lacking :
       {"--with", "--clip", "--post-validation", "--costs", "--output"}) {
    if (std::find(words.begin(), words.end(), lacking) != words.end()) {
      throw std::invalid_argument(std::string("gpt_cuda has no ") + lacking +
                                  "; gpt, on the host, has it");
    }
  }
  chosen.common = read_options(words);
  return chosen;
}

//! One step of a schedule from the first weights.
struct first_step {
  double loss = 0;
  std::vector<float> gradients;
};

first_step step_of(gpu_options const& o, pp::timetable_view table, batch const& pieces) {
  auto const& c = o.common;
  gpu_model model(c.size,
                  table,
                  cut_for(table, c.lengths),
                  static_cast<std::uint64_t>(c.seed),
                  {.numbers = o.numbers});
  double const loss = model.step(pieces);
  return {loss, model.gradients()};
}

//! The schedules that are compared at the end of every run, beside the chosen one.
constexpr char const* compared_schedules[] = {"1f1b", "interleaved", "zb-h1", "v-half", "seq1f1b"};

//! What schedules may lie from the host: attention rounds to bf16, and products may.
double allowed_error(operands numbers) {
  return numbers == operands::bf16 ? 0.03 : 0.02;
}

//! Compares schedules with the host, and bit by bit with each other where their sums are the same:
//! those of as many chunks, and in the same order of microbatches.
bool compare_schedules(gpu_options const& o, batch const& pieces) {
  auto const& c = o.common;
  auto const host = gradients_of_one_device(c, pieces);
  std::printf("\nOne step of every schedule: %lld virtual devices, %zu gradients\n"
              "  %-13s %6s  %8s  %19s  %s\n",
              static_cast<long long>(c.devices),
              host.size(),
              "schedule",
              "chunks",
              "loss",
              "error, of the host",
              "gradients differ from the first with the same sums");
  bool good = true;
  std::map<std::pair<int, bool>, first_step> first; // by chunks, and whether the last comes first
  std::vector<std::string> names(std::begin(compared_schedules), std::end(compared_schedules));
  if (std::find(names.begin(), names.end(), name_of(c)) == names.end()) {
    names.push_back(name_of(c));
  }
  for (auto const& name : names) {
    auto const table = timetable_of(c, name);
    auto const step = step_of(o, table, pieces);
    auto const [beside, is_first] =
      first.try_emplace({table.extents.chunks, adds_from_last(table)}, step);
    std::size_t different = 0;
    for (std::size_t i = 0; i < step.gradients.size(); ++i) {
      different +=
        std::memcmp(&step.gradients[i], &beside->second.gradients[i], sizeof(float)) != 0 ? 1u : 0u;
    }
    double const error = relative_error(step.gradients, host);
    std::printf("  %-13s %6d  %8.4f  %17.3f %%  %s\n",
                name.c_str(),
                table.extents.chunks,
                step.loss,
                100 * error,
                is_first ? "(the first)" : std::to_string(different).c_str());
    good = good && different == 0 && error < allowed_error(o.numbers);
  }
  return good;
}

int run(gpu_options o) {
  auto& c = o.common;
  auto const text = find_text(c.text, GPT_EXAMPLE_README);
  auto const table = timetable_of(c, name_of(c));
  c.lengths = lengths_of(c.size, table);
  for (auto const* name : compared_schedules) {
    (void)timetable_of(c, name); // what cannot be cut is refused before the training, not after
  }
  std::printf("GPT (%lld layers, width %lld, %lld heads, sequences of %lld bytes) on %lld virtual "
              "devices of one GPU, products in %s, schedule %s\n",
              static_cast<long long>(c.size.layers),
              static_cast<long long>(c.size.width),
              static_cast<long long>(c.size.heads),
              static_cast<long long>(c.size.sequence),
              static_cast<long long>(c.devices),
              o.numbers == operands::bf16 ? "bf16" : "float",
              name_of(c).c_str());
  training result;
  {
    gpu_model model(c.size,
                    table,
                    cut_for(table, c.lengths),
                    static_cast<std::uint64_t>(c.seed),
                    {.numbers = o.numbers, .graph = o.graph, .timed = true});
    result = train_model(c, text, model);
  }
  double const unigram = unigram_entropy(text.bytes);
  std::printf("loss %.3f nats per byte, %.3f %s the unigram entropy; %.2f ms a step\n",
              result.losses.back(),
              std::abs(unigram - result.losses.back()),
              result.losses.back() < unigram ? "below" : "above",
              1e3 * result.step_seconds);
  if (result.interrupted) {
    check_output();
    return 128 + SIGINT;
  }
  std::mt19937_64 random(static_cast<std::uint64_t>(c.seed) + 1);
  bool const good =
    compare_schedules(o, random_batch(text.bytes, c.microbatches, c.size.sequence, random));
  check_output();
  if (!good) {
    std::fprintf(stderr,
                 "gpt_cuda: gradients differ between schedules, or are too far from the host's\n");
  }
  return good ? 0 : 1;
}

} // namespace

int main(int count, char** words) {
  try {
    auto const chosen = read_gpu_options(examples::split_words(count, words));
    if (chosen.common.help) {
      std::fputs(gpu_usage, stdout);
      std::fputs(usage, stdout);
      check_output();
      return 0;
    }
    if (auto const why = missing_gpu(); !why.empty()) {
      std::printf("skipped, %s\n", why.c_str());
      return skipped;
    }
    return run(chosen);
  } catch (std::invalid_argument const& error) {
    std::fprintf(stderr, "gpt_cuda: %s\n", error.what());
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpt_cuda: %s\n", error.what());
    return 1;
  }
}
