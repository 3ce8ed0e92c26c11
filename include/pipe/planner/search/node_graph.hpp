// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Numbered nodes that wait for each other. Header for pipelining::detail::node_graph.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pipelining::inline v0_3::detail {

using graph_node = std::int32_t;
inline constexpr graph_node no_node = -1;

//! The index of a node, or a place among nodes.
[[nodiscard]] constexpr std::size_t at(std::int32_t index) noexcept {
  return static_cast<std::size_t>(index);
}

//! The end of a dependency: the other node, and the time between both.
struct graph_edge {
  graph_node other;
  double lag;
};

//! The dependencies on one side of all nodes.
struct graph_edges {
  std::vector<graph_edge> all; // node after node
  std::vector<std::int32_t> first{0};

  [[nodiscard]] std::int32_t count(graph_node node) const noexcept {
    return first[at(node) + 1] - first[at(node)];
  }
  [[nodiscard]] std::span<graph_edge const> of(graph_node node) const noexcept {
    return {all.data() + first[at(node)], at(count(node))};
  }
  //! Adds the edges of the next node.
  void add(std::span<graph_edge const> edges) {
    all.insert(all.end(), edges.begin(), edges.end());
    first.push_back(static_cast<std::int32_t>(all.size()));
  }
};

//! The dependencies between all nodes.
struct node_graph {
  graph_edges before;             // whom a node waits for
  graph_edges after;              // who waits for a node
  std::vector<graph_node> sorted; // none before one that it waits for; none that wait in a circle
};

//! The graph of nodes.
//! @param needed by node: whom it waits for
[[nodiscard]] inline node_graph graph_of(std::vector<std::vector<graph_edge>> const& needed) {
  node_graph graph;
  std::vector<std::vector<graph_edge>> waiting(needed.size());
  std::vector<std::size_t> open;
  for (std::vector<graph_edge> const& edges : needed) {
    auto const node = static_cast<graph_node>(open.size());
    for (auto const [other, lag] : edges)
      waiting[at(other)].push_back({node, lag});
    graph.before.add(edges);
    open.push_back(edges.size());
    if (edges.empty())
      graph.sorted.push_back(node);
  }
  for (std::vector<graph_edge> const& edges : waiting)
    graph.after.add(edges);
  for (std::size_t i = 0; i < graph.sorted.size(); ++i)
    for (graph_edge const& edge : graph.after.of(graph.sorted[i]))
      if (--open[at(edge.other)] == 0)
        graph.sorted.push_back(edge.other);
  return graph;
}

//! The longest paths to the starts of all nodes, from the starts of those with 0 in `head`; the
//! others have a negative number there, and keep it where no path leads.
//! @param time `time(node)`: how long a node takes
[[nodiscard]] std::vector<double>
heads_of(node_graph const& graph, auto const& time, std::vector<double> head) {
  for (graph_node const node : graph.sorted)
    if (double const begin = head[at(node)]; begin >= 0)
      for (auto const [other, lag] : graph.after.of(node))
        head[at(other)] = std::max(head[at(other)], begin + time(node) + lag);
  return head;
}
//! The same from the ends of all nodes to the ends of those with 0 in `tail`.
[[nodiscard]] std::vector<double>
tails_of(node_graph const& graph, auto const& time, std::vector<double> tail) {
  for (auto node = graph.sorted.rbegin(); node != graph.sorted.rend(); ++node)
    for (auto const [other, lag] : graph.after.of(*node))
      if (double const after = tail[at(other)]; after >= 0)
        tail[at(*node)] = std::max(tail[at(*node)], lag + time(other) + after);
  return tail;
}

} // namespace pipelining::inline v0_3::detail
