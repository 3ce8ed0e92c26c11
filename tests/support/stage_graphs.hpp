// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Stage graphs drawn by lot, and stages that train on them in exact arithmetic.

#include <pipe/flow/stage_graph.hpp>
#include <pipe/run/context.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <type_traits>
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
        edges.push_back({one, to, pipelining::of_unit::same});
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

//! @brief A chunk of a stage.
struct stage_and_chunk {
  int stage = 0;
  int chunk = 0;

  friend bool operator==(stage_and_chunk const&, stage_and_chunk const&) = default;
};

//! @brief Whether an edge lets a chunk read another one.
inline bool reads(pipelining::of_unit unit, int reader, int read) {
  using enum pipelining::of_unit;
  return unit == all || read == reader + (unit == next ? 1 : unit == previous ? -1 : 0);
}

//! @brief The units before (step -1) or after (step 1) one, in the order of the edges.
inline std::vector<stage_and_chunk>
units_beside(edge_list const& edges, stage_and_chunk const& of, int step, int chunks) {
  std::vector<stage_and_chunk> result;
  for (auto const& edge : edges)
    for (int chunk = 0; chunk < chunks && (step < 0 ? edge.to : edge.from) == of.stage; ++chunk)
      if (step < 0 ? reads(edge.unit, of.chunk, chunk) : reads(edge.unit, chunk, of.chunk))
        result.push_back({step < 0 ? edge.from : edge.to, chunk});
  return result;
}

//! @brief Edges that lead to other chunks, too: some of them back, or ahead to later chunks.
inline edge_list draw_units(int stages, std::mt19937& random) {
  using enum pipelining::of_unit;
  edge_list edges;
  bool const back = random() % 2 == 0;
  for (int from = 0; from < stages; ++from)
    for (int to = 0; to < stages; ++to)
      if (random() % 3 == 0 && (from < to || back))
        edges.push_back({from,
                         to,
                         from >= to
                           ? previous
                           : std::vector{same, previous, next, all}[random() % (back ? 2 : 4)]});
  std::shuffle(edges.begin(), edges.end(), random);
  return edges;
}

//! @brief y = weight (data + sum of (k + 1) x_k) modulo 2^64, where every order of additions gives
//! the same bits. A stage that nobody reads has the loss: the gradient of its output is the number
//! of the unit. Where a stage has two copies, two threads may be in it at a time.
struct joining_stage {
  static constexpr bool takes_chunks = true;
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
    add_to(inputs, where.inputs.size());
    where.activation.as<std::uint64_t>()[0] = sum;
    if (out.slot >= 0)
      fill(out, weight * sum);
  }
  void backward(pipelining::context const& where, pipelining::input, pipelining::output) {
    std::uint64_t const dy = incoming(where);
    add_to(gradient, dy * where.activation.as<std::uint64_t>()[0]);
    send(where, dy);
  }
  void backward_input(pipelining::context const& where, pipelining::input, pipelining::output) {
    std::uint64_t const dy = incoming(where);
    where.weight_input.as<std::uint64_t>()[0] = dy;
    send(where, dy);
  }
  void backward_weight(pipelining::context const& where) {
    add_to(gradient,
           where.weight_input.as<std::uint64_t>()[0] * where.activation.as<std::uint64_t>()[0]);
  }

protected:
  template <class Number>
  static void add_to(Number& sum, std::type_identity_t<Number> more) {
    std::atomic_ref<Number>(sum).fetch_add(more, std::memory_order_relaxed);
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
    add_to(outputs, where.outputs.size());
    for (std::size_t k = 0; k < where.outputs.size(); ++k)
      fill(where.outputs[k], (k + 1) * weight * dy);
  }
};

//! @brief The weight gradients of a model of `joining_stage`s, each unit after those that it reads.
inline std::vector<std::uint64_t> gradients_of(edge_list const& edges,
                                               std::vector<std::uint64_t> const& weights,
                                               int microbatches,
                                               int chunks) {
  std::vector<std::uint64_t> gradients(weights.size());
  using values = std::map<std::array<int, 2>, std::uint64_t>;
  auto const weight = [&weights](int stage) { return weights[static_cast<std::size_t>(stage)]; };
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    auto const loss = [microbatch](stage_and_chunk const& at) {
      pipelining::context where;
      where.microbatch = microbatch;
      where.chunk = at.chunk;
      return joining_stage::unit(where);
    };
    values sums;
    values arriving;
    auto const sum = [&](auto const& self, stage_and_chunk const& at) -> std::uint64_t {
      auto const [found, is_new] = sums.insert({{at.stage, at.chunk}, 0});
      if (!is_new)
        return found->second;
      auto const from = units_beside(edges, at, -1, chunks);
      std::uint64_t result = from.empty() ? loss(at) : 0;
      for (std::size_t k = 0; k < from.size(); ++k)
        result += (k + 1) * weight(from[k].stage) * self(self, from[k]);
      return sums[{at.stage, at.chunk}] = result;
    };
    auto const dy = [&](auto const& self, stage_and_chunk const& at) -> std::uint64_t {
      auto const [found, is_new] = arriving.insert({{at.stage, at.chunk}, 0});
      if (!is_new)
        return found->second;
      auto const to = units_beside(edges, at, 1, chunks);
      std::uint64_t result = to.empty() ? loss(at) : 0;
      for (stage_and_chunk const& reader : to) {
        auto const inputs = units_beside(edges, reader, -1, chunks);
        auto const k = std::find(inputs.begin(), inputs.end(), at) - inputs.begin() + 1;
        result += static_cast<std::uint64_t>(k) * weight(reader.stage) * self(self, reader);
      }
      return arriving[{at.stage, at.chunk}] = result;
    };
    for (int stage = 0; stage < static_cast<int>(weights.size()); ++stage)
      for (int chunk = 0; chunk < chunks; ++chunk)
        gradients[static_cast<std::size_t>(stage)] +=
          dy(dy, {stage, chunk}) * sum(sum, {stage, chunk});
  }
  return gradients;
}

} // namespace support
