// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Holds what the ranks have trained against one process that has trained alone.

#include <pipe/core/shape.hpp>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "../gpt/clipped_stage.hpp"
#include "../gpt/options.hpp"
#include "../gpt/single_device.hpp"
#include "../gpt/text.hpp"
#include "../gpt/training.hpp"
#include "rank_model.hpp"

namespace gpt {

//! Gradients of the last step, then weights after it, of some stages, whole or in shards.
template <class Number, class Stage>
void append_numbers(std::vector<Number>& numbers, Stage& stage) {
  stage.for_each_parameter([&](parameter<Number>& p) {
    numbers.insert(numbers.end(), p.gradient.begin(), p.gradient.end());
  });
  stage.for_each_parameter(
    [&](parameter<Number>& p) { numbers.insert(numbers.end(), p.value.begin(), p.value.end()); });
}

//! The gradients, then the weights of all stages of a pipeline in the order of the layers, on its
//! device 0; empty on the others. Collective.
//! @param way of two copies, the one of these microbatches
template <class Model>
[[nodiscard]] std::vector<float>
gather(Model& model, pp::timetable_view table, int device, MPI_Comm pipeline, std::size_t way = 0) {
  int const microbatch = first_of_way(table.extents, way);
  std::vector<float> all;
  std::vector<float> weights;
  std::vector<std::vector<float>> own(static_cast<std::size_t>(pp::stages(table.extents)));
  model.for_each_stage([&](std::size_t s, pipeline_stage& stage) {
    append_numbers(own[s], stage);
    // Attention may be on several ranks, without weights: the first sends that it has none.
    if (device != 0 && device == pp::device_of(table, static_cast<int>(s), microbatch)) {
      MPI_Send(own[s].data(),
               static_cast<int>(own[s].size()),
               MPI_FLOAT,
               0,
               static_cast<int>(s),
               pipeline);
    }
  });
  for (int s = 0; device == 0 && s < pp::stages(table.extents); ++s) {
    auto& numbers = own[static_cast<std::size_t>(s)];
    int const home = pp::device_of(table, s, microbatch);
    if (home != 0) {
      MPI_Status status;
      int count = 0;
      MPI_Probe(home, s, pipeline, &status);
      MPI_Get_count(&status, MPI_FLOAT, &count);
      numbers.resize(static_cast<std::size_t>(count));
      MPI_Recv(numbers.data(), count, MPI_FLOAT, home, s, pipeline, &status);
    }
    auto const half = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
    all.insert(all.end(), numbers.begin(), half);
    weights.insert(weights.end(), half, numbers.end());
  }
  all.insert(all.end(), weights.begin(), weights.end());
  return all;
}

//! The microbatches of one replica.
[[nodiscard]] inline batch share_of(batch const& all, std::int64_t replica, std::int64_t count) {
  auto const length = static_cast<std::ptrdiff_t>(count * (all.sequence + 1));
  auto const from = all.bytes.begin() + replica * length;
  return {all.sequence, {from, from + length}};
}

//! The optimizer's step on clipped gradients, with the norm of the stages' rows in their order.
//! Returns how many steps were taken.
inline std::int64_t
take_clipped_step(std::vector<stage<float>>& stages, clipping const& how, std::int64_t taken) {
  std::vector<gradient_row> rows;
  for (auto& each : stages) {
    rows.push_back(row_of(each));
  }
  auto const bytes = static_cast<std::int64_t>(sizeof(gradient_row));
  clipped_step const found(
    how,
    {reinterpret_cast<std::byte const*>(rows.data()), bytes, bytes, static_cast<int>(rows.size())});
  for (auto& each : stages) {
    take_step(each, how, found, taken);
  }
  return taken + (found.finite ? 1 : 0);
}

//! Trains again, alone and without a pipeline: replicas one after the other, the mean of their
//! gradients in their order.
//! @param sizes of iterations, which take turns
[[nodiscard]] inline std::vector<float> train_alone(options const& o,
                                                    std::int64_t replicas,
                                                    text_to_learn const& text,
                                                    std::vector<sized_table> const& sizes) {
  auto const seed = static_cast<std::uint64_t>(o.seed);
  pp::timetable_view const table = sizes.front().table;
  bool const halves = table.extents.where == pp::placement::bidirectional;
  auto const cut = [&](std::size_t at) {
    return cut_whole(sizes[at].lengths).back_from_last(adds_from_last(table));
  };
  // The norm adds up stage by stage.
  auto const stages = o.clip != 0 ? cut_model(o.size, table.extents) : cut_layers(o.size.layers, 1);
  single_device<float> device(o.size, stages, cut(0), seed, halves);
  adamw optimizer;
  optimizer.steps = o.steps;
  clipping const how{optimizer, o.clip, false};
  std::mt19937_64 random(seed);
  std::int64_t taken = 0;
  for (std::int64_t step = 0; step < o.steps; ++step) {
    auto const pieces =
      random_batch(text.bytes, replicas * o.microbatches, o.size.sequence, random);
    if (sizes.size() > 1) {
      device.set_cut(cut(size_of_step(step, o.steps, sizes.size())));
    }
    std::vector<float> sum;
    for (std::int64_t replica = 0; replica < replicas; ++replica) {
      auto const share = share_of(pieces, replica, o.microbatches);
      device.step(share);
      auto const gradients = gradients_of(device.stages());
      sum.resize(gradients.size());
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = replica == 0 ? gradients[i] : sum[i] + gradients[i];
      }
      device.set_gradients([](std::size_t) { return 0.0F; });
    }
    device.set_gradients([&](std::size_t i) { return sum[i] / static_cast<float>(replicas); });
    if (o.clip != 0) {
      taken = take_clipped_step(device.stages(), how, taken);
    } else {
      device.update(optimizer, step);
    }
  }
  auto numbers = gradients_of(device.stages());
  auto const weights = weights_of(device.stages());
  numbers.insert(numbers.end(), weights.begin(), weights.end());
  return numbers;
}

} // namespace gpt
