// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief What longest paths through the passes of one microbatch say of each device. Header for
//! pipelining::detail::gather_facts.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training.hpp>
#include <pipe/planner/search/bound_graph.hpp>
#include <pipe/schedule/schedule.hpp>
#include <pipe/timetable/cost.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3::detail {

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
  double least_taker = HUGE_VAL;
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
  double least_taker = HUGE_VAL;         //!< time of one pass that takes an activation
  double most_forward = 0;               //!< time of one forward pass
  double most_backward = 0;              //!< time of both halves of one backward pass
  double forward_per_weight = 0;         //!< the most
  double backward_per_weight = 0;        //!< the most
  double first_backward = HUGE_VAL;      //!< start of its first backward pass since its first start
  double behind_last_forward = HUGE_VAL; //!< least time behind the forward pass it runs last
  bool has_shards = false;               //!< stages of groups, too
};

struct bound_facts {
  double path = 0;
  std::vector<bound_device> devices;
};

//! How long an activation is on a device at least, and the least time of the pass that takes it.
struct least_stay {
  double life;
  double taker;
};

//! The times of an activation that stays: of all of its life, its forward and its backward pass.
struct stay {
  double life;
  double forward;
  double backward;
};

//! What recomputation and copies to the host leave of a stay, where the flow has them.
template <class Cost>
[[nodiscard]] least_stay least_stay_of(microbatch_graph<Cost> const& graph,
                                       Cost const& cost,
                                       stay const& whole,
                                       pass what,
                                       bound_case const& of) {
  auto const time = [&](role is, engine on) {
    what.kind = kind_with(graph.declared(), is, on);
    return cost.duration(what);
  };
  // A checkpointed forward pass holds it while it runs; that is not counted.
  double const again = of.recomputes ? time(role::again, engine::compute) : 0;
  if (of.recomputes_all)
    return {again + whole.backward, again};
  least_stay least{whole.life, whole.forward};
  if (of.recomputes)
    least = {std::min(least.life, again + whole.backward), std::min(least.taker, again)};
  if (of.copies)
    least = {std::min(least.life,
                      whole.forward + time(role::copy, engine::copy_out) +
                        time(role::copy, engine::copy_in) + whole.backward),
             0};
  return least;
}

//! Adds what the activation of a unit says that is on a device in `count` microbatches like this.
template <class Cost>
void add_activation(bound_device& facts,
                    bound_stage& here,
                    microbatch_graph<Cost> const& graph,
                    Cost const& cost,
                    pass const& made,
                    double count,
                    bound_case const& of) {
  int const stage = made.stage;
  int const chunk = made.chunk;
  std::size_t const begun = graph.at(role::forward, stage, chunk);
  std::size_t const freed = graph.at(role::weights, stage, chunk);
  double const share = graph.weight(of, chunk);
  double const forward = graph.time(begun);
  double const backward = graph.time(graph.at(role::input, stage, chunk)) + graph.time(freed);
  facts.count += count;
  facts.weight += count * share;
  facts.least_weight = std::min(facts.least_weight, share);
  facts.most_forward = std::max(facts.most_forward, forward);
  facts.most_backward = std::max(facts.most_backward, backward);
  facts.forward_per_weight = std::max(facts.forward_per_weight, forward / share);
  facts.backward_per_weight = std::max(facts.backward_per_weight, backward / share);
  if (!of.limited)
    return;
  std::vector<double> start;
  graph.starts_from(begun, start);
  double const whole = start[freed] + graph.time(freed);
  least_stay const there = least_stay_of(graph, cost, {whole, forward, backward}, made, of);
  facts.living += count * share * there.life;
  here.count += count;
  for (double* const least : {&facts.least_life, &here.least_life})
    *least = std::min(*least, there.life);
  for (double* const least : {&facts.least_taker, &here.least_taker})
    *least = std::min(*least, there.taker);
  bool last = true; // no forward pass of the device has to come behind it
  for (std::size_t node = 0; node < graph.nodes().size(); ++node) {
    bound_node const& other = graph.nodes()[node];
    last = last && (node == begun || start[node] < 0 || other.device != graph.device(stage) ||
                    !graph.is(other.what, role::forward));
  }
  if (last)
    facts.behind_last_forward = std::min(facts.behind_last_forward, whole - forward);
}

//! Adds what the passes of one device in `count` microbatches like this one say.
//! @param start @param tail of all passes, from anywhere and to anywhere
template <class Cost>
void add_device(bound_device& facts,
                microbatch_graph<Cost> const& graph,
                Cost const& cost,
                std::vector<double> const& start,
                std::vector<double> const& tail,
                int device,
                double count,
                bound_case const& of) {
  std::vector<double> own_start;
  std::vector<double> own_tail;
  graph.starts_on(device, own_start);
  graph.tails_to(device, own_tail);
  bound_stage here;
  int stage = -1;
  for (std::size_t node = 0; node < graph.nodes().size(); ++node) {
    bound_node const& each = graph.nodes()[node];
    if (each.device != device)
      continue;
    double const time = count * each.time;
    facts.within.push_back({own_start[node], time, own_tail[node]});
    facts.from_start.push_back({start[node], time, tail[node]});
    facts.path = std::max(facts.path, own_start[node] + each.time + own_tail[node]);
    facts.first = std::min(facts.first, start[node]);
    facts.work += time;
    facts.has_shards = facts.has_shards || graph.in_group(each.what.stage);
    if (graph.in_group(each.what.stage))
      continue;
    if (graph.is(each.what, role::input)) {
      facts.first_backward = std::min(facts.first_backward, own_start[node]);
      std::size_t const before = graph.at(role::forward, each.what.stage, each.what.chunk);
      double const again = graph.again(each.what.stage, each.what.chunk);
      if (of.recomputes_all) {
        facts.within.push_back(
          {own_start[before] + graph.time(before), count * again, each.time + own_tail[node]});
        facts.from_start.push_back(
          {start[before] + graph.time(before), count * again, each.time + tail[node]});
        facts.work += count * again;
      }
    }
    if (!graph.is(each.what, role::forward))
      continue;
    if (stage >= 0 && stage != each.what.stage)
      facts.stages.push_back(std::exchange(here, {}));
    stage = each.what.stage;
    add_activation(facts, here, graph, cost, each.what, count, of);
  }
  if (stage >= 0)
    facts.stages.push_back(here);
}

//! All that the bounds ask. Microbatches of equal costs on the same devices are looked at once.
template <cost_model Cost>
[[nodiscard]] bound_facts
gather_facts(pipeline_view const& over, Cost const& cost, bound_case const& of) {
  shape const& extents = over.extents;
  bound_facts facts;
  facts.devices.resize(static_cast<std::size_t>(extents.devices));
  std::vector<double> start;
  std::vector<double> tail;
  for (int begin = 0; begin < extents.microbatches;) {
    microbatch_graph<Cost> const graph(over, cost, begin, of);
    int end = begin + 1;
    while (end < extents.microbatches && route_of(extents, end) == route_of(extents, begin) &&
           graph.same_times(cost, end, of))
      ++end;
    graph.starts_on(-1, start);
    graph.tails_to(-1, tail);
    for (std::size_t node = 0; node < tail.size(); ++node)
      facts.path = std::max(facts.path, graph.time(node) + tail[node]);
    for (int device = 0; device < extents.devices; ++device)
      add_device(facts.devices[static_cast<std::size_t>(device)],
                 graph,
                 cost,
                 start,
                 tail,
                 device,
                 end - begin,
                 of);
    begin = end;
  }
  return facts;
}

} // namespace pipelining::inline v0_3::detail
