// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What can be chosen of a run on a GPU, beside model and schedule.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "../clipped_stage.hpp"
#include "../exchange_schedule.hpp"
#include "../shard_layers.hpp"

namespace gpt {

//! What products multiply. Trained values, the residual and all sums are in float, and attention's
//! operands in bf16, either way.
enum class operands : std::uint8_t { float32, bf16 };

//! Adds numbers up over several GPUs, as work of a stream.
template <class Number>
using sum_of = std::function<void(Number*, std::int64_t, cudaStream_t)>;
using sum_over_gpus = sum_of<float>;

//! Where the weights of stages lie whose schedule gathers them, see gathered_stage.cuh.
enum class weights_home : std::uint8_t {
  shards, //!< in pieces on the GPUs of a group; here, where it is one GPU
  host    //!< with their optimizer
};
//! Those that have a piece of every such weight each: the replicas of the pipeline.
struct weight_group {
  int number = 0; //!< of this one
  int of = 1;     //!< one: all pieces are here
  //! gather(mine, all, bytes of mine): one piece behind the other.
  std::function<void(void const*, void*, std::int64_t, cudaStream_t)> gather{};
  //! scatter(all, mine, numbers of mine): its piece of the sum over the group.
  std::function<void(float const*, float*, std::int64_t, cudaStream_t)> scatter{};
  sum_over_gpus sum{}; //!< over the group; of weights on the host, which all have
};

//! How a model runs on a GPU.
struct gpu_run {
  operands numbers = operands::float32;
  bool graph = false;   //!< every iteration but the first is one CUDA graph
  bool timed = false;   //!< measure when passes run
  bool guarded = false; //!< look for stages that write where they must not
  //! Of cuBLAS, for each virtual device: what it recommends for Hopper, and more than for others.
  std::int64_t workspace_bytes = std::int64_t{32} << 20;
  shard_of_stage shard{}; //!< of every stage
  sum_over_gpus sum{};    //!< over all shards of a stage; wanted where there are several
  sum_over_gpus copies{}; //!< over both copies of a stage; wanted where one is on another GPU
  //! Over all replicas, where the optimizer is part of the plan.
  sum_over_gpus over_replicas{};
  sum_of<double> over_rows{}; //!< over all ranks of a pipeline, where clipping is not in the plan
  int replicas = 1; //!< of the pipeline: the sum of their gradients is that of all microbatches
  clipping const* clip = nullptr; //!< must outlive the run; null: gradients are not clipped
  bool any_chunks = false;        //!< iterations may have other chunks than the first
  //! The vocabulary is in shards, with so many barriers; see with_vocabulary.
  std::optional<int> barriers{};
  weights_home home = weights_home::shards; //!< of gathered weights
  weight_group weights{};
  //! Devices take over attention of each other; clips not.
  std::optional<exchange_schedule> exchange{};
};

} // namespace gpt
