// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The passes of one microbatch as a graph, for bounds. Header for
//! pipelining::detail::microbatch_graph.

#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/planner/search/node_graph.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/cost_table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

//! The facts that bounds presume of their orders.
struct bound_case {
  std::span<double const> weights = {}; //!< of activations: by chunk, by unit, or equal
  bool pairs = false;
  bool limited = false; //!< there is a memory limit
  bool recomputes = false;
  bool recomputes_all = false;
  bool copies = false;
};

//! Of the kinds that make a row on a stage of a group, the one that is made for it: it reads a
//! stage before or after this one, else others of the group, else nobody.
[[nodiscard]] inline pass_kind kind_in_group(pipeline_view const& over, int row, int stage) {
  pass_kind best{};
  int rank = 0;
  for (int kind = 0; kind < over.declared->kind_count; ++kind) {
    pass const what = row_writer::make(static_cast<pass_kind>(kind), stage, 0);
    if (!holds(over.declared->makers[row], kind) || !over.contains(what))
      continue;
    kind_links const& links = over.links_of(what);
    int const found = links.input == kind_links::none                    ? 1
                      : over.graph().edges(stage, links.input_step) == 0 ? 0
                      : links.input_step == group_step                   ? 2
                                                                         : 3;
    best = found > rank ? what.kind : best;
    rank = std::max(rank, found);
  }
  return best;
}

//! The kinds of passes that a unit needs on a stage: split passes of training or, in a group, the
//! kinds that make the wanted rows there.
[[nodiscard]] inline std::vector<pass_kind> kinds_of_stage(pipeline_view const& over, int stage) {
  auto const split = split_kinds(*over.declared);
  if (!over.in_group(stage))
    return {split.begin(), split.end()};
  std::vector<pass_kind> result;
  for (int row = 0; row < over.declared->rows; ++row)
    if (pass_kind const kind = kind_in_group(over, row, stage);
        over.declared->wanted[row] && over.contains(row_writer::make(kind, stage, 0)) &&
        std::find(result.begin(), result.end(), kind) == result.end())
      result.push_back(kind);
  return result;
}

//! A pass of one microbatch.
struct bound_node {
  pass what;
  int device = 0;
  double time = 0;
};

//! The graph of the passes of one microbatch, from the links of its flow and of its stages.
template <class Cost>
class microbatch_graph {
public:
  microbatch_graph(pipeline_view const& pipeline,
                   Cost const& times,
                   int microbatch,
                   bound_case const& presumed)
      : over(pipeline), cost(times), of(presumed), microbatch_(microbatch),
        chunks_(over.chunks_of(microbatch)) {
    for (role const is : {role::forward, role::backward, role::input, role::weights})
      kinds_[static_cast<std::size_t>(is)] = over.declared->kind_with(is);
    auto const units = static_cast<std::size_t>(over.extents.stages() * chunks_);
    made_by_.assign(static_cast<std::size_t>(over.declared->rows) * units, none);
    again_.resize(units);
    for (int stage = 0; stage < over.extents.stages(); ++stage)
      for (pass_kind const kind : kinds_of_stage(over, stage))
        for (int chunk = 0; chunk < chunks_; ++chunk)
          add(row_writer::make(kind, stage, microbatch, chunk));
    if (of.recomputes_all)
      for (bound_node const& node : nodes_)
        if (is(node.what, role::input))
          again_[unit(node.what.stage, node.what.chunk)] = cost.duration(row_writer::make(
            over.declared->kind_with(role::again), node.what.stage, microbatch, node.what.chunk));
    if (of.pairs)
      fit_pairs();
    edges_ = graph_of(edges_into());
  }

  pipeline_view over;
  Cost const& cost;
  bound_case const& of;

  //! The time of the recomputation that comes before a gradient of the input; 0 without.
  [[nodiscard]] double again(int stage, int chunk) const noexcept {
    return again_[unit(stage, chunk)];
  }
  //! The number of a pass of training of a stage that is in no group.
  [[nodiscard]] std::size_t at(role is, int stage, int chunk) const noexcept {
    return made_by_[place(row_of(kinds_[static_cast<std::size_t>(is)], stage), stage, chunk)];
  }
  //! True when a pass has a role in a stage that is in no group.
  [[nodiscard]] bool is(pass const& what, role wanted) const noexcept {
    return what.kind == kinds_[static_cast<std::size_t>(wanted)];
  }
  [[nodiscard]] std::vector<bound_node> const& nodes() const noexcept { return nodes_; }
  [[nodiscard]] double time(std::size_t node) const noexcept { return nodes_[node].time; }
  [[nodiscard]] int device(int stage) const noexcept { return device_of(over, stage, microbatch_); }

  //! The longest paths to the starts of all from the start of one pass; negative: there is none.
  [[nodiscard]] std::vector<double> starts_from(std::size_t from) const {
    std::vector<double> start(nodes_.size(), -1.0);
    start[from] = 0;
    return heads_of(edges_, time_of(), std::move(start));
  }
  //! The same from the start of any pass on a device, or anywhere where that is negative.
  [[nodiscard]] std::vector<double> starts_on(int device) const {
    return heads_of(edges_, time_of(), begins_on(device));
  }
  //! The longest paths from the ends of all to the end of any pass on a device, or anywhere where
  //! that is negative.
  [[nodiscard]] std::vector<double> tails_to(int device) const {
    return tails_of(edges_, time_of(), begins_on(device));
  }

  //! True when another microbatch has the times and the weights of this one.
  [[nodiscard]] bool same_times(int microbatch) const {
    if (over.chunks_of(microbatch) != chunks_)
      return false;
    auto const same = [&](pass what) {
      double const mine = cost.duration(what);
      what.microbatch = static_cast<std::uint16_t>(microbatch);
      return cost.duration(what) == mine;
    };
    for (int chunk = 0; chunk < chunks_; ++chunk)
      if (weight(chunk) != weight(microbatch, chunk))
        return false;
    if constexpr (requires { cost.microbatches(); })
      if (cost.microbatches() == 1) // all are alike
        return true;
    for (bound_node const& node : nodes_) {
      pass const& what = node.what;
      if (!same(what) ||
          (of.recomputes_all && is(what, role::forward) &&
           !same(row_writer::make(
             over.declared->kind_with(role::again), what.stage, microbatch_, what.chunk))))
        return false;
    }
    return true;
  }

  //! The memory of the activation of a chunk.
  [[nodiscard]] double weight(int chunk) const { return weight(microbatch_, chunk); }

private:
  static constexpr std::size_t none = ~std::size_t{0};
  [[nodiscard]] double weight(int microbatch, int chunk) const {
    if (of.weights.empty())
      return 1.0 / chunks_;
    bool const by_chunk = over.first_units == nullptr &&
                          of.weights.size() == static_cast<std::size_t>(over.extents.chunks);
    int const at = by_chunk ? chunk : over.first_unit(microbatch) + chunk;
    return of.weights[static_cast<std::size_t>(at)];
  }
  [[nodiscard]] std::size_t unit(int stage, int chunk) const noexcept {
    return static_cast<std::size_t>(stage * chunks_ + chunk);
  }
  [[nodiscard]] std::size_t place(int row, int stage, int chunk) const noexcept {
    return unit(row * over.extents.stages() + stage, chunk);
  }
  [[nodiscard]] int row_of(pass_kind kind, int stage) const noexcept {
    return over.links_of(row_writer::make(kind, stage, microbatch_)).made[0];
  }
  void add(pass const& what) {
    for (int const row : over.links_of(what).made)
      if (row != kind_links::none)
        made_by_[place(row, what.stage, what.chunk)] = nodes_.size();
    nodes_.push_back({what, device(what.stage), cost.duration(what)});
  }

  //! Shortens all passes by one factor, such that the two of a pair fit one after the other into
  //! the time of the pair. A bound on these passes then is a bound on orders with pairs.
  void fit_pairs() {
    double factor = 1;
    for (bound_node const& one : nodes_)
      for (bound_node const& other : nodes_)
        if (is(one.what, role::forward) && is(other.what, role::input))
          for (role const back : {role::backward, role::input}) {
            pass backward = other.what;
            backward.kind = over.declared->kind_with(back);
            double const sum = cost.duration(one.what) + cost.duration(backward);
            if (sum > 0)
              factor =
                std::min(factor, pair_duration(cost, kinds_of_training, one.what, backward) / sum);
          }
    for (bound_node& node : nodes_)
      node.time *= factor;
    for (double& each : again_)
      each *= factor;
  }

  //! The edges into each pass, from the passes that it waits for.
  [[nodiscard]] std::vector<std::vector<graph_edge>> edges_into() const {
    std::vector<std::vector<graph_edge>> into(nodes_.size());
    int const per_row = over.extents.stages() * over.units();
    group_times const groups = groups_of(cost);
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      pass const& what = nodes_[node].what;
      dependency_list const needed(over, what);
      for (int i = 0; i < needed.count; ++i) {
        int const index = needed.index(i);
        int const chunk = index % over.units() - over.first_unit(microbatch_);
        std::size_t const before = made_by_[place(index / per_row, needed.stage(i), chunk)];
        if (before == none) // made by what not every order has, such as a recomputation
          continue;
        int const from = needed.stage(i);
        double const message =
          message_time(cost, over.extents.devices, nodes_[before].device, nodes_[node].device);
        into[node].push_back(
          {static_cast<graph_node>(before),
           from == what.stage ? 0 : transfer_time(over, groups, message, from, what.stage)});
      }
      if (is(what, role::input))
        into[node].push_back({static_cast<graph_node>(at(role::forward, what.stage, what.chunk)),
                              again(what.stage, what.chunk)});
    }
    return into;
  }
  [[nodiscard]] std::vector<double> begins_on(int device) const {
    std::vector<double> times(nodes_.size(), -1);
    for (std::size_t node = 0; node < nodes_.size(); ++node)
      if (device < 0 || nodes_[node].device == device)
        times[node] = 0;
    return times;
  }
  [[nodiscard]] auto time_of() const {
    return [this](graph_node node) { return time(detail::at(node)); };
  }

  int microbatch_;
  int chunks_;
  std::vector<bound_node> nodes_;
  std::vector<std::size_t> made_by_; // [rows][S][C] the pass of this row
  std::array<pass_kind, 4> kinds_{}; // by role, of a stage in no group
  std::vector<double> again_;        // [S][C] of recomputations
  node_graph edges_;
};

} // namespace pipelining::inline v0_3::detail
