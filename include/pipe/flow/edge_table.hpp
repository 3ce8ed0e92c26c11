// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Makes the table in which `stage_graph.hpp` looks neighbours up. Header for
//! pipelining::detail::edge_table.

#include <pipe/flow/stage_graph.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_3::detail {

[[noreturn]] inline void refuse_edge(stage_edge const& edge, char const* why) {
  throw std::invalid_argument("stage graph: the edge from stage " + std::to_string(edge.from) +
                              " to stage " + std::to_string(edge.to) + " " + why);
}

//! For each stage, 1 where it is frozen.
//! @throws std::invalid_argument for a stage that is none, groups, and where nothing is trained.
[[nodiscard]] inline std::vector<int>
forward_only(int stage_count, std::span<stage_group const> groups, std::span<int const> frozen) {
  std::vector<int> result(static_cast<std::size_t>(stage_count));
  for (int const stage : frozen) {
    if (stage < 0 || stage >= stage_count)
      throw std::invalid_argument("frozen stages: there is no stage " + std::to_string(stage) +
                                  "; stages are 0 to " + std::to_string(stage_count - 1));
    result[static_cast<std::size_t>(stage)] = 1;
  }
  if (!frozen.empty() && !groups.empty())
    throw std::invalid_argument(
      "frozen stages: shards of a vocabulary are trained together; leave one of both out");
  if (!frozen.empty() && std::find(result.begin(), result.end(), 0) == result.end())
    throw std::invalid_argument("frozen stages: all stages are frozen, so nothing is trained; "
                                "leave one out, or evaluate");
  return result;
}

//! Finds who takes a gradient from each stage, and which frozen stages only go forward.
//! @param still for each stage, 1 where it is frozen
inline void find_takers(std::vector<int>& still,
                        std::vector<std::vector<stage_neighbour>> const& before,
                        std::vector<std::vector<stage_neighbour>>& after,
                        std::vector<std::vector<stage_neighbour>>& takers_of) {
  for (std::size_t to = 0; to < still.size(); ++to)
    for (stage_neighbour const& from : before[to]) {
      auto const stage = static_cast<std::size_t>(from.stage);
      if (still[stage] != 0)
        continue;
      still[to] = 0;
      after[stage][static_cast<std::size_t>(from.number)].number =
        static_cast<int>(takers_of[to].size());
      takers_of[to].push_back(from);
    }
}

//! The most neighbours that one pass makes something for. A pass of a group may make something for
//! each of its neighbours, other passes for one side.
[[nodiscard]] inline int widest_side(std::vector<std::vector<stage_neighbour>> const& before,
                                     std::vector<std::vector<stage_neighbour>> const& after,
                                     std::vector<std::vector<stage_neighbour>> const& beside_all) {
  std::size_t widest = 1;
  for (std::size_t stage = 0; stage < before.size(); ++stage) {
    std::size_t const together = before[stage].size() + beside_all[stage].size();
    std::size_t const all = beside_all[stage].empty() ? 0 : together + after[stage].size();
    widest = std::max({widest, together, after[stage].size(), all});
  }
  return static_cast<int>(widest);
}

//! The table of the edges of a graph of stages.
//! @param groups no stage is in two of them. @param frozen stages without weights to train: where
//! none before them has any, they only go forward
//! @throws std::invalid_argument with a sentence for an edge that leads to no stage, back, or twice
//! to the same stage, and for a group of no stages or of those of another.
//! @complexity O(S + E n + G^2) for n edges of one stage and groups of G stages.
[[nodiscard]] inline std::vector<int> edge_table(std::span<stage_edge const> edges,
                                                 int stage_count,
                                                 std::span<stage_group const> groups = {},
                                                 std::span<int const> frozen = {}) {
  auto const count = static_cast<std::size_t>(stage_count);
  std::vector<std::vector<stage_neighbour>> sides[beside - takers + 1]; // by step
  for (auto& side : sides)
    side.resize(count);
  auto& [beside_all, after_all, none, before_all, takers_all] = sides;
  for (stage_edge const& edge : edges) {
    if (edge.from < 0 || edge.to >= stage_count)
      refuse_edge(edge, "names a stage that does not exist; stages are 0 to S - 1");
    if (edge.from >= edge.to)
      refuse_edge(edge, "leads back; number stages so that each reads of lower ones");
    std::vector<stage_neighbour>& out = after_all[static_cast<std::size_t>(edge.from)];
    std::vector<stage_neighbour>& in = before_all[static_cast<std::size_t>(edge.to)];
    for (stage_neighbour const& other : out)
      if (other.stage == edge.to)
        refuse_edge(edge, "is there twice; put what both carry into one output");
    out.push_back({edge.to, static_cast<int>(in.size())});
    in.push_back({edge.from, static_cast<int>(out.size()) - 1});
  }
  for (stage_group const& group : groups)
    for (int member = 0; member < group.count || group.count < 1; ++member) {
      if (group.first < 0 || group.count < 1 || group.count > stage_count - group.first ||
          !beside_all[static_cast<std::size_t>(group.first + member)].empty())
        throw std::invalid_argument("stage graph: a group of " + std::to_string(group.count) +
                                    " stages from stage " + std::to_string(group.first) +
                                    " on has stages that do not exist, none, or those of another");
      for (int other = 0; other < group.count; ++other)
        beside_all[static_cast<std::size_t>(group.first + member)].push_back(
          {group.first + other, member});
    }
  std::vector<int> still = forward_only(stage_count, groups, frozen);
  find_takers(still, before_all, after_all, takers_all);
  std::vector<int> table{widest_side(before_all, after_all, beside_all)};
  int at = 0;
  for (auto const& side : sides) {
    if (&side == &none) {
      table.insert(table.end(), still.begin(), still.end());
      table.push_back(0);
      continue;
    }
    for (std::vector<stage_neighbour> const& of : side) {
      table.push_back(at);
      at += static_cast<int>(of.size());
    }
    table.push_back(at);
  }
  for (auto const& side : sides)
    for (std::vector<stage_neighbour> const& of : side)
      for (stage_neighbour const& other : of) {
        table.push_back(other.stage);
        table.push_back(other.number);
      }
  return table;
}

} // namespace pipelining::inline v0_3::detail
