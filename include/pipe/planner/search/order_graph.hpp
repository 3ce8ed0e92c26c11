// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The passes of a pipeline as a graph, and orders made from it pass by pass. Header for
//! pipelining::detail::order_graph and list_order.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/planner/model/stage_memory.hpp>
#include <pipe/planner/search/node_graph.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/peaks.hpp>
#include <pipe/timetable/timetable.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
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

//! The dependencies between passes, their times and the memory that they hold. Orders of devices
//! are no part of it.
struct order_graph {
  int devices = 0;
  std::vector<std::int64_t> room;    // by device: slots, or bytes, see `count_bytes`
  std::vector<pass> passes;          // by node
  std::vector<double> times;         // by node
  std::vector<std::int32_t> holders; // by node: its device
  std::vector<std::int64_t> taken;   // by node: of the room, at its start
  std::vector<std::int64_t> freed;   // by node: of the room, at its end
  node_graph edges;                  // between passes
  std::vector<double> heads;         // by node: no order starts it earlier
  std::vector<double> tails;         // by node: what comes after its end at least
  std::vector<double> waits; // by device: what counts after its last pass, see `count_spans`

  [[nodiscard]] int size() const noexcept { return static_cast<int>(passes.size()); }
  [[nodiscard]] double mean_time() const noexcept {
    return std::accumulate(times.begin(), times.end(), 0.0) / std::max(size(), 1);
  }
};

//! One row of nodes per device.
using node_rows = std::vector<std::vector<graph_node>>;

//! The passes of an order whose backward passes are in halves, if `split`; pairs come apart.
[[nodiscard]] inline std::vector<std::vector<pass>> plain_rows(device_orders const& orders,
                                                               bool split) {
  std::vector<std::vector<pass>> rows(at(orders.over.extents.devices));
  flow const& declared = orders.over.declared;
  for (std::size_t device = 0; device < rows.size(); ++device)
    for (int i = orders.offsets[device]; i < orders.offsets[device + 1]; ++i) {
      pass what = orders.passes[at(i)];
      what.overlapped = false;
      if (split && what.kind == declared.kind_with(role::backward)) {
        what.kind = declared.kind_with(role::input);
        rows[device].push_back(what);
        what.kind = declared.kind_with(role::weights);
      }
      rows[device].push_back(what);
    }
  return rows;
}

//! The same from the end: who waits for a node goes before it, and it takes what it has freed.
[[nodiscard]] inline order_graph reversed(order_graph graph) {
  std::swap(graph.edges.before, graph.edges.after);
  std::reverse(graph.edges.sorted.begin(), graph.edges.sorted.end());
  std::swap(graph.taken, graph.freed);
  std::swap(graph.heads, graph.tails);
  return graph;
}

//! Makes the graph count the span of devices in place of the end of the last pass: a device that
//! may start late may end late. A device that starts later than it must has a shorter span than is
//! counted.
inline void count_spans(order_graph& graph) {
  std::vector<double> first(at(graph.devices), std::numeric_limits<double>::max());
  for (std::size_t i = 0; i < graph.passes.size(); ++i) {
    double& mine = first[at(graph.holders[i])];
    mine = std::min(mine, graph.heads[i]);
  }
  for (std::size_t device = 0; device < first.size(); ++device)
    graph.waits[device] = -first[device];
}

//! The graph of the passes of these rows.
//! @param rows every pass of the pipeline once, on one engine per device
[[nodiscard]] order_graph make_graph(pipeline_view const& over,
                                     cost_model auto const& cost,
                                     std::vector<std::vector<pass>> const& rows,
                                     int memory_limit) {
  order_graph graph;
  graph.devices = over.extents.devices;
  graph.room.assign(rows.size(), memory_limit);
  graph.waits.assign(rows.size(), 0);
  std::vector<graph_node> node_of(at(over.pass_indices()), no_node);
  pool_effect const effects(*over.declared, slot_class::activation);
  for (std::vector<pass> const& row : rows)
    for (pass const& what : row) {
      node_of[at(pass_index(over, what))] = graph.size();
      graph.passes.push_back(what);
      graph.times.push_back(checked_duration(cost, kinds_of_training, what));
      graph.holders.push_back(device_of(over, what));
      graph.taken.push_back(effects.taken[index_of(what.kind)]);
      graph.freed.push_back(goes_forward_only(over, what.stage)
                              ? graph.taken.back()
                              : effects.freed[index_of(what.kind)]);
    }
  std::vector<std::vector<graph_edge>> before(graph.passes.size());
  for (graph_node node = 0; node < graph.size(); ++node) {
    dependency_list const needed(over, graph.passes[at(node)]);
    for (int k = 0; k < needed.count; ++k) {
      graph_node const other = node_of[at(needed.index(k))];
      if (other == no_node)
        throw std::invalid_argument("search_order: an order lacks a pass that others wait for");
      double const lag =
        message_time(cost, graph.devices, graph.holders[at(other)], graph.holders[at(node)]);
      before[at(node)].push_back({other, lag});
    }
  }
  graph.edges = graph_of(before);
  if (graph.edges.sorted.size() != graph.passes.size())
    throw std::invalid_argument("search_order: the passes of the flow wait for each other");
  auto const time = [&](graph_node node) { return graph.times[at(node)]; };
  graph.heads = heads_of(graph.edges, time, std::vector<double>(before.size()));
  graph.tails = tails_of(graph.edges, time, std::vector<double>(before.size()));
  return graph;
}

//! Makes the graph count bytes in place of slots, each rounded up.
//! @param room [P] bytes of each device, those that are always there included
//! @pre the flow is training's, and the bytes are of its stages and chunks
inline void count_bytes(order_graph& graph,
                        pipeline_view const& over,
                        stage_memory memory,
                        std::span<double const> room) {
  for (std::vector<double>* const all : {&memory.activation, &memory.weight_input})
    for (double& bytes : *all)
      bytes = std::ceil(bytes);
  std::vector<double> const resident = resident_bytes(memory, over);
  for (std::size_t device = 0; device < room.size(); ++device)
    graph.room[device] = static_cast<std::int64_t>(std::floor(room[device] - resident[device]));
  for (std::size_t i = 0; i < graph.passes.size(); ++i) {
    auto const bytes = static_cast<std::int64_t>(
      moved_bytes(memory, *over.declared, over.extents.chunks, graph.passes[i]));
    bool const takes = (*over.declared)[graph.passes[i].kind].is == role::forward;
    graph.taken[i] = takes ? bytes : 0;
    graph.freed[i] = takes && !goes_forward_only(over, graph.passes[i].stage) ? 0 : bytes;
  }
}

//! The nodes of rows of passes.
//! @throws std::invalid_argument for passes that the graph does not have.
[[nodiscard]] inline node_rows nodes_of(pipeline_view const& over,
                                        order_graph const& graph,
                                        std::vector<std::vector<pass>> const& rows) {
  std::vector<graph_node> node_of(at(over.pass_indices()), no_node);
  for (graph_node node = 0; node < graph.size(); ++node)
    node_of[at(pass_index(over, graph.passes[at(node)]))] = node;
  node_rows result(rows.size());
  std::size_t count = 0;
  for (std::size_t device = 0; device < rows.size(); ++device)
    for (pass const& what : rows[device]) {
      graph_node const node = node_of[at(pass_index(over, what))];
      if (node == no_node || !(graph.passes[at(node)] == what))
        throw std::invalid_argument("search_order: the orders to start from have passes of "
                                    "different kinds; split backward passes in all or in none");
      result[device].push_back(node);
      ++count;
    }
  if (count != graph.passes.size())
    throw std::invalid_argument("search_order: an order to start from lacks passes of another");
  return result;
}

//! The preferences of a device among the passes that it could run. All but `wait` are in mean times
//! of a pass.
struct list_taste {
  double wait = 4;           // what idling costs, over the time it takes
  double taker = 0;          // of a pass that takes memory, against one that does not
  double filler = 8;         // of a pass that nobody waits for
  double age = 1;            // of each microbatch that is older
  double depth = 0;          // of the path that is left after a pass
  double slope = 0;          // of P-ths of its room that each device has less than the one before
  bool early_memory = false; // the slope begins at the last device
  //! By node: when another order starts it, which then counts in place of age and depth. Not owned.
  std::vector<double> const* times = nullptr;
};

//! Tastes for orders of a list scheduler's own.
//! @source tried out: the best of a few hundred on pipelines of 16 devices
[[nodiscard]] inline std::vector<list_taste> own_tastes() {
  return {{.wait = 16, .taker = -1, .filler = 4, .age = 2, .depth = 1, .slope = 1},
          {.wait = 16, .taker = 0, .filler = 0, .age = 1, .depth = 1},
          {.wait = 4, .taker = 0, .filler = 2, .age = 1, .depth = 1, .slope = 1},
          {.wait = 2, .taker = 1, .filler = 1, .age = 1, .depth = 1},
          {.wait = 16, .taker = 2, .filler = 1, .age = 0.5, .depth = 0.1, .early_memory = true},
          {.wait = 16, .taker = -4, .filler = 16, .age = 1, .depth = 0},
          {.wait = 4, .taker = 1, .filler = 0, .age = 1, .depth = 0.1},
          {.wait = 64, .taker = -4, .filler = 16, .age = 0, .depth = 0}};
}

//! Tastes for orders that follow another one as far as the memory allows, and run ahead of it where
//! it idles.
[[nodiscard]] inline std::vector<list_taste> followers(std::vector<double> const& times) {
  std::vector<list_taste> all{{.wait = 1, .taker = 0, .filler = 0},
                              {.wait = 4, .taker = 0, .filler = 4},
                              {.wait = 4, .taker = -4, .filler = 4},
                              {.wait = 16, .taker = 0, .filler = 0},
                              {.wait = 16, .taker = -4, .filler = 16},
                              {.wait = 16, .taker = -16, .filler = 16}};
  for (list_taste& each : all)
    each.times = &times;
  return all;
}

//! Makes an order: the device that can begin first runs the pass that it likes best. It sees what
//! is on its way and may wait for it. Room is kept for the rest of the oldest microbatch on every
//! device, so that some pass can always run.
//! @return empty where a device has less room than one microbatch takes
//! @source own derivation: list scheduling with the banker's rule of Dijkstra for the memory.
class list_order {
public:
  list_order(order_graph const& graph, int microbatches, list_taste const& taste)
      : of_(graph), taste_(taste), microbatches_(microbatches), held_(at(graph.devices)),
        oldest_(held_.size()), to_take_(held_.size() * at(microbatches)), free_from_(held_.size()),
        waiting_(held_.size()), ready_(graph.passes.size()) {
    find_limits();
    find_liking();
    for (std::size_t device = 0; device < held_.size(); ++device) {
      forget_done(device);
      begins_.push_back(begin_of(device));
    }
  }

  //! Makes the order. @pre it is called once
  [[nodiscard]] node_rows make() {
    node_rows rows(held_.size());
    for (int left = of_.size(); left > 0; --left) {
      auto const first = std::min_element(begins_.begin(), begins_.end());
      if (*first == std::numeric_limits<double>::max())
        return {};
      auto const device = static_cast<std::size_t>(first - begins_.begin());
      rows[device].push_back(run_best(device, *first));
    }
    return rows;
  }

private:
  void find_limits() {
    for (int device = 0; device < of_.devices; ++device) {
      std::int64_t const room = of_.room[at(device)];
      int const place = taste_.early_memory ? of_.devices - 1 - device : device;
      double const share = static_cast<double>(room) / of_.devices;
      limits_.push_back(
        std::max<std::int64_t>(1, room - static_cast<std::int64_t>(taste_.slope * share * place)));
    }
  }
  void find_liking() {
    double const mean = of_.mean_time();
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      auto const node = static_cast<graph_node>(i);
      open_.push_back(of_.edges.before.count(node));
      bool const fills = of_.edges.after.count(node) == 0;
      bool const takes = of_.taken[i] > of_.freed[i];
      liking_.push_back(mean * ((takes ? taste_.taker : 0) + (fills ? taste_.filler : 0)) +
                        (taste_.times == nullptr ? mean * taste_.age * of_.passes[i].microbatch -
                                                     taste_.depth * of_.tails[i]
                                                 : (*taste_.times)[i]));
      to_take_[slot(at(of_.holders[i]), of_.passes[i].microbatch)] += of_.taken[i];
      if (open_[i] == 0)
        waiting_[at(of_.holders[i])].push_back(node);
    }
  }
  [[nodiscard]] std::size_t slot(std::size_t device, int microbatch) const noexcept {
    return device * at(microbatches_) + at(microbatch);
  }
  void forget_done(std::size_t device) noexcept {
    while (oldest_[device] < microbatches_ && to_take_[slot(device, oldest_[device])] == 0)
      ++oldest_[device];
  }
  [[nodiscard]] bool fits(graph_node node) const noexcept {
    std::int64_t const taken = of_.taken[at(node)];
    if (taken == 0)
      return true;
    std::size_t const device = at(of_.holders[at(node)]);
    int const microbatch = of_.passes[at(node)].microbatch;
    std::int64_t const held = held_[device] + taken;
    if (microbatch == oldest_[device])
      return held <= of_.room[device];
    return held + to_take_[slot(device, oldest_[device])] <= limits_[device];
  }
  [[nodiscard]] double begin_of(std::size_t device) const noexcept {
    double first = std::numeric_limits<double>::max();
    for (graph_node const node : waiting_[device])
      if (fits(node))
        first = std::min(first, std::max(ready_[at(node)], free_from_[device]));
    return first;
  }

  graph_node run_best(std::size_t device, double now) {
    std::vector<graph_node>& waiting = waiting_[device];
    std::size_t best = waiting.size();
    double least = std::numeric_limits<double>::max();
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      graph_node const node = waiting[i];
      if (!fits(node))
        continue;
      double const start = std::max(ready_[at(node)], now);
      double const value = liking_[at(node)] + taste_.wait * (start - now);
      if (value < least) {
        least = value;
        best = i;
      }
    }
    graph_node const node = waiting[best];
    waiting[best] = waiting.back();
    waiting.pop_back();
    double const end = std::max(ready_[at(node)], now) + of_.times[at(node)];
    free_from_[device] = end;
    held_[device] += of_.taken[at(node)] - of_.freed[at(node)];
    to_take_[slot(device, of_.passes[at(node)].microbatch)] -= of_.taken[at(node)];
    forget_done(device);
    for (auto const [other, lag] : of_.edges.after.of(node)) {
      ready_[at(other)] = std::max(ready_[at(other)], end + lag);
      if (std::size_t const on = at(of_.holders[at(other)]); --open_[at(other)] == 0) {
        waiting_[on].push_back(other);
        begins_[on] = begin_of(on);
      }
    }
    begins_[device] = begin_of(device);
    return node;
  }

  order_graph const& of_;
  list_taste taste_;
  int microbatches_;
  std::vector<std::int64_t> held_;    // by device
  std::vector<std::int64_t> limits_;  // by device
  std::vector<int> oldest_;           // by device: the first microbatch that has to take more
  std::vector<std::int64_t> to_take_; // [devices][M]: room that it has yet to take
  std::vector<double> free_from_;     // by device
  std::vector<double> begins_;        // by device: of the next pass, as far as one fits
  node_rows waiting_;                 // by device: passes whose dependencies have run
  std::vector<std::int32_t> open_;    // by node: dependencies that have not
  std::vector<double> ready_;         // by node: when what it waits for is there
  std::vector<double> liking_;        // by node: least is best
};

} // namespace pipelining::inline v0_3::detail
