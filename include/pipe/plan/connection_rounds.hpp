// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What a transport asks of a plan: in which rounds devices connect before the first step,
//! and which messages are broadcasts. Header for pipelining::detail::connect_rounds and
//! is_broadcast.

#include <pipe/flow/dependencies.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/plan/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! @brief True for a message of an exchange that brings the same from one device to all others.
//! @param step one of its ends.
[[nodiscard]] inline bool is_broadcast(plan const& work, item const& step) noexcept {
  int const exchange = work.exchange_at(step);
  if (exchange == nothing || work.over.view().in_group(step.work.stage))
    return false;
  int receivers = 0;
  for (int number = 0; number < readers(work.over, step.work); ++number)
    if (receiver(work.over, step.work, number) != nothing &&
        exchange_of(work.over, step.work, number) == exchange)
      ++receivers;
  return receivers == work.over.extents.devices - 1;
}

//! Two devices that exchange messages: in round `round` both make their connections, in both
//! directions that are in use, and wait for them.
struct device_pair {
  int one = 0;       //!< the lower device
  int other = 0;     //!< the higher device
  bool up = false;   //!< messages from `one` to `other`
  bool down = false; //!< messages from `other` to `one`
  int round = 0;     //!< when they connect

  friend constexpr bool operator==(device_pair const&, device_pair const&) = default;
};

//! The pairs of devices between which a plan sends messages, in ascending order; not in
//! rounds yet.
//! @complexity O(n log E) for n items and E pairs.
[[nodiscard]] inline std::vector<device_pair> device_pairs(plan const& work) {
  std::map<std::pair<int, int>, device_pair> all;
  for (int device = 0; device < work.over.extents.devices; ++device)
    for (item const& step : work.program_of(device)) {
      if (step.what != operation::send)
        continue;
      int const peer = work.message_of(step).peer;
      std::pair const key = std::minmax({device, peer});
      device_pair& edge = all[key];
      std::tie(edge.one, edge.other) = key;
      (device < peer ? edge.up : edge.down) = true;
    }
  std::vector<device_pair> result;
  for (auto const& [key, edge] : all)
    result.push_back(edge);
  return result;
}

//! Colours the edges of a graph by trying, one edge after the other, in the order of a walk.
struct edge_colouring {
  std::vector<device_pair>& edges;
  int rounds;
  long budget;            // colours to try at most
  std::vector<char> busy; // [devices][rounds]

  [[nodiscard]] char& taken(int device, int round) {
    return busy[static_cast<std::size_t>(device) * static_cast<std::size_t>(rounds) +
                static_cast<std::size_t>(round)];
  }
  //! Colours all edges with `rounds` colours, or gives up: there are none, or the budget is spent.
  [[nodiscard]] bool solve() {
    std::vector<int> tried(edges.size(), nothing);
    std::size_t at = 0;
    while (at < edges.size()) {
      device_pair& edge = edges[at];
      int& round = tried[at];
      if (round != nothing)
        taken(edge.one, round) = taken(edge.other, round) = 0;
      do
        ++round;
      while (round < rounds && (taken(edge.one, round) != 0 || taken(edge.other, round) != 0));
      if (--budget < 0)
        return false;
      // The first edge may have the first colour: colours are alike.
      if (round == rounds || (at == 0 && round > 0)) {
        round = nothing;
        if (at == 0)
          return false;
        --at;
        continue;
      }
      taken(edge.one, round) = taken(edge.other, round) = 1;
      edge.round = round;
      ++at;
    }
    return true;
  }
};

//! The pairs along walks through the graph: each shares a device with one before it where it can,
//! so that a wrong colour is found early.
inline std::vector<device_pair> along_walks(std::vector<device_pair> const& edges, int devices) {
  std::vector<std::vector<std::size_t>> at(static_cast<std::size_t>(devices));
  for (std::size_t i = 0; i < edges.size(); ++i) {
    at[static_cast<std::size_t>(edges[i].one)].push_back(i);
    at[static_cast<std::size_t>(edges[i].other)].push_back(i);
  }
  std::vector<device_pair> result;
  std::vector<char> placed(edges.size());
  std::vector<int> reached;
  for (int start = 0; start < devices; ++start) {
    reached.push_back(start);
    for (std::size_t next = reached.size() - 1; next < reached.size(); ++next)
      for (std::size_t const i : at[static_cast<std::size_t>(reached[next])]) {
        if (placed[i] != 0)
          continue;
        placed[i] = 1;
        result.push_back(edges[i]);
        reached.push_back(edges[i].one == reached[next] ? edges[i].other : edges[i].one);
      }
  }
  return result;
}

//! Gives every pair of devices a round so that each device is in one pair at most per round:
//! the rounds in which connections are made before the first step, and never lazily after it.
//!
//! Uses the fewest rounds that there are, as long as a search of `budget` steps finds them;
//! pipelines are paths, rings and other sparse graphs, where the first try succeeds. Never more
//! than twice the largest number of neighbours.
//!
//! @return the pairs, by rounds.
//! @complexity O(P + E) for paths and rings; O(budget) at worst for each number of rounds.
//! @source an edge colouring: Vizing, "On an estimate of the chromatic class of a p-graph", 1964:
//! the largest number of neighbours suffices, or one more.
[[nodiscard]] inline std::vector<device_pair>
connect_rounds(std::vector<device_pair> const& pairs, int devices, long budget = 200000) {
  std::vector<device_pair> edges = along_walks(pairs, devices);
  std::vector<int> neighbours(static_cast<std::size_t>(devices));
  int most = 0;
  for (device_pair const& edge : edges)
    for (int const device : {edge.one, edge.other})
      most = std::max(most, ++neighbours[static_cast<std::size_t>(device)]);
  for (int rounds = most; !edges.empty(); ++rounds) {
    std::vector<char> busy(static_cast<std::size_t>(devices) * static_cast<std::size_t>(rounds));
    // With twice the neighbours there is always a free colour: no search, no budget.
    long const steps = rounds >= 2 * most ? static_cast<long>(edges.size()) * (rounds + 1) : budget;
    edge_colouring search{edges, rounds, steps, std::move(busy)};
    if (search.solve())
      break;
  }
  // No two are equal, since a device is in one pair of a round.
  std::sort(edges.begin(), edges.end(), [](device_pair const& a, device_pair const& b) {
    return std::pair(a.round, a.one) < std::pair(b.round, b.one);
  });
  return edges;
}

//! The rounds of the pairs of a plan.
[[nodiscard]] inline std::vector<device_pair> connect_rounds(plan const& work) {
  return connect_rounds(device_pairs(work), work.over.extents.devices);
}

} // namespace pipelining::inline v0_3::detail
