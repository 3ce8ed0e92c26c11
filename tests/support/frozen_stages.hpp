// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Stages drawn by lot of which some are not trained, in exact arithmetic.

#include <pipe/run/context.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <tests/support/stage_graphs.hpp>
#include <vector>

namespace support {

//! @brief Frozen stages, by number; the last one is trained.
inline std::vector<int> draw_frozen(int stages, std::mt19937& random) {
  std::vector<int> frozen;
  for (int stage = 0; stage + 1 < stages; ++stage)
    if (random() % 2 == 0)
      frozen.push_back(stage);
  return frozen;
}

//! @brief True for a frozen stage to which no path leads from a trained one.
inline bool only_forward(edge_list const& edges, std::vector<int> const& frozen, int stage) {
  if (std::find(frozen.begin(), frozen.end(), stage) == frozen.end())
    return false;
  auto const all = before(edges, stage);
  return std::all_of(
    all.begin(), all.end(), [&](int from) { return only_forward(edges, frozen, from); });
}

//! @brief The edges of a chain.
inline edge_list chain(int stages) {
  edge_list edges;
  for (int to = 1; to < stages; ++to)
    edges.push_back({to - 1, to, pipelining::of_unit::same});
  return edges;
}

//! @brief A `joining_stage` that may be frozen. Its outputs in a backward pass are for the stages
//! before it that take a gradient.
struct freezing_stage : joining_stage {
  bool untrained = false;
  std::vector<std::size_t> taken{}; //!< which of its inputs take a gradient
  int forwards = 0;
  int backwards = 0; //!< and passes for the gradient of the input

  void forward(pipelining::context const& where, pipelining::input in, pipelining::output out) {
    add_to(forwards, 1);
    joining_stage::forward(where, in, out);
  }
  void backward(pipelining::context const& where, pipelining::input, pipelining::output) {
    add(send_back(where), where);
  }
  void backward_input(pipelining::context const& where, pipelining::input, pipelining::output) {
    where.weight_input.as<std::uint64_t>()[0] = send_back(where);
  }
  void backward_weight(pipelining::context const& where) {
    add(where.weight_input.as<std::uint64_t>()[0], where);
  }

private:
  void add(std::uint64_t dy, pipelining::context const& where) {
    if (!untrained)
      add_to(gradient, dy * where.activation.as<std::uint64_t>()[0]);
  }
  std::uint64_t send_back(pipelining::context const& where) {
    add_to(backwards, 1);
    std::uint64_t dy = where.last_stage() ? unit(where) : 0;
    for (auto const& from : where.inputs)
      dy += from.as<std::uint64_t>()[0];
    add_to(outputs, where.outputs.size());
    for (std::size_t k = 0; k < where.outputs.size() && k < taken.size(); ++k)
      for (std::uint64_t& word : where.outputs[k].as<std::uint64_t>())
        word = (taken[k] + 1) * weight * dy;
    return dy;
  }
};

//! @brief The stages of a model, with weights by lot.
inline std::vector<freezing_stage> freezing_model(edge_list const& edges,
                                                  std::vector<int> const& frozen,
                                                  int stages,
                                                  std::mt19937& random) {
  std::vector<freezing_stage> model(static_cast<std::size_t>(stages));
  for (int s = 0; s < stages; ++s) {
    auto& stage = model[static_cast<std::size_t>(s)];
    stage.weight = random() | 1u;
    stage.untrained = std::find(frozen.begin(), frozen.end(), s) != frozen.end();
    auto const from = before(edges, s);
    for (std::size_t k = 0; k < from.size(); ++k)
      if (!only_forward(edges, frozen, from[k]))
        stage.taken.push_back(k);
  }
  return model;
}

//! @brief What is wrong with a stage after some steps: "" where it is as one unit after the other
//! makes it, and was called as often as it must.
inline char const* fault_of(freezing_stage const& stage,
                            std::uint64_t expected,
                            int units_run,
                            bool goes_forward_only) {
  auto const units = static_cast<std::uint64_t>(units_run);
  return stage.gradient != (stage.untrained ? 0 : expected) ? "gradient"
         : stage.forwards < units_run || (goes_forward_only && stage.forwards > units_run)
           ? "forwards"
         : stage.backwards != (goes_forward_only ? 0 : units_run)                ? "backwards"
         : stage.outputs != (goes_forward_only ? 0 : units * stage.taken.size()) ? "outputs"
                                                                                 : "";
}

} // namespace support
