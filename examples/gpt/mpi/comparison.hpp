// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Holds what the ranks have trained against one process that has trained alone.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "../training.hpp"
#include "rank_run.hpp"

namespace gpt {

//! All of the last step: gradients, and weights after it.
struct trained {
  std::vector<float> gradients{}; //!< none where steps of the optimizer are part of the plan
  std::vector<float> weights{};
};

//! What is held of every parameter.
using learnt = std::vector<float> parameter<float>::*;

//! The numbers of all stages of a pipeline in their order, and of a second copy of them after
//! these; then those of the other shards. On the rank with device 0 and shard 0; elsewhere of no
//! use. Collective.
template <class Model>
[[nodiscard]] std::vector<float> gather(Model& model, learnt what, rank_groups const& groups) {
  int device = 0;
  MPI_Comm_rank(groups.pipeline, &device);
  std::vector<int> const& homes = model.homes();
  std::vector<std::vector<float>> own(homes.size());
  std::vector<MPI_Request> sent;
  model.for_each_stage([&](std::size_t s, auto& stage) {
    if (s >= homes.size() || homes[s] != device)
      return; // attention may be on several ranks, without weights
    append(own[s], stage, what);
    auto const count = static_cast<int>(own[s].size());
    auto& request = sent.emplace_back();
    MPI_Isend(own[s].data(), count, MPI_FLOAT, 0, static_cast<int>(s), groups.pipeline, &request);
  });
  std::vector<float> all;
  for (std::size_t s = 0; device == 0 && s < own.size(); ++s) {
    int const tag = static_cast<int>(s);
    MPI_Status status;
    int count = 0;
    MPI_Probe(homes[s], tag, groups.pipeline, &status);
    MPI_Get_count(&status, MPI_FLOAT, &count);
    all.resize(all.size() + static_cast<std::size_t>(count));
    MPI_Recv(
      all.data() + all.size() - count, count, MPI_FLOAT, homes[s], tag, groups.pipeline, &status);
  }
  MPI_Waitall(static_cast<int>(sent.size()), sent.data(), MPI_STATUSES_IGNORE);
  int shards = 1;
  MPI_Comm_size(groups.shards, &shards);
  if (shards > 1 && device == 0) { // which all have as many numbers
    auto const count = static_cast<int>(all.size());
    std::vector<float> whole(all.size() * static_cast<std::size_t>(shards));
    MPI_Gather(all.data(), count, MPI_FLOAT, whole.data(), count, MPI_FLOAT, 0, groups.shards);
    return whole;
  }
  return all;
}

//! How many numbers differ: those of all replicas from the first one's. On the first one.
//! Collective, among the ranks that gather.
[[nodiscard]] inline std::size_t differences_of_replicas(trained const& own, MPI_Comm replicas) {
  std::size_t different = 0;
  if (replicas == MPI_COMM_NULL)
    return different;
  for (auto const& numbers : {own.gradients, own.weights}) {
    auto first = numbers;
    MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_FLOAT, 0, replicas);
    different += differences(numbers, first);
  }
  std::size_t sum = 0;
  MPI_Reduce(&different, &sum, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0, replicas);
  return sum;
}

//! The step of all replicas, one after the other, and the mean of their gradients in their order.
template <class Device>
void step_of_replicas(Device& device,
                      batch const& pieces,
                      std::int64_t replicas,
                      std::int64_t microbatches) {
  std::vector<float> sum;
  for (std::int64_t replica = 0; replica < replicas; ++replica) {
    device.step(share_of(pieces, replica, microbatches));
    std::vector<float> gradients;
    append(gradients, device, &parameter<float>::gradient);
    add_to(sum, gradients);
    device.for_each_parameter(
      [](parameter<float>& p) { p.gradient.assign(p.gradient.size(), 0.0F); });
  }
  for (float& x : sum)
    x /= static_cast<float>(replicas);
  copy_in(device, &parameter<float>::gradient, sum.data());
}

//! What comes before a step, of which it is given the number; empty: nothing.
using before_step = std::function<void(std::int64_t)>;

//! Trains again, alone and without a pipeline.
//! @param device one that has all stages and shards. @param update what follows its passes
template <class Device, class Update>
[[nodiscard]] trained
train_alone(rank_run const& run, Device& device, Update update, before_step const& before = {}) {
  auto const replicas = run.chosen.layout.replicas;
  batches all(of_all_replicas(run.o, replicas), run.text, 0);
  trained alone;
  for (std::int64_t step = 0; step < run.o.steps; ++step) {
    auto const pieces = all.next();
    if (before)
      before(step);
    step_of_replicas(device, pieces, replicas, run.o.microbatches);
    if (step + 1 == run.o.steps)
      append(alone.gradients, device, &parameter<float>::gradient);
    update(step);
  }
  append(alone.weights, device, &parameter<float>::value);
  return alone;
}

} // namespace gpt
