// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Orders made pass by pass in the order of time, under a memory limit.

#include <pipe/planner/search/order_graph.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! What a device prefers among the passes that it could run. All but `wait` in mean times of a
//! pass.
struct list_taste {
  double wait = 4;           // what idling costs, over the time it takes
  double taker = 0;          // of a pass that takes memory, against one that does not
  double filler = 8;         // of a pass that nobody waits for
  double age = 1;            // of each microbatch that is older
  double depth = 0;          // of the path that is left behind a pass
  double slope = 0;          // slots that each device has less than the one before
  bool early_memory = false; // the slope begins at the last device
  //! By node: when another order starts it, which then counts in place of age and depth. Not owned.
  std::vector<double> const* times = nullptr;
};

//! Tastes for orders of a list scheduler's own.
//! @source tried out: the best of a few hundred on pipelines of 16 devices
[[nodiscard]] inline std::vector<list_taste> own_tastes(int devices, int memory_limit) {
  double const step = static_cast<double>(memory_limit) / devices;
  return {{.wait = 16, .taker = -1, .filler = 4, .age = 2, .depth = 1, .slope = step},
          {.wait = 16, .taker = 0, .filler = 0, .age = 1, .depth = 1},
          {.wait = 4, .taker = 0, .filler = 2, .age = 1, .depth = 1, .slope = step},
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
      : of_(graph), taste_(taste), microbatches_(microbatches) {}

  [[nodiscard]] node_rows make() {
    prepare();
    node_rows rows(held_.size());
    for (int left = of_.size(); left > 0; --left) {
      std::size_t device = 0;
      double when = std::numeric_limits<double>::max();
      for (std::size_t each = 0; each < held_.size(); ++each)
        if (double const begin = begin_of(each); begin < when) {
          when = begin;
          device = each;
        }
      if (when == std::numeric_limits<double>::max())
        return {};
      rows[device].push_back(run_best(device, when));
    }
    return rows;
  }

private:
  static constexpr std::size_t at(std::int32_t index) noexcept {
    return static_cast<std::size_t>(index);
  }

  void prepare() {
    auto const devices = at(of_.devices);
    auto const count = at(of_.size());
    held_.assign(devices, 0);
    free_from_.assign(devices, 0);
    oldest_.assign(devices, 0);
    waiting_.assign(devices, {});
    to_take_.assign(devices * at(microbatches_), 0);
    open_.resize(count);
    ready_.assign(count, 0);
    liking_.resize(count);
    double sum = 0;
    for (double const time : of_.times)
      sum += time;
    double const mean = sum / static_cast<double>(count);
    wait_cost_ = taste_.wait;
    limits_.resize(devices);
    for (std::size_t device = 0; device < devices; ++device) {
      double const place = static_cast<double>(taste_.early_memory ? devices - 1 - device : device);
      limits_[device] = std::max(1, of_.memory_limit - static_cast<int>(taste_.slope * place));
    }
    for (std::size_t i = 0; i < count; ++i) {
      open_[i] = of_.first_before[i + 1] - of_.first_before[i];
      bool const fills = of_.first_after[i + 1] == of_.first_after[i];
      bool const takes = of_.taken[i] > of_.freed[i];
      liking_[i] = mean * ((takes ? taste_.taker : 0) + (fills ? taste_.filler : 0)) +
                   (taste_.times == nullptr
                      ? mean * taste_.age * of_.passes[i].microbatch - taste_.depth * of_.tails[i]
                      : (*taste_.times)[i]);
      to_take_[slot(at(of_.holders[i]), of_.passes[i].microbatch)] += of_.taken[i];
      if (open_[i] == 0)
        waiting_[at(of_.holders[i])].push_back(static_cast<graph_node>(i));
    }
    for (std::size_t device = 0; device < devices; ++device)
      forget_done(device);
  }
  [[nodiscard]] std::size_t slot(std::size_t device, int microbatch) const noexcept {
    return device * at(microbatches_) + at(microbatch);
  }
  void forget_done(std::size_t device) noexcept {
    while (oldest_[device] < microbatches_ && to_take_[slot(device, oldest_[device])] == 0)
      ++oldest_[device];
  }
  [[nodiscard]] bool fits(graph_node node) const noexcept {
    int const taken = of_.taken[at(node)];
    if (taken == 0)
      return true;
    std::size_t const device = at(of_.holders[at(node)]);
    int const microbatch = of_.passes[at(node)].microbatch;
    int const held = held_[device] + taken;
    if (microbatch == oldest_[device])
      return held <= of_.memory_limit;
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
      double const value = liking_[at(node)] + wait_cost_ * (start - now);
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
    for (std::int32_t k = of_.first_after[at(node)]; k < of_.first_after[at(node) + 1]; ++k) {
      graph_edge const edge = of_.after[at(k)];
      ready_[at(edge.other)] = std::max(ready_[at(edge.other)], end + edge.lag);
      if (--open_[at(edge.other)] == 0)
        waiting_[at(of_.holders[at(edge.other)])].push_back(edge.other);
    }
    return node;
  }

  order_graph const& of_;
  list_taste taste_;
  int microbatches_;
  double wait_cost_ = 0;
  std::vector<int> held_;          // by device
  std::vector<int> limits_;        // by device
  std::vector<int> oldest_;        // by device: the first microbatch that has to take more
  std::vector<int> to_take_;       // [devices][M]: slots that it has yet to take
  std::vector<double> free_from_;  // by device
  node_rows waiting_;              // by device: passes whose dependencies have run
  std::vector<std::int32_t> open_; // by node: dependencies that have not
  std::vector<double> ready_;      // by node: when what it waits for is there
  std::vector<double> liking_;     // by node: least is best
};

} // namespace pipelining::inline v0_3::detail
