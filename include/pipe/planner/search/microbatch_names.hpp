// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Orders with other names for microbatches. Header for
//! pipelining::detail::names_of_microbatches.

#include <pipe/flow/sort_stably.hpp>
#include <pipe/planner/search/order_graph.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! Orders with other names for microbatches, which have the same passes on the same devices.
class names_of_microbatches {
public:
  names_of_microbatches(order_graph const& graph, int microbatches)
      : graph_(graph), nodes_(at(microbatches)), place_(graph.passes.size()) {
    for (graph_node node = 0; node < graph.size(); ++node)
      nodes_[microbatch_of(node)].push_back(node);
    for (std::vector<graph_node>& each : nodes_) {
      std::sort(each.begin(), each.end(), [this](graph_node a, graph_node b) {
        return key_of(a) < key_of(b);
      });
      for (std::size_t i = 0; i < each.size(); ++i)
        place_[at(each[i])] = i;
    }
    for (std::vector<graph_node> const& each : nodes_)
      compare(nodes_.front(), each);
  }
  //! True where all may change names, and some take unlike times.
  [[nodiscard]] bool matter() const noexcept { return alike_ && unlike_times_; }
  //! How many microbatches there are.
  [[nodiscard]] int count() const noexcept { return static_cast<int>(nodes_.size()); }
  //! Numbers of microbatches, the one with the least time first.
  [[nodiscard]] std::vector<int> by_time() const {
    std::vector<double> sums;
    for (std::vector<graph_node> const& each : nodes_) {
      sums.push_back(0);
      for (graph_node const node : each)
        sums.back() += time_of(node);
    }
    std::vector<int> result(nodes_.size());
    std::iota(result.begin(), result.end(), 0);
    sort_stably(result, [&](int a, int b) { return sums[at(a)] < sums[at(b)]; });
    return result;
  }
  //! @param names [M] the new name of each microbatch. @param count of devices from the first on
  [[nodiscard]] node_rows renamed(node_rows rows,
                                  std::vector<int> const& names,
                                  int first = 0,
                                  std::size_t count = std::dynamic_extent) const {
    for (std::vector<graph_node>& row : std::span(rows).subspan(at(first), count))
      for (graph_node& node : row)
        node = renamed(node, names);
    return rows;
  }
  //! The same of times of nodes.
  [[nodiscard]] std::vector<double> renamed(std::vector<double> const& times,
                                            std::vector<int> const& names) const {
    std::vector<double> result(times.size());
    for (graph_node node = 0; node < graph_.size(); ++node)
      result[at(renamed(node, names))] = times[at(node)];
    return result;
  }
  //! All change names.
  [[nodiscard]] std::vector<int> all_by_chance(random_numbers& random) const {
    std::vector<int> names(nodes_.size());
    std::iota(names.begin(), names.end(), 0);
    for (std::size_t left = names.size(); left > 1; --left)
      std::swap(names[left - 1], names[at(random.below(static_cast<int>(left)))]);
    return names;
  }
  //! Two change names, or several move by one.
  [[nodiscard]] std::vector<int> by_chance(random_numbers& random) const {
    std::vector<int> names(nodes_.size());
    std::iota(names.begin(), names.end(), 0);
    auto one = names.begin() + random.below(static_cast<int>(names.size()));
    auto other = names.begin() + random.below(static_cast<int>(names.size()));
    if (other < one)
      std::swap(one, other);
    switch (random.below(3)) {
    case 0: std::rotate(one, one + (other > one ? 1 : 0), other + 1); break;
    case 1: std::rotate(one, other, other + 1); break;
    default: std::iter_swap(one, other);
    }
    return names;
  }

private:
  void compare(std::vector<graph_node> const& a, std::vector<graph_node> const& b) {
    alike_ = alike_ && a.size() == b.size();
    for (std::size_t i = 0; alike_ && i < a.size(); ++i) {
      alike_ = key_of(a[i]) == key_of(b[i]);
      unlike_times_ = unlike_times_ || time_of(a[i]) != time_of(b[i]);
    }
  }
  [[nodiscard]] graph_node renamed(graph_node node, std::vector<int> const& names) const {
    return nodes_[at(names[microbatch_of(node)])][place_[at(node)]];
  }
  [[nodiscard]] std::size_t microbatch_of(graph_node node) const {
    return graph_.passes[at(node)].microbatch;
  }
  [[nodiscard]] double time_of(graph_node node) const { return graph_.times[at(node)]; }
  [[nodiscard]] std::tuple<int, int, int, int> key_of(graph_node node) const {
    pass const& what = graph_.passes[at(node)];
    return {static_cast<int>(what.kind), what.stage, what.chunk, graph_.holders[at(node)]};
  }

  order_graph const& graph_;
  std::vector<std::vector<graph_node>> nodes_; // by microbatch, sorted alike
  std::vector<std::size_t> place_;             // by node: among those of its microbatch
  bool alike_ = true;
  bool unlike_times_ = false;
};

} // namespace pipelining::inline v0_3::detail
