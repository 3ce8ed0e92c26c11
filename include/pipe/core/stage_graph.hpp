// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which stage reads what which stage makes, where stages are no chain. Header for
//! pipelining::stage_edge.

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pipelining::inline v0_2 {

//! @brief Stage `to` reads what stage `from` makes. Stages are numbered so that from < to.
struct stage_edge {
  int from = 0; //!< makes
  int to = 0;   //!< reads

  friend constexpr bool operator==(stage_edge const&, stage_edge const&) = default;
};

//! @brief Stages that share out one piece of work, such as the shards of a vocabulary: `count`
//! stages from `first` on. What each makes for the group, all of them read.
struct stage_group {
  int first = 0; //!< the first of them
  int count = 0; //!< how many there are

  friend constexpr bool operator==(stage_group const&, stage_group const&) = default;
};

//! @brief The step from a stage to those of its group, itself among them. To those before it: -1, to
//! those after it: +1.
inline constexpr int beside = 2;

//! @brief A stage at the other end of an edge.
struct stage_neighbour {
  int stage = 0;  //!< its number
  int number = 0; //!< which of its neighbours on that side this edge leads to, as it counts them
};

namespace detail {

//! Where the neighbours of a stage begin in a table of edges: 1 + 3 (S + 1) + 2 n numbers. The
//! first is the most stages that read of one; then, for the stages before, after and beside, where
//! each stage's neighbours begin; then stage and number of every neighbour.
[[nodiscard]] constexpr int const*
first_neighbour(int const* edges, int stage_count, int stage, int step) noexcept {
  int const side = step < 0 ? 0 : step == beside ? 2 : 1;
  return edges + 1 + side * (stage_count + 1) + stage;
}

[[noreturn]] inline void refuse_edge(stage_edge const& edge, char const* why) {
  throw std::invalid_argument("stage graph: the edge from stage " + std::to_string(edge.from) +
                              " to stage " + std::to_string(edge.to) + " " + why);
}

} // namespace detail

//! @brief How many stages are before (step -1), after (step +1) or `beside` a stage.
//! @param edges a table of edges; null for a chain.
[[nodiscard]] constexpr int
neighbours(int const* edges, int stage_count, int stage, int step) noexcept {
  if (edges == nullptr)
    return step != beside && stage + step >= 0 && stage + step < stage_count ? 1 : 0;
  int const* const first = detail::first_neighbour(edges, stage_count, stage, step);
  return first[1] - first[0];
}

//! @brief One of them, in the order in which the edges were given.
//! @pre 0 <= number < neighbours(edges, stage_count, stage, step)
[[nodiscard]] constexpr stage_neighbour
neighbour(int const* edges, int stage_count, int stage, int step, int number) noexcept {
  if (edges == nullptr)
    return {stage + step, 0};
  int const at = *detail::first_neighbour(edges, stage_count, stage, step) + number;
  int const* const pair = edges + 1 + 3 * (stage_count + 1) + 2 * at;
  return {pair[0], pair[1]};
}

//! @brief The numbers of a table of edges.
[[nodiscard]] constexpr int table_size(int const* edges, int stage_count) noexcept {
  return 1 + 3 * (stage_count + 1) +
         2 * *detail::first_neighbour(edges, stage_count, stage_count, beside);
}

//! @brief The table of the edges of a graph of stages.
//! @param groups no stage is in two of them.
//! @throws std::invalid_argument with a sentence for an edge that leads to no stage, back, or twice
//! to the same stage, and for a group of no stages or of those of another.
//! @complexity O(S + E n + G^2) for n edges of one stage and groups of G stages.
[[nodiscard]] inline std::vector<int> edge_table(std::span<stage_edge const> edges,
                                                 int stage_count,
                                                 std::span<stage_group const> groups = {}) {
  auto const count = static_cast<std::size_t>(stage_count);
  std::vector<std::vector<stage_neighbour>> sides[3]; // before, after, beside
  for (auto& side : sides)
    side.resize(count);
  auto& [before_all, after_all, beside_all] = sides;
  for (stage_edge const& edge : edges) {
    if (edge.from < 0 || edge.to >= stage_count)
      detail::refuse_edge(edge, "names a stage that does not exist; stages are 0 to S - 1");
    if (edge.from >= edge.to)
      detail::refuse_edge(edge, "leads back; number stages so that each reads of lower ones");
    std::vector<stage_neighbour>& out = after_all[static_cast<std::size_t>(edge.from)];
    std::vector<stage_neighbour>& in = before_all[static_cast<std::size_t>(edge.to)];
    for (stage_neighbour const& other : out)
      if (other.stage == edge.to)
        detail::refuse_edge(edge, "is there twice; put what both carry into one output");
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
  std::size_t widest = 1;
  for (std::size_t stage = 0; stage < count; ++stage)
    widest = std::max(
      {widest, before_all[stage].size() + beside_all[stage].size(), after_all[stage].size()});
  std::vector<int> table{static_cast<int>(widest)};
  int at = 0;
  for (auto const& side : sides) {
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

} // namespace pipelining::inline v0_2
