// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Trains a byte-level GPT in a pipeline of GPUs, a process each, with NCCL between them,
//! and compares the bits with those of virtual devices on one GPU.

#include <pipe/core/shape.hpp>
#include <pipe/cuda/error.cuh>
#include <pipe/cuda/handles.cuh>
#include <pipe/cuda/nccl.cuh>
#include <pipe/run/launch_environment.hpp>
#include <pipe/run/store.hpp>
#include <pipe/timetable/timetable.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../gpt/report.hpp"
#include "../gpt/run_system.hpp"
#include "../gpt/text.hpp"
#include "../gpt/training.hpp"
#include "../support/termination.hpp"
#include "gpu_model.hpp"
#include "gpu_options.hpp"
#include "gpu_rank.hpp"
#include "relative_error.hpp"

namespace gpt {

//! A model whose ranks end together, or not at all.
template <class Model, class Store>
struct rank_in_training {
  Model& model;
  Store& line;

  double step(batch const& pieces) {
    if (example::asked_to_end(line)) {
      model.runner().fail("was told to end (SIGTERM)");
    }
    return model.step(pieces);
  }
  void update(adamw const& optimizer, std::int64_t step) {
    model.update(optimizer, step);
    if (stop_wanted) { // after this step here, perhaps after another one elsewhere
      model.runner().fail("was interrupted");
    }
  }
  [[nodiscard]] pp::dynamic_timetable trace() { return model.trace(); }
};

//! What a rank has of one step from the first weights.
struct step_of_rank {
  double loss = 0;              //!< where the last stage is
  std::vector<float> gradients; //!< of its stages
};

//! One step over NCCL from the first weights. Collective.
template <class Clock>
step_of_rank step_over_nccl(gpu_options const& o,
                            pp::timetable_view table,
                            batch const& pieces,
                            pp::basic_store<Clock>& line,
                            int rank,
                            pp::cuda::nccl_ranks over) {
  over.name = "one step";
  auto model = on_rank<Clock>(o.common.size,
                              table,
                              cut_for(table, o.common.lengths),
                              o.seed(),
                              {.numbers = o.numbers},
                              line,
                              rank,
                              over);
  step_of_rank found{model.step(pieces), model.gradients()};
  model.runner().close();
  return found;
}

//! The gradients and the loss of one step against those of virtual devices on this rank's GPU, and
//! there against the host. Collective. Returns false where the rank that reports finds them wrong.
template <class Clock>
bool compare_ranks(gpu_options const& o,
                   pp::timetable_view table,
                   batch const& pieces,
                   pp::basic_store<Clock>& line,
                   int rank,
                   pp::cuda::nccl_ranks const& over) {
  auto const& c = o.common;
  auto const found = step_over_nccl(o, table, pieces, line, rank, over);
  auto alone = on_virtual_devices<Clock>(
    c.size, table, cut_for(table, c.lengths), o.seed(), {.numbers = o.numbers});
  double const loss = alone.step(pieces);
  std::vector<float> mine; // those of the stages that are here
  for (std::size_t s = 0; s < alone.stages().size(); ++s) {
    if (pp::device_of(table, static_cast<int>(s)) == rank) {
      auto const some = alone.stages()[s]->gradients();
      mine.insert(mine.end(), some.begin(), some.end());
    }
  }
  std::string const key = "gradients that differ/";
  line.set(key + std::to_string(rank), std::to_string(differences(found.gradients, mine)));
  if (pp::device_of(table, pp::stages(table.extents) - 1) != rank) {
    return true;
  }
  std::size_t different = 0;
  for (int other = 0; other < table.extents.devices; ++other) {
    different += std::stoul(line.get(key + std::to_string(other), o.deadline));
  }
  auto const all = alone.gradients();
  double const error = relative_error(all, gradients_of_one_device(c, pieces));
  std::printf(
    "\nOne step of %s over NCCL: %d ranks, held against virtual devices on one GPU: %zu of "
    "%zu gradients differ,\nthe loss is %.6f and %.6f; error, of the host: %.3f %%\n",
    name_of(c).c_str(),
    table.extents.devices,
    different,
    all.size(),
    found.loss,
    loss,
    100 * error);
  return different == 0 && found.loss == loss && error < allowed_error(o.numbers);
}

//! All of the run of one rank. Collective.
//! @param line of this rank to the store of the run
//! @return the exit status
template <class Clock>
int train_on_rank(gpu_options o, pp::launch_environment const& here, pp::basic_store<Clock>& line) {
  auto& c = o.common;
  if (c.devices != here.size) {
    throw std::invalid_argument("the schedule has --devices " + std::to_string(c.devices) +
                                ", but " + std::to_string(here.size) +
                                " processes have been started; one for each device is wanted");
  }
  auto const text = find_text(c.text, GPT_EXAMPLE_README);
  auto const table = timetable_of(c, name_of(c));
  c.lengths = lengths_of(c.size, table);
  int visible = 0; // some launchers show each process its own GPU only
  pp::cuda::check(cudaGetDeviceCount(&visible), "cudaGetDeviceCount");
  int const gpu = here.local_rank % visible;
  pp::cuda::current_device const current(gpu);
  // Names in the store have the number of the start, so that no two starts mistake each other.
  pp::cuda::nccl_ranks const over{
    .gpu = gpu, .deadline = o.deadline, .name = "start " + std::to_string(here.restarts)};
  auto model = on_rank<Clock>(c.size,
                              table,
                              cut_for(table, c.lengths),
                              o.seed(),
                              {.numbers = o.numbers, .graph = o.graph, .timed = true},
                              line,
                              here.rank,
                              over);
  rank_in_training<decltype(model), pp::basic_store<Clock>> training{model, line};
  auto const check = [&] {
    model.runner().close();
    std::mt19937_64 random(o.seed() + 1);
    return compare_ranks<Clock>(o,
                                table,
                                random_batch(text.bytes, c.microbatches, c.size.sequence, random),
                                line,
                                here.rank,
                                over);
  };
  if (!model.reports_loss()) { // the rank with the loss tells of the run
    c.tells = false;
    (void)train_model(c, text, training);
    return check() ? 0 : 1;
  }
  return run_system(
    c,
    text,
    table,
    training,
    [&] {
      std::printf("GPUs over NCCL, products in %s\n",
                  o.numbers == operands::bf16 ? "bf16" : "float");
    },
    check,
    [](pp::dynamic_timetable const& trace) { return trace; });
}

} // namespace gpt
