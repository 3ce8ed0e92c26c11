// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What you learn: a pipeline over NCCL, one process per GPU, on one machine or several. How to run,
// with two GPUs:
//   mpirun -n 2 build/gcc/bin/nccl_pipeline
// Expected output: step 1: loss ..., and a loss at the end that is a fraction of it;
// docs/how_to/run_with_nccl.md
// Started again by its launcher, it goes on from its checkpoints:
//   torchrun --no-python --nproc-per-node=2 --max-restarts=3 build/gcc/bin/nccl_pipeline
//     --checkpoint checkpoints
#include <cstdio>
#include <cstdlib>
#include <examples/nccl/train.cuh>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tools/support/split_words.hpp>
#include <tools/support/termination.hpp>
#include <vector>

namespace {

constexpr char const* usage =
  "usage: nccl_pipeline [--graph] [--mixed] [--steps N] [--microbatches N] [--deadline SECONDS]\n"
  "                     [--fail-at STEP] [--checkpoint FOLDER] [--every STEPS]\n"
  "Start one process per GPU with mpirun, srun or torchrun. MASTER_ADDR and MASTER_PORT say where "
  "rank 0 is.\n";

std::string text(std::vector<std::string_view> const& words, std::size_t& at) {
  if (at + 1 == words.size())
    throw std::invalid_argument(std::string(words[at]) + " needs a value");
  return std::string(words[++at]);
}

int number(std::vector<std::string_view> const& words, std::size_t& at) {
  std::string const name(words[at]);
  try {
    if (at + 1 < words.size())
      return std::stoi(std::string(words[++at]));
  } catch (std::exception const&) { // said below
  }
  throw std::invalid_argument(name + " needs a whole number");
}

example::options read_options(std::vector<std::string_view> const& words) {
  example::options chosen;
  for (std::size_t at = 0; at < words.size(); ++at) {
    std::string_view const word = words[at];
    if (word == "--graph")
      chosen.graph = true;
    else if (word == "--mixed")
      chosen.mixed = true;
    else if (word == "--steps")
      chosen.steps = number(words, at);
    else if (word == "--microbatches")
      chosen.microbatches = number(words, at);
    else if (word == "--deadline")
      chosen.deadline = std::chrono::seconds(number(words, at));
    else if (word == "--fail-at")
      chosen.failing_step = number(words, at) - 1;
    else if (word == "--checkpoint")
      chosen.checkpoint = text(words, at);
    else if (word == "--every")
      chosen.every = number(words, at);
    else
      throw std::invalid_argument("there is no option " + std::string(word) + "\n" + usage);
  }
  if (chosen.every < 1)
    throw std::invalid_argument("--every needs a number of steps, 1 or more");
  return chosen;
}

} // namespace

int main(int count, char** words) {
  example::keep_termination_for_later();
  int rank = 0;
  try {
    example::options const chosen = read_options(examples::split_words(count, words));
    pipelining::launch_environment const here = pipelining::read_launch_environment();
    rank = here.rank;
    auto const trained = example::train<pipelining::detail::polling_clock>(here, chosen);
    auto const& losses = trained.losses;
    if (trained.began > 0 && here.rank == 0)
      std::printf("went on after step %d\n", trained.began);
    for (std::size_t step = 0; step < losses.size(); step += losses.size() < 10 ? 1 : 10)
      std::printf("step %zu: loss %.3f\n", step + 1, static_cast<double>(losses[step]));
    if (!losses.empty())
      std::printf(
        "after %zu steps: loss %.3f\n", losses.size(), static_cast<double>(losses.back()));
    return 0;
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "nccl_pipeline, rank %d: %s\n", rank, failure.what());
    std::fflush(stderr);
    std::_Exit(1); // destructors could wait for what never ends
  }
}
