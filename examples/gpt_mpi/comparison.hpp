// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Holds what the ranks have trained against one process that has trained alone.

#include <pipe/core/shape.hpp>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "../gpt/options.hpp"
#include "../gpt/single_device.hpp"
#include "../gpt/text.hpp"
#include "rank_model.hpp"

namespace gpt {

//! Gradients of the last step and weights after it, of some stages.
template <class Number, class Stage>
void append_numbers(std::vector<Number>& numbers, Stage& stage) {
  stage.for_each_parameter([&](parameter<Number>& p) {
    numbers.insert(numbers.end(), p.gradient.begin(), p.gradient.end());
    numbers.insert(numbers.end(), p.value.begin(), p.value.end());
  });
}

//! The numbers of all stages in the order of the layers, on rank 0; empty on the others.
//! Collective.
[[nodiscard]] inline std::vector<float>
gather(rank_model& model, pp::shape const& extents, int rank) {
  std::vector<float> all;
  std::vector<std::vector<float>> own(static_cast<std::size_t>(pp::stages(extents)));
  model.for_each_stage([&](std::size_t s, pipeline_stage& stage) {
    append_numbers(own[s], stage);
    if (rank != 0) {
      MPI_Send(own[s].data(),
               static_cast<int>(own[s].size()),
               MPI_FLOAT,
               0,
               static_cast<int>(s),
               MPI_COMM_WORLD);
    }
  });
  for (int s = 0; rank == 0 && s < pp::stages(extents); ++s) {
    auto& numbers = own[static_cast<std::size_t>(s)];
    int const home = pp::device_of(extents, s);
    if (home != 0) {
      MPI_Status status;
      int count = 0;
      MPI_Probe(home, s, MPI_COMM_WORLD, &status);
      MPI_Get_count(&status, MPI_FLOAT, &count);
      numbers.resize(static_cast<std::size_t>(count));
      MPI_Recv(numbers.data(), count, MPI_FLOAT, home, s, MPI_COMM_WORLD, &status);
    }
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  return all;
}

//! Trains again, alone and without a pipeline.
[[nodiscard]] inline std::vector<float> train_alone(options const& o, text_to_learn const& text) {
  auto const seed = static_cast<std::uint64_t>(o.seed);
  single_device<float> device(o.size, 1, {o.microbatches, cut_sequence(o.size.sequence, 1)}, seed);
  adamw optimizer;
  optimizer.steps = o.steps;
  std::mt19937_64 random(seed);
  for (std::int64_t step = 0; step < o.steps; ++step) {
    auto const pieces = random_batch(text.bytes, o.microbatches, o.size.sequence, random);
    device.step(pieces);
    device.stages().front().update(optimizer, step);
  }
  std::vector<float> numbers;
  append_numbers(numbers, device.stages().front());
  return numbers;
}

//! How many numbers have other bits.
[[nodiscard]] inline std::size_t differences(std::vector<float> const& a,
                                             std::vector<float> const& b) {
  if (a.size() != b.size()) {
    throw std::logic_error("the ranks have not the parameters of the model");
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0 ? 1u : 0u;
  }
  return count;
}

} // namespace gpt
