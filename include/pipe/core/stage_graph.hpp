// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Which stage reads what which stage makes, where stages are no chain. Header for
//! pipelining::stage_edge.

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

//! @brief The most stages that one stage reads of, and the most that read of it.
inline constexpr int most_neighbours = 4;

//! @brief A stage at the other end of an edge.
struct stage_neighbour {
  int stage = 0;
  int number = 0; //!< which of its neighbours on that side this edge leads to, as it counts them
};

namespace detail {

//! Where the neighbours of a stage begin in a table of edges: 1 + 2 (S + 1) + 4 E numbers. The
//! first is the largest number of neighbours; then, for the stages before and for those after,
//! where each stage's edges begin; then stage and number of every neighbour.
[[nodiscard]] constexpr int const*
first_neighbour(int const* edges, int stage_count, int stage, int step) noexcept {
  return edges + 1 + (step < 0 ? 0 : stage_count + 1) + stage;
}

[[noreturn]] inline void refuse_edge(stage_edge const& edge, char const* why) {
  throw std::invalid_argument("stage graph: the edge from stage " + std::to_string(edge.from) +
                              " to stage " + std::to_string(edge.to) + " " + why);
}

} // namespace detail

//! @brief How many stages are before (step -1) or after (step +1) a stage.
//! @param edges a table of edges; null for a chain.
[[nodiscard]] constexpr int
neighbours(int const* edges, int stage_count, int stage, int step) noexcept {
  if (edges == nullptr)
    return stage + step >= 0 && stage + step < stage_count ? 1 : 0;
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
  int const* const pair = edges + 1 + 2 * (stage_count + 1) + 2 * at;
  return {pair[0], pair[1]};
}

//! @brief The numbers of a table of edges.
[[nodiscard]] constexpr int table_size(int const* edges, int stage_count) noexcept {
  return 1 + 2 * (stage_count + 1) +
         2 * *detail::first_neighbour(edges, stage_count, stage_count, 1);
}

//! @brief The table of the edges of a graph of stages.
//! @throws std::invalid_argument with a sentence for an edge that leads to no stage, back, or twice
//! to the same stage, and for more than `most_neighbours` on one side of a stage.
//! @complexity O(S + E most_neighbours).
[[nodiscard]] inline std::vector<int> edge_table(std::span<stage_edge const> edges,
                                                 int stage_count) {
  auto const count = static_cast<std::size_t>(stage_count);
  std::vector<std::vector<stage_neighbour>> before(count);
  std::vector<std::vector<stage_neighbour>> after(count);
  std::size_t widest = 1;
  for (stage_edge const& edge : edges) {
    if (edge.from < 0 || edge.to >= stage_count)
      detail::refuse_edge(edge, "names a stage that does not exist; stages are 0 to S - 1");
    if (edge.from >= edge.to)
      detail::refuse_edge(edge, "leads back; number stages so that each reads of lower ones");
    std::vector<stage_neighbour>& out = after[static_cast<std::size_t>(edge.from)];
    std::vector<stage_neighbour>& in = before[static_cast<std::size_t>(edge.to)];
    for (stage_neighbour const& other : out)
      if (other.stage == edge.to)
        detail::refuse_edge(edge, "is there twice; put what both carry into one output");
    out.push_back({edge.to, static_cast<int>(in.size())});
    in.push_back({edge.from, static_cast<int>(out.size()) - 1});
    widest = in.size() > widest ? in.size() : widest;
    widest = out.size() > widest ? out.size() : widest;
    if (widest > static_cast<std::size_t>(most_neighbours))
      detail::refuse_edge(edge, "is the fifth on one side of a stage; there is room for four");
  }
  std::vector<int> table{static_cast<int>(widest)};
  int at = 0;
  for (auto const* side : {&before, &after}) {
    for (std::vector<stage_neighbour> const& of : *side) {
      table.push_back(at);
      at += static_cast<int>(of.size());
    }
    table.push_back(at);
  }
  for (auto const* side : {&before, &after})
    for (std::vector<stage_neighbour> const& of : *side)
      for (stage_neighbour const& other : of) {
        table.push_back(other.stage);
        table.push_back(other.number);
      }
  return table;
}

} // namespace pipelining::inline v0_2
