// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Stages of a model whose vocabulary is in shards, in exact arithmetic. Header for
//! vocabulary_stage and vocabulary_gradients.

#include <pipe/run/context.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace support {

//! @brief Who a stage is: shard `number` of the embedding (-1), of the chain (0), of the output
//! layer (1).
struct vocabulary_place {
  int end = 0;
  int number = 0;
};

[[nodiscard]] inline vocabulary_place vocabulary_place_of(pipelining::shape const& extents,
                                                          int stage) {
  int const shards = extents.devices;
  int const chain = extents.stages() - 2 * shards;
  if (stage < shards)
    return {-1, stage};
  return stage < shards + chain ? vocabulary_place{0, stage - shards}
                                : vocabulary_place{1, stage - shards - chain};
}

//! @brief Any function of the statistics of all shards that tells them apart.
template <class Values>
[[nodiscard]] std::uint64_t combined(Values const& of, std::size_t count) {
  std::uint64_t sum = 1;
  for (std::size_t shard = 0; shard < count; ++shard)
    sum += (2 * shard + 3) * of(shard);
  return sum;
}

//! @brief y = weight x modulo 2^64 everywhere, where every order of additions gives the same bits.
//! Every shard of the embedding has data of its own; the gradient of an output shard's input is
//! weight times what all shards' outputs combine to, or, with one barrier, weight times 5 x.
struct vocabulary_stage {
  static constexpr bool takes_chunks = true;
  int barriers = 2;
  std::uint64_t weight = 1;
  std::uint64_t gradient = 0;

  [[nodiscard]] static std::uint64_t data(pipelining::context const& where) {
    return 1000003u * static_cast<std::uint64_t>(where.microbatch + 1) +
           977u * static_cast<std::uint64_t>(where.chunk) +
           31u * static_cast<std::uint64_t>(where.stage);
  }
  [[nodiscard]] static std::uint64_t sum(std::span<pipelining::input const> of) {
    std::uint64_t total = 0;
    for (auto const& one : of)
      total += one.as<std::uint64_t>()[0];
    return total;
  }

  void forward(pipelining::context const& where, pipelining::input, pipelining::output out) {
    int const end = vocabulary_place_of(where.extents, where.stage).end;
    std::uint64_t const x = end < 0 ? data(where) : sum(where.inputs);
    fill(out, weight * x);
    if (end >= 0)
      where.activation.as<std::uint64_t>()[0] = x;
    if (end > 0 && barriers == 1)
      fill(where.outputs[1], 5 * weight * x);
  }
  void backward(pipelining::context const& where, pipelining::input, pipelining::output out) {
    int const end = vocabulary_place_of(where.extents, where.stage).end;
    std::uint64_t const dy = end > 0 ? all_statistics(where) : sum(where.inputs);
    gradient += dy * (end < 0 ? data(where) : where.activation.as<std::uint64_t>()[0]);
    if (end >= 0)
      fill(out, weight * dy);
  }
  void backward_input(pipelining::context const& where, pipelining::input, pipelining::output out) {
    std::uint64_t const dy = sum(where.inputs);
    where.weight_input.as<std::uint64_t>()[0] = dy;
    fill(out, weight * dy);
  }
  void backward_weight(pipelining::context const& where) {
    bool const shard = vocabulary_place_of(where.extents, where.stage).end > 0;
    gradient += (shard ? all_statistics(where) : where.weight_input.as<std::uint64_t>()[0]) *
                where.activation.as<std::uint64_t>()[0];
  }

private:
  static void fill(pipelining::output const& to, std::uint64_t value) {
    for (std::uint64_t& word : to.as<std::uint64_t>())
      word = value;
  }
  [[nodiscard]] static std::uint64_t all_statistics(pipelining::context const& where) {
    return combined([&](std::size_t shard) { return where.inputs[shard].as<std::uint64_t>()[0]; },
                    where.inputs.size());
  }
};

//! @brief The gradients of such a model, one unit after the other on one device.
inline std::vector<std::uint64_t> vocabulary_gradients(std::vector<std::uint64_t> const& weights,
                                                       std::size_t shards,
                                                       int microbatches,
                                                       int chunks,
                                                       int barriers) {
  std::size_t const behind = weights.size() - shards;
  std::vector<std::uint64_t> gradients(weights.size());
  std::vector<std::uint64_t> x(weights.size());
  for (int microbatch = 0; microbatch < microbatches; ++microbatch)
    for (int chunk = 0; chunk < chunks; ++chunk) {
      pipelining::context where;
      where.microbatch = microbatch;
      where.chunk = chunk;
      std::uint64_t y = 0;
      for (std::size_t shard = 0; shard < shards; ++shard) {
        where.stage = static_cast<int>(shard);
        x[shard] = vocabulary_stage::data(where);
        y += weights[shard] * x[shard];
      }
      for (std::size_t stage = shards; stage < behind; ++stage) {
        x[stage] = y;
        y *= weights[stage];
      }
      std::uint64_t const dlogits =
        combined([&](std::size_t shard) { return weights[behind + shard] * y; }, shards);
      std::uint64_t dy = 0;
      for (std::size_t stage = behind; stage < weights.size(); ++stage) {
        gradients[stage] += dlogits * y;
        dy += weights[stage] * (barriers == 1 ? 5 * y : dlogits);
      }
      for (std::size_t stage = behind; stage-- > shards;) {
        gradients[stage] += dy * x[stage];
        dy *= weights[stage];
      }
      for (std::size_t shard = 0; shard < shards; ++shard)
        gradients[shard] += dy * x[shard];
    }
  return gradients;
}

} // namespace support
