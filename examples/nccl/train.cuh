// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief A residual network cut into one stage per GPU and trained in a pipeline over NCCL: all of
//! the program but main().

#include <pipe/cluster.hpp>
#include <pipe/cuda/nccl.cuh>
#include <pipe/pipe.hpp>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <examples/nccl/layer.cuh>
#include <optional>
#include <string>
#include <tools/support/termination.hpp>
#include <type_traits>
#include <vector>

namespace example {

namespace pp = pipelining;

struct options {
  int microbatches = 8;
  int steps = 40;
  bool graph = false;
  bool mixed = false; //!< bf16 weights, activations and messages
  std::chrono::seconds deadline{60};
  int failing_step = -1;    //!< the last rank's stage throws there, in the first start
  bool serves = true;       //!< rank 0 makes the store; else somebody else has
  std::string checkpoint{}; //!< the folder of checkpoints; empty: none
  int every = 10;           //!< steps between two of them
};

//! What a rank has after its training.
struct trained {
  std::vector<float> losses{};  //!< [steps] on the last rank; else none
  std::vector<float> weights{}; //!< [features][features] of this rank, as the optimizer has them
  int began = 0;                //!< the steps of earlier starts, after which this one has gone on
};

template <class Number>
constexpr char const* element_of = std::is_same_v<Number, float> ? "f32" : "bf16";

//! Where the checkpoints of a rank lie, and of which run they are.
template <class Number>
pp::checkpoint_place checkpoints_of(pp::launch_environment const& here, options const& chosen) {
  return {chosen.checkpoint,
          "rank-" + std::to_string(here.rank),
          "nccl_pipeline, " + std::to_string(here.size) + " ranks, " +
            std::to_string(chosen.microbatches) + " microbatches, " + element_of<Number>};
}

//! What a rank has to remember between two steps. The last one has losses, too.
inline std::vector<pp::state_tensor> tensors_of(pp::launch_environment const& here,
                                                std::vector<float>& state,
                                                std::vector<float>& losses) {
  std::vector<pp::state_tensor> result{
    pp::tensor_of("layers." + std::to_string(here.rank) + ".weights and moments", state)};
  if (!losses.empty())
    result.push_back(pp::tensor_of("losses", losses));
  return result;
}

//! A run that its launcher has started again goes on from the newest checkpoint of all ranks.
template <class Number, class Clock>
void restore(trained& result,
             own_layer<Number> const& mine,
             pp::basic_store<Clock>& line,
             pp::checkpoint_place const& files,
             pp::launch_environment const& here,
             options const& chosen,
             std::string const& name) {
  std::vector<float> state(3 * weights);
  auto const newest = pp::agree_on_checkpoint(line,
                                              files,
                                              tensors_of(here, state, result.losses),
                                              here.rank,
                                              here.size,
                                              name,
                                              chosen.deadline);
  if (!newest)
    return;
  result.began = static_cast<int>(*newest);
  if (here.rank == here.size - 1)
    result.losses.resize(static_cast<std::size_t>(*newest));
  pp::load_tensors(files, *newest, tensors_of(here, state, result.losses));
  mine.set_state(state);
}

//! The GPU of this rank. Some launchers show each process its own only, which then has number 0.
inline int gpu_of(pp::launch_environment const& here) {
  int visible = 0;
  pp::cuda::check(cudaGetDeviceCount(&visible), "cudaGetDeviceCount");
  return here.local_rank % visible;
}

//! Trains on this rank together with the others.
//! @tparam Number of weights, activations and messages.
template <class Number, class Clock>
trained train_in(pp::launch_environment const& here, options const& chosen) {
  // Ranks find each other through a small server in rank 0. It tells all of them what has failed.
  pp::store_address const address = pp::store_address_of(here);
  std::optional<pp::store_server> server;
  if (here.rank == 0 && chosen.serves)
    server.emplace(address);
  pp::basic_store<Clock> line(address, here.rank, chosen.deadline);

  // The plan is the same on all ranks: one stage per rank, 1F1B, 2-rank communicators.
  auto const table = pp::make_timetable<pp::OneFOneB>({here.size, chosen.microbatches});
  pp::plan const plan = pp::lower<pp::communicators::per_pair>(
    table,
    pp::uniform_sizes{.message = sizeof(Number) * numbers,
                      .activation = 3 * sizeof(Number) * numbers});

  // Names in the store have the number of the start, so that no two starts mistake each other.
  std::string const name = "start " + std::to_string(here.restarts);
  int const gpu = gpu_of(here);
  pp::cuda::current_device const current(gpu);
  own_layer<Number> const mine(here.rank);
  std::vector<layer<Number>> stages(static_cast<std::size_t>(here.size));
  layer<Number>& stage = stages[static_cast<std::size_t>(here.rank)] = mine.stage();

  pp::checkpoint_place const files = checkpoints_of<Number>(here, chosen);
  trained result;
  if (!chosen.checkpoint.empty())
    restore(result, mine, line, files, here, chosen, name);

  // Makes the communicators and connects all ranks. Nothing is set up later but the graph.
  pp::cuda::nccl_runner<std::vector<layer<Number>>, pp::basic_store<Clock>, Clock> runner(
    plan,
    stages,
    line,
    here.rank,
    {.gpu = gpu,
     .graph = chosen.graph,
     .deadline = chosen.deadline,
     .elements = element_of<Number>,
     .name = name});
  bool const last = here.rank == here.size - 1;
  for (int step = result.began; step < chosen.steps; ++step) {
    stage.fails = last && step == chosen.failing_step && here.restarts == 0;
    if (asked_to_end(line))
      runner.fail("was told to end (SIGTERM)");
    runner.step();
    mine.update(make_step(step, chosen.microbatches * rows), runner.origin());
    if (last)
      result.losses.push_back(mine.loss(runner.origin()));
    if (!chosen.checkpoint.empty() &&
        ((step + 1) % chosen.every == 0 || step + 1 == chosen.steps)) {
      std::vector<float> state = mine.state(runner.origin());
      pp::save_tensors(files, step + 1, tensors_of(here, state, result.losses));
    }
  }
  result.weights = mine.master(runner.origin());
  runner.close();
  return result;
}

//! The same in the numbers that the options choose.
template <class Clock>
trained train(pp::launch_environment const& here, options const& chosen) {
  return chosen.mixed ? train_in<__nv_bfloat16, Clock>(here, chosen)
                      : train_in<float, Clock>(here, chosen);
}

} // namespace example
