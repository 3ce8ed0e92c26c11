// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Cuts layers into the stages of RoundPipe. Header for pipelining::round_stages.

#include <pipe/planner/cut/layer_partition.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The limits of the stages of RoundPipe.
struct round_limits {
  std::span<double const> bytes = {}; //!< of the weights of each layer; empty: they do not matter
  //! Of the weights of a stage: half of a device's memory, since the next stage is loaded
  //! meanwhile.
  double most_bytes = std::numeric_limits<double>::infinity();
  double most_ratio = 1.1; //!< times considered, over that of the slowest layer that goes back
};

//! Packs layers [0, last) from the back into as few runs as go under a time and a size.
//! @return layers of each run, from the back; empty where one layer is too much
[[nodiscard]] inline std::vector<int> pack_from_back(std::span<double const> times,
                                                     std::span<double const> bytes,
                                                     double longest,
                                                     double most_size) {
  std::vector<int> runs;
  double time = 0;
  double size = 0;
  for (std::size_t i = times.size(); i-- > 0;) {
    double const own = bytes.empty() ? 0 : bytes[i];
    if (times[i] > longest || own > most_size)
      return {};
    if (runs.empty() || time + times[i] > longest || size + own > most_size) {
      runs.push_back(0);
      time = 0;
      size = 0;
    }
    ++runs.back();
    time += times[i];
    size += own;
  }
  return runs;
}

} // namespace detail

//! @brief The stages of RoundPipe, in the order of its list, and their time.
struct round_stages {
  using limits = detail::round_limits; //!< of stages

  std::vector<int> forward;  //!< layers of each forward stage, from the first layer on
  std::vector<int> backward; //!< of each backward stage, from the last layer back to the first
  double time = 0;           //!< no stage takes longer for a microbatch
  double total = 0;          //!< max(S, P) times that: what is made small

  //! Both together.
  [[nodiscard]] int stages() const noexcept {
    return static_cast<int>(forward.size() + backward.size());
  }
  //! @brief The stages whose list takes least. The candidates are the times of runs of layers, from
  //! the time of the slowest layer on. For each, layers are packed from the back into runs that
  //! take no longer. The best candidate has the least max(S, P) times its time; of several, the
  //! smaller time.
  //!
  //! A backward stage takes the forward and the backward passes of its layers, a forward stage the
  //! forward passes. The first backward stage has as many of the last layers as fit, and forward
  //! stages have all others.
  //!
  //! @param devices P.
  //! @throws std::invalid_argument for no layers, times that are negative or no number, bytes that
  //! are not one for each layer, or one layer that has too many.
  //! @complexity O(L^3) for L layers.
  //! @source RoundPipe's rule (its repository, ITcarrot/RoundPipe); candidates are the times that
  //! stages can have.
  [[nodiscard]] static round_stages
  best(std::span<layer_cost const> layers, int devices, limits const& under = {}) {
    detail::check_layers(layers);
    if (layers.empty())
      throw std::invalid_argument("round stages: give at least one layer");
    if (devices < 1)
      throw std::invalid_argument("round stages: the number of devices must be at least 1");
    if (!under.bytes.empty() && under.bytes.size() != layers.size())
      throw std::invalid_argument("round stages: give the bytes of every layer");
    std::vector<double> forward;
    std::vector<double> backward;
    for (layer_cost const& layer : layers) {
      forward.push_back(layer.forward);
      backward.push_back(layer.sum());
    }
    std::vector<double> candidates;
    double const slowest = *std::max_element(backward.begin(), backward.end());
    for (std::vector<double> const* const times : {&forward, &backward})
      for (std::size_t last = times->size(); last-- > 0;) {
        double sum = 0; // from the back, as runs are packed
        for (std::size_t first = last + 1; first-- > 0;) {
          sum += (*times)[first];
          if (sum >= slowest && sum <= slowest * under.most_ratio)
            candidates.push_back(sum);
        }
      }
    std::sort(candidates.begin(), candidates.end());
    round_stages found;
    for (double const time : candidates) {
      round_stages made{
        {}, detail::pack_from_back(backward, under.bytes, time, under.most_bytes), time};
      if (made.backward.empty())
        continue;
      auto const rest = layers.size() - static_cast<std::size_t>(made.backward.front());
      made.forward =
        detail::pack_from_back(std::span(forward).first(rest), under.bytes, time, under.most_bytes);
      std::reverse(made.forward.begin(), made.forward.end());
      made.total = std::max(made.stages(), devices) * time;
      if (found.backward.empty() || made.total < found.total)
        found = std::move(made);
    }
    if (found.backward.empty())
      throw std::invalid_argument(
        "round stages: the weights of one layer do not fit; a device holds "
        "those of two stages at once");
    return found;
  }
};

} // namespace pipelining::inline v0_3
