// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The passes of a pipeline as numbered nodes in flat arrays, for searches that look at
//! millions of orders.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/pool_effect.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Numbers without a pattern, the same on every machine.
struct random_numbers {
  std::uint64_t state;

  [[nodiscard]] std::uint64_t next() noexcept { // splitmix64 of Steele, Lea and Flood
    std::uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
  //! 0 ... count - 1
  [[nodiscard]] int below(int count) noexcept {
    return static_cast<int>((next() >> 32) * static_cast<std::uint64_t>(count) >> 32);
  }
  //! 0 <= x < 1
  [[nodiscard]] double fraction() noexcept {
    return static_cast<double>(next() >> 11) / static_cast<double>(std::uint64_t{1} << 53);
  }
};

using graph_node = std::int32_t;
inline constexpr graph_node no_node = -1;

//! The end of a dependency: the other pass, and how long its message takes.
struct graph_edge {
  graph_node other;
  double lag;
};

//! Who waits for whom, for how long passes take and what they hold. Orders of devices are no part
//! of it.
struct order_graph {
  int devices = 0;
  int memory_limit = 0;              // slots of a device
  std::vector<pass> passes;          // by node
  std::vector<double> times;         // by node
  std::vector<std::int32_t> holders; // by node: its device
  std::vector<std::int8_t> taken;    // by node: slots at its start
  std::vector<std::int8_t> freed;    // by node: slots at its end
  std::vector<graph_edge> before;    // whom a node waits for, node after node
  std::vector<std::int32_t> first_before;
  std::vector<graph_edge> after; // who waits for a node
  std::vector<std::int32_t> first_after;
  std::vector<double> heads; // by node: no order starts it earlier
  std::vector<double> tails; // by node: what comes behind its end at least
  std::vector<double> waits; // by device: what counts behind its last pass, see `count_spans`

  [[nodiscard]] int size() const noexcept { return static_cast<int>(passes.size()); }
};

//! One row of nodes per device.
using node_rows = std::vector<std::vector<graph_node>>;

//! The passes of an order whose backward passes are in halves, if `split`; pairs come apart.
[[nodiscard]] inline std::vector<std::vector<pass>> plain_rows(device_orders const& orders,
                                                               bool split) {
  std::vector<std::vector<pass>> rows(static_cast<std::size_t>(orders.over.extents.devices));
  for (int device = 0; device < orders.over.extents.devices; ++device)
    for (int i = orders.offsets[static_cast<std::size_t>(device)];
         i < orders.offsets[static_cast<std::size_t>(device) + 1];
         ++i) {
      pass what = orders.passes[static_cast<std::size_t>(i)];
      auto& row = rows[static_cast<std::size_t>(device)];
      what.overlapped = false;
      flow const& declared = orders.over.declared;
      if (split && what.kind == kind_with(declared, role::backward)) {
        what.kind = kind_with(declared, role::input);
        row.push_back(what);
        what.kind = kind_with(declared, role::weights);
      }
      row.push_back(what);
    }
  return rows;
}

//! Fills in the longest paths without any order, forth and back.
inline void find_paths(order_graph& graph) {
  auto const count = static_cast<std::size_t>(graph.size());
  std::vector<std::int32_t> open(count);
  std::vector<graph_node> sorted;
  sorted.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    open[i] = graph.first_before[i + 1] - graph.first_before[i];
    if (open[i] == 0)
      sorted.push_back(static_cast<graph_node>(i));
  }
  graph.heads.assign(count, 0);
  graph.tails.assign(count, 0);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    auto const node = static_cast<std::size_t>(sorted[i]);
    for (std::int32_t k = graph.first_after[node]; k < graph.first_after[node + 1]; ++k) {
      graph_edge const edge = graph.after[static_cast<std::size_t>(k)];
      auto const other = static_cast<std::size_t>(edge.other);
      graph.heads[other] =
        std::max(graph.heads[other], graph.heads[node] + graph.times[node] + edge.lag);
      if (--open[other] == 0)
        sorted.push_back(edge.other);
    }
  }
  if (sorted.size() != count)
    throw std::invalid_argument("search_order: the passes of the flow wait for each other");
  for (auto at = sorted.rbegin(); at != sorted.rend(); ++at) {
    auto const node = static_cast<std::size_t>(*at);
    for (std::int32_t k = graph.first_after[node]; k < graph.first_after[node + 1]; ++k) {
      graph_edge const edge = graph.after[static_cast<std::size_t>(k)];
      auto const other = static_cast<std::size_t>(edge.other);
      graph.tails[node] =
        std::max(graph.tails[node], edge.lag + graph.times[other] + graph.tails[other]);
    }
  }
}

//! Makes the graph count the span of devices in place of the end of the last pass: what a device
//! may start late, it may end late. A device that starts later than it must has a shorter span than
//! is counted.
inline void count_spans(order_graph& graph) {
  std::vector<double> first(static_cast<std::size_t>(graph.devices),
                            std::numeric_limits<double>::max());
  for (std::size_t i = 0; i < graph.passes.size(); ++i) {
    double& mine = first[static_cast<std::size_t>(graph.holders[i])];
    mine = std::min(mine, graph.heads[i]);
  }
  for (std::size_t device = 0; device < first.size(); ++device)
    graph.waits[device] = -first[device];
}

//! The graph of the passes of these rows.
//! @param rows every pass of the pipeline once, on one engine per device
template <cost_model Cost>
[[nodiscard]] order_graph make_graph(pipeline_view const& over,
                                     Cost const& cost,
                                     std::vector<std::vector<pass>> const& rows,
                                     int memory_limit) {
  order_graph graph;
  graph.devices = over.extents.devices;
  graph.memory_limit = memory_limit;
  graph.waits.assign(rows.size(), 0);
  std::vector<graph_node> node_of(static_cast<std::size_t>(pass_indices(over)), no_node);
  pool_effect const effects = effect_on(*over.declared, slot_class::activation);
  for (std::vector<pass> const& row : rows)
    for (pass const& what : row) {
      node_of[static_cast<std::size_t>(pass_index(over, what))] = graph.size();
      graph.passes.push_back(what);
      graph.times.push_back(checked_duration(cost, what));
      graph.holders.push_back(device_of(over, what));
      graph.taken.push_back(static_cast<std::int8_t>(effects.taken[index_of(what.kind)]));
      graph.freed.push_back(static_cast<std::int8_t>(effects.freed[index_of(what.kind)]));
    }
  double const latency = checked_latency(cost);
  std::span<double const> const links = checked_links(cost, graph.devices);
  std::vector<std::vector<graph_edge>> after(graph.passes.size());
  graph.first_before.push_back(0);
  for (graph_node node = 0; node < graph.size(); ++node) {
    pass const& what = graph.passes[static_cast<std::size_t>(node)];
    dependency_list const needed = dependencies(over, what);
    for (int k = 0; k < needed.count; ++k) {
      graph_node const other = node_of[static_cast<std::size_t>(needed.index(k))];
      if (other == no_node)
        throw std::invalid_argument("search_order: an order lacks a pass that others wait for");
      double const lag = message_time(links.empty() ? nullptr : links.data(),
                                      graph.devices,
                                      latency,
                                      graph.holders[static_cast<std::size_t>(other)],
                                      graph.holders[static_cast<std::size_t>(node)]);
      graph.before.push_back({other, lag});
      after[static_cast<std::size_t>(other)].push_back({node, lag});
    }
    graph.first_before.push_back(static_cast<std::int32_t>(graph.before.size()));
  }
  graph.first_after.push_back(0);
  for (std::vector<graph_edge> const& edges : after) {
    graph.after.insert(graph.after.end(), edges.begin(), edges.end());
    graph.first_after.push_back(static_cast<std::int32_t>(graph.after.size()));
  }
  find_paths(graph);
  return graph;
}

//! The nodes of rows of passes.
//! @throws std::invalid_argument for passes that the graph does not have.
[[nodiscard]] inline node_rows nodes_of(pipeline_view const& over,
                                        order_graph const& graph,
                                        std::vector<std::vector<pass>> const& rows) {
  std::vector<graph_node> node_of(static_cast<std::size_t>(pass_indices(over)), no_node);
  for (graph_node node = 0; node < graph.size(); ++node)
    node_of[static_cast<std::size_t>(
      pass_index(over, graph.passes[static_cast<std::size_t>(node)]))] = node;
  node_rows result(rows.size());
  std::size_t count = 0;
  for (std::size_t device = 0; device < rows.size(); ++device)
    for (pass const& what : rows[device]) {
      graph_node const node = node_of[static_cast<std::size_t>(pass_index(over, what))];
      if (node == no_node || !(graph.passes[static_cast<std::size_t>(node)] == what))
        throw std::invalid_argument("search_order: the orders to start from have passes of "
                                    "different kinds; split backward passes in all or in none");
      result[device].push_back(node);
      ++count;
    }
  if (count != graph.passes.size())
    throw std::invalid_argument("search_order: an order to start from lacks passes of another");
  return result;
}

} // namespace pipelining::inline v0_3::detail
