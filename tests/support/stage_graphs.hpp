// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Stage graphs drawn by lot, and stages that train on them in exact arithmetic.

#include <pipe/flow/stage_graph.hpp>
#include <pipe/run/context.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace support {

using edge_list = std::vector<pipelining::stage_edge>;

//! @brief Edges between `stages` stages: every stage but the first few has up to five stages before
//! it and after it, and some are read by nobody.
inline edge_list draw_graph(int stages, std::mt19937& random) {
  edge_list edges;
  std::vector<int> after(static_cast<std::size_t>(stages));
  for (int to = 1; to < stages; ++to) {
    std::vector<int> from(static_cast<std::size_t>(to));
    for (int i = 0; i < to; ++i)
      from[static_cast<std::size_t>(i)] = i;
    std::shuffle(from.begin(), from.end(), random);
    int const wanted = static_cast<int>(random() % 6);
    int taken = 0;
    for (int const one : from)
      if (taken < wanted && after[static_cast<std::size_t>(one)] < 5) {
        edges.push_back({one, to});
        ++after[static_cast<std::size_t>(one)];
        ++taken;
      }
  }
  std::shuffle(edges.begin(), edges.end(), random);
  return edges;
}

//! The stages before one, in the order of the edges.
inline std::vector<int> before(edge_list const& edges, int stage) {
  std::vector<int> result;
  for (auto const& edge : edges)
    if (edge.to == stage)
      result.push_back(edge.from);
  return result;
}

//! The stages after one, in the order of the edges.
inline std::vector<int> after(edge_list const& edges, int stage) {
  std::vector<int> result;
  for (auto const& edge : edges)
    if (edge.from == stage)
      result.push_back(edge.to);
  return result;
}

//! @brief y = weight (data + sum of (k + 1) x_k) modulo 2^64, where every order of additions gives
//! the same bits. A stage that nobody reads has the loss: the gradient of its output is the number
//! of the unit.
struct joining_stage {
  std::uint64_t weight = 1;
  std::uint64_t gradient = 0;
  std::uint64_t inputs = 0;  //!< seen in all forward passes
  std::uint64_t outputs = 0; //!< seen in all backward passes

  [[nodiscard]] static std::uint64_t unit(pipelining::context const& where) {
    return 1000003u * static_cast<std::uint64_t>(where.microbatch + 1) +
           static_cast<std::uint64_t>(where.chunk);
  }

  void forward(pipelining::context const& where, pipelining::input, pipelining::output out) {
    std::uint64_t sum = where.first_stage() ? unit(where) : 0;
    for (std::size_t k = 0; k < where.inputs.size(); ++k)
      sum += (k + 1) * where.inputs[k].as<std::uint64_t>()[0];
    inputs += where.inputs.size();
    where.activation.as<std::uint64_t>()[0] = sum;
    if (out.slot >= 0)
      fill(out, weight * sum);
  }
  void backward(pipelining::context const& where, pipelining::input, pipelining::output) {
    std::uint64_t const dy = incoming(where);
    gradient += dy * where.activation.as<std::uint64_t>()[0];
    send(where, dy);
  }
  void backward_input(pipelining::context const& where, pipelining::input, pipelining::output) {
    std::uint64_t const dy = incoming(where);
    where.weight_input.as<std::uint64_t>()[0] = dy;
    send(where, dy);
  }
  void backward_weight(pipelining::context const& where) {
    gradient += where.weight_input.as<std::uint64_t>()[0] * where.activation.as<std::uint64_t>()[0];
  }

private:
  static void fill(pipelining::output const& to, std::uint64_t value) {
    for (std::uint64_t& word : to.as<std::uint64_t>())
      word = value;
  }
  [[nodiscard]] static std::uint64_t incoming(pipelining::context const& where) {
    std::uint64_t dy = where.last_stage() ? unit(where) : 0;
    for (auto const& from : where.inputs)
      dy += from.as<std::uint64_t>()[0];
    return dy;
  }
  void send(pipelining::context const& where, std::uint64_t dy) {
    outputs += where.outputs.size();
    for (std::size_t k = 0; k < where.outputs.size(); ++k)
      fill(where.outputs[k], (k + 1) * weight * dy);
  }
};

//! @brief The weight gradients of a model of `joining_stage`s, one unit after the other.
inline std::vector<std::uint64_t> gradients_of(edge_list const& edges,
                                               std::vector<std::uint64_t> const& weights,
                                               int microbatches,
                                               int chunks) {
  int const stages = static_cast<int>(weights.size());
  std::vector<std::uint64_t> gradients(weights.size());
  for (int microbatch = 0; microbatch < microbatches; ++microbatch)
    for (int chunk = 0; chunk < chunks; ++chunk) {
      pipelining::context where;
      where.microbatch = microbatch;
      where.chunk = chunk;
      std::uint64_t const unit = joining_stage::unit(where);
      std::vector<std::uint64_t> sums(weights.size());
      std::vector<std::uint64_t> arriving(weights.size());
      for (int s = 0; s < stages; ++s) {
        auto const from = before(edges, s);
        auto& sum = sums[static_cast<std::size_t>(s)] = from.empty() ? unit : 0;
        for (std::size_t k = 0; k < from.size(); ++k)
          sum += (k + 1) * weights[static_cast<std::size_t>(from[k])] *
                 sums[static_cast<std::size_t>(from[k])];
      }
      for (int s = stages - 1; s >= 0; --s) {
        auto const at = static_cast<std::size_t>(s);
        std::uint64_t const dy = after(edges, s).empty() ? unit : arriving[at];
        gradients[at] += dy * sums[at];
        auto const from = before(edges, s);
        for (std::size_t k = 0; k < from.size(); ++k)
          arriving[static_cast<std::size_t>(from[k])] += (k + 1) * weights[at] * dy;
      }
    }
  return gradients;
}

} // namespace support
