// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Longest paths through the passes of one microbatch, and what follows from them for each
//! device. Header for pipelining::detail::gather_facts.

#include <pipe/core/pass.hpp>
#include <pipe/core/pipeline.hpp>
#include <pipe/core/shape.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pipelining::inline v0_2 {
namespace detail {

//! Passes of a device with one head and one tail: nothing of it starts before, all of it is
//! followed by so much.
struct bound_job {
  double head = 0;
  double time = 0;
  double tail = 0;
};

//! What the memory bounds ask of one stage.
struct bound_stage {
  double count = 0; //!< activations
  double least_life = HUGE_VAL;
  double least_forward = HUGE_VAL;
};

//! What the bounds ask of one device.
struct bound_device {
  std::vector<bound_job> within;     //!< times since its own first start
  std::vector<bound_job> from_start; //!< times since the start of everything
  std::vector<bound_stage> stages;
  double path = 0;                       //!< the longest path between two of its own passes
  double first = HUGE_VAL;               //!< its first start
  double work = 0;                       //!< the sum of its passes
  double count = 0;                      //!< activations
  double weight = 0;                     //!< their sum, in microbatches of one stage
  double living = 0;                     //!< weight times least life, over all of them
  double least_weight = HUGE_VAL;        //!< of one activation
  double least_life = HUGE_VAL;          //!< of one activation
  double least_forward = HUGE_VAL;       //!< time of one forward pass
  double most_forward = 0;               //!< time of one forward pass
  double most_backward = 0;              //!< time of both halves of one backward pass
  double forward_per_weight = 0;         //!< the most
  double backward_per_weight = 0;        //!< the most
  double first_backward = HUGE_VAL;      //!< start of its first backward pass since its first start
  double behind_last_forward = HUGE_VAL; //!< least time behind the forward pass it runs last
};

struct bound_facts {
  double path = 0;
  std::vector<bound_device> devices;
};

//! The graph of the passes of one microbatch: forward passes by stage and chunk, then gradients of
//! the input from the last stage and chunk to the first, then gradients of the weights. Every pass
//! waits for passes before it in this numbering.
template <class Cost>
class microbatch_graph {
public:
  microbatch_graph(pipeline const& over, Cost const& cost, int microbatch, bool pairs)
      : over_(over), extents_(over.extents), microbatch_(microbatch), latency_(cost.latency()),
        links_(links_of(cost)),
        width_(static_cast<std::size_t>(stages(over.extents)) *
               static_cast<std::size_t>(over.extents.chunks)) {
    shape const& extents = over.extents;
    times_.resize(3 * width_);
    for (int stage = 0; stage < stages(extents); ++stage)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        for (int row = 0; row < 3; ++row)
          times_[at(row, stage, chunk)] = cost.duration(pass_of(row, stage, chunk));
    if (pairs)
      fit_pairs(cost);
  }

  [[nodiscard]] std::size_t at(int row, int stage, int chunk) const noexcept {
    auto const unit = static_cast<std::size_t>(stage) * static_cast<std::size_t>(extents_.chunks) +
                      static_cast<std::size_t>(chunk);
    return row == 0   ? unit
           : row == 1 ? 2 * width_ - 1 - unit // backwards
                      : 2 * width_ + unit;
  }
  [[nodiscard]] std::size_t size() const noexcept { return 3 * width_; }
  [[nodiscard]] double time(std::size_t node) const noexcept { return times_[node]; }
  [[nodiscard]] int device(int stage) const noexcept {
    return device_of(over_, stage, microbatch_);
  }

  //! The longest paths from the start of `from`, or from no pass in particular, to the starts of
  //! all; negative where there is none.
  void starts_from(std::size_t from, bool anywhere, std::vector<double>& start) const {
    start.assign(size(), anywhere ? 0.0 : -1.0);
    if (!anywhere)
      start[from] = 0;
    each_edge([&](std::size_t before, std::size_t after, double latency) {
      if (start[before] >= 0)
        start[after] = std::max(start[after], start[before] + times_[before] + latency);
    });
  }
  //! The longest paths from the ends of all passes to the end of any pass on `only`, or anywhere
  //! where that is negative.
  void tails_to(int only, std::vector<double>& tail) const {
    tail.assign(size(), -1.0);
    for (int row = 0; row < 3; ++row)
      for (int stage = 0; stage < stages(extents_); ++stage)
        for (int chunk = 0; chunk < extents_.chunks; ++chunk)
          if (only < 0 || device(stage) == only)
            tail[at(row, stage, chunk)] = 0;
    each_edge_backwards([&](std::size_t before, std::size_t after, double latency) {
      if (tail[after] >= 0)
        tail[before] = std::max(tail[before], latency + times_[after] + tail[after]);
    });
  }

  [[nodiscard]] bool same_times(Cost const& cost, int microbatch) const {
    for (int stage = 0; stage < stages(extents_); ++stage)
      for (int chunk = 0; chunk < extents_.chunks; ++chunk)
        for (int row = 0; row < 3; ++row) {
          pass what = pass_of(row, stage, chunk);
          double const mine = cost.duration(what);
          what.microbatch = static_cast<std::uint16_t>(microbatch);
          if (cost.duration(what) != mine)
            return false;
        }
    return true;
  }

private:
  [[nodiscard]] pass pass_of(int row, int stage, int chunk) const noexcept {
    constexpr pass_kind kinds[] = {
      pass_kind::forward, pass_kind::backward_input, pass_kind::backward_weight};
    return row_writer::make(kinds[row], stage, microbatch_, chunk);
  }

  //! Shortens all passes by one factor, such that the two of a pair fit one behind the other into
  //! the time of the pair: what bounds them then bounds orders with pairs.
  void fit_pairs(Cost const& cost) {
    double factor = 1;
    for (int stage = 0; stage < stages(extents_); ++stage)
      for (int chunk = 0; chunk < extents_.chunks; ++chunk)
        for (int other = 0; other < stages(extents_); ++other)
          for (int beside = 0; beside < extents_.chunks; ++beside)
            for (pass_kind const kind : {pass_kind::backward, pass_kind::backward_input}) {
              pass const forward = pass_of(0, stage, chunk);
              pass const backward = row_writer::make(kind, other, microbatch_, beside);
              double const sum = cost.duration(forward) + cost.duration(backward);
              if (sum > 0)
                factor = std::min(factor, pair_duration(cost, forward, backward) / sum);
            }
    for (double& each : times_)
      each *= factor;
  }

  //! Calls `use(before, after, latency)` for every edge, those into a pass before those out of it.
  template <class Use>
  void each_edge(Use const& use) const {
    int const all = stages(extents_);
    int const chunks = extents_.chunks;
    for (int stage = 0; stage < all; ++stage)
      for (int chunk = 0; chunk < chunks; ++chunk) {
        if (stage > 0)
          use(at(0, stage - 1, chunk), at(0, stage, chunk), between(stage - 1, stage));
        if (chunk > 0)
          use(at(0, stage, chunk - 1), at(0, stage, chunk), 0.0);
      }
    for (int stage = all - 1; stage >= 0; --stage)
      for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        use(at(0, stage, chunk), at(1, stage, chunk), 0.0);
        if (stage + 1 < all)
          use(at(1, stage + 1, chunk), at(1, stage, chunk), between(stage + 1, stage));
        if (chunk + 1 < chunks)
          use(at(1, stage, chunk + 1), at(1, stage, chunk), 0.0);
        use(at(1, stage, chunk), at(2, stage, chunk), 0.0);
      }
  }
  template <class Use>
  void each_edge_backwards(Use const& use) const {
    int const all = stages(extents_);
    int const chunks = extents_.chunks;
    for (int stage = 0; stage < all; ++stage)
      for (int chunk = 0; chunk < chunks; ++chunk) {
        use(at(1, stage, chunk), at(2, stage, chunk), 0.0);
        if (stage > 0)
          use(at(1, stage, chunk), at(1, stage - 1, chunk), between(stage, stage - 1));
        if (chunk > 0)
          use(at(1, stage, chunk), at(1, stage, chunk - 1), 0.0);
      }
    for (int stage = all - 1; stage >= 0; --stage)
      for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        use(at(0, stage, chunk), at(1, stage, chunk), 0.0);
        if (stage + 1 < all)
          use(at(0, stage, chunk), at(0, stage + 1, chunk), between(stage, stage + 1));
        if (chunk + 1 < chunks)
          use(at(0, stage, chunk), at(0, stage, chunk + 1), 0.0);
      }
  }
  [[nodiscard]] double between(int a, int b) const noexcept {
    return message_time(
      links_.empty() ? nullptr : links_.data(), extents_.devices, latency_, device(a), device(b));
  }

  pipeline over_;
  shape extents_;
  int microbatch_;
  double latency_;
  std::span<double const> links_;
  std::size_t width_;
  std::vector<double> times_;
};

//! Adds what the passes of one device in `count` microbatches like this one say.
template <class Cost>
void add_device(bound_device& facts,
                microbatch_graph<Cost> const& graph,
                shape const& extents,
                int device,
                double count,
                std::span<double const> shares,
                bool limited) {
  int first = -1;
  int last = -1;
  for (int stage = 0; stage < stages(extents); ++stage)
    if (graph.device(stage) == device) {
      first = first < 0 ? stage : first;
      last = stage;
    }
  if (first < 0)
    return;
  std::vector<double> start;
  std::vector<double> tail;
  std::vector<double> own_start;
  std::vector<double> own_tail;
  graph.starts_from(0, true, start);
  graph.tails_to(-1, tail);
  graph.starts_from(graph.at(0, first, 0), false, own_start);
  graph.tails_to(device, own_tail);
  facts.first = std::min(facts.first, start[graph.at(0, first, 0)]);
  std::vector<double> life_start;
  for (int stage = first; stage <= last; ++stage) {
    if (graph.device(stage) != device)
      continue;
    bound_stage here;
    for (int chunk = 0; chunk < extents.chunks; ++chunk) {
      double const share =
        shares.empty() ? 1.0 / extents.chunks : shares[static_cast<std::size_t>(chunk)];
      for (int row = 0; row < 3; ++row) {
        std::size_t const node = graph.at(row, stage, chunk);
        double const time = count * graph.time(node);
        facts.within.push_back({own_start[node], time, own_tail[node]});
        facts.from_start.push_back({start[node], time, tail[node]});
        facts.path = std::max(facts.path, own_start[node] + graph.time(node) + own_tail[node]);
        facts.work += time;
        if (row == 1)
          facts.first_backward = std::min(facts.first_backward, own_start[node]);
      }
      double const forward = graph.time(graph.at(0, stage, chunk));
      double const backward =
        graph.time(graph.at(1, stage, chunk)) + graph.time(graph.at(2, stage, chunk));
      facts.count += count;
      facts.weight += count * share;
      facts.least_weight = std::min(facts.least_weight, share);
      facts.least_forward = std::min(facts.least_forward, forward);
      facts.most_forward = std::max(facts.most_forward, forward);
      facts.most_backward = std::max(facts.most_backward, backward);
      facts.forward_per_weight = std::max(facts.forward_per_weight, forward / share);
      facts.backward_per_weight = std::max(facts.backward_per_weight, backward / share);
      if (!limited)
        continue;
      graph.starts_from(graph.at(0, stage, chunk), false, life_start);
      std::size_t const freed = graph.at(2, stage, chunk);
      double const life = life_start[freed] + graph.time(freed);
      facts.living += count * share * life;
      facts.least_life = std::min(facts.least_life, life);
      here.count += count;
      here.least_life = std::min(here.least_life, life);
      here.least_forward = std::min(here.least_forward, forward);
      if (stage == last && chunk + 1 == extents.chunks)
        facts.behind_last_forward = std::min(facts.behind_last_forward, life - forward);
    }
    facts.stages.push_back(here);
  }
}

//! All that the bounds ask. Microbatches of equal costs on the same devices are looked at once.
template <cost_model Cost>
[[nodiscard]] bound_facts gather_facts(pipeline const& over,
                                       Cost const& cost,
                                       std::span<double const> shares,
                                       bool pairs,
                                       bool limited) {
  shape const& extents = over.extents;
  bound_facts facts;
  facts.devices.resize(static_cast<std::size_t>(extents.devices));
  std::vector<double> tail;
  for (int begin = 0; begin < extents.microbatches;) {
    microbatch_graph<Cost> const graph(over, cost, begin, pairs);
    int end = begin + 1;
    while (end < extents.microbatches && route_of(extents, end) == route_of(extents, begin) &&
           graph.same_times(cost, end))
      ++end;
    graph.tails_to(-1, tail);
    facts.path = std::max(facts.path, graph.time(0) + tail[0]);
    for (int device = 0; device < extents.devices; ++device)
      add_device(facts.devices[static_cast<std::size_t>(device)],
                 graph,
                 extents,
                 device,
                 end - begin,
                 shares,
                 limited);
    begin = end;
  }
  return facts;
}

} // namespace detail
} // namespace pipelining::inline v0_2
