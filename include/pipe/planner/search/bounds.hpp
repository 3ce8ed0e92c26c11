// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Times that no order of passes can beat. Header for pipelining::time_bounds::options,
//! pipelining::time_bound, pipelining::time_bounds and least_times.
//!
//! A bound holds for every order of a pipeline on a placement, with whole or split backward passes.
//! Three things bound a pipeline: the path of one microbatch there and back, the work of the
//! busiest device between the passes that have to come before and after it, and the memory that
//! activations hold while they wait.

#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/shape.hpp>
#include <pipe/flow/training_flows.hpp>
#include <pipe/planner/search/bound_graph.hpp>
#include <pipe/schedule/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! Passes of a device with one head and one tail: none starts before the head, and the tail follows
//! all of them.
struct bound_job {
  double head = 0;
  double time = 0;
  double tail = 0;
};

//! The facts of the activations of some stages of a device for the memory bounds.
struct bound_stage {
  double count = 0; //!< activations
  double least_life = HUGE_VAL;
  double least_taker = HUGE_VAL; //!< time of one pass that takes an activation
};

//! The facts of one device for the bounds.
struct bound_device {
  std::vector<bound_job> within;                  //!< times since its own first start
  std::vector<bound_job> from_start;              //!< times since the start of everything
  std::vector<bound_stage> stages{bound_stage{}}; //!< all of them, then each by itself
  double path = 0;                       //!< the longest path between two of its own passes
  double first = HUGE_VAL;               //!< its first start
  double work = 0;                       //!< the sum of its passes
  double weight = 0;                     //!< of all activations, in microbatches of one stage
  double living = 0;                     //!< weight times least life, over all of them
  double least_weight = HUGE_VAL;        //!< of one activation
  double most_forward = 0;               //!< time of one forward pass
  double most_backward = 0;              //!< time of both halves of one backward pass
  double forward_per_weight = 0;         //!< the most
  double backward_per_weight = 0;        //!< the most
  double first_backward = HUGE_VAL;      //!< start of its first backward pass since its first start
  double behind_last_forward = HUGE_VAL; //!< least time after the forward pass it runs last
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

//! The least stay of an activation that orders of the case may recompute or copy to the host.
template <class Cost>
[[nodiscard]] least_stay
least_stay_of(microbatch_graph<Cost> const& graph, stay const& whole, pass what) {
  bound_case const& of = graph.of;
  auto const time = [&](role is, engine on) {
    what.kind = graph.over.declared->kind_with(is, on);
    return graph.cost.duration(what);
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

//! Adds facts of the activation of a unit on a device in `count` microbatches like this.
template <class Cost>
void add_activation(bound_device& facts,
                    microbatch_graph<Cost> const& graph,
                    pass const& made,
                    double count) {
  int const stage = made.stage;
  int const chunk = made.chunk;
  std::size_t const begun = graph.at(role::forward, stage, chunk);
  std::size_t const freed = graph.at(role::weights, stage, chunk);
  double const share = graph.weight(chunk);
  double const forward = graph.time(begun);
  double const backward = graph.time(graph.at(role::input, stage, chunk)) + graph.time(freed);
  facts.stages.front().count += count;
  facts.weight += count * share;
  facts.least_weight = std::min(facts.least_weight, share);
  facts.most_forward = std::max(facts.most_forward, forward);
  facts.most_backward = std::max(facts.most_backward, backward);
  facts.forward_per_weight = std::max(facts.forward_per_weight, forward / share);
  facts.backward_per_weight = std::max(facts.backward_per_weight, backward / share);
  if (!graph.of.limited)
    return;
  std::vector<double> const start = graph.starts_from(begun);
  double const whole = start[freed] + graph.time(freed);
  least_stay const there = least_stay_of(graph, {whole, forward, backward}, made);
  facts.living += count * share * there.life;
  facts.stages.back().count += count;
  for (bound_stage* const of_some : {&facts.stages.front(), &facts.stages.back()}) {
    of_some->least_life = std::min(of_some->least_life, there.life);
    of_some->least_taker = std::min(of_some->least_taker, there.taker);
  }
  bool last = true; // no forward pass of the device has to come after it
  for (std::size_t node = 0; node < graph.nodes().size(); ++node) {
    bound_node const& other = graph.nodes()[node];
    last = last && (node == begun || start[node] < 0 || other.device != graph.device(stage) ||
                    !graph.is(other.what, role::forward));
  }
  if (last)
    facts.behind_last_forward = std::min(facts.behind_last_forward, whole - forward);
}

//! Adds facts of the passes of one device in `count` microbatches like this one.
//! @param start @param tail of all passes, from anywhere and to anywhere
template <class Cost>
void add_device(bound_device& facts,
                microbatch_graph<Cost> const& graph,
                std::vector<double> const& start,
                std::vector<double> const& tail,
                int device,
                double count) {
  std::vector<double> const own_start = graph.starts_on(device);
  std::vector<double> const own_tail = graph.tails_to(device);
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
    if (graph.over.in_group(each.what.stage)) {
      facts.has_shards = true;
      continue;
    }
    if (graph.is(each.what, role::input)) {
      facts.first_backward = std::min(facts.first_backward, own_start[node]);
      std::size_t const before = graph.at(role::forward, each.what.stage, each.what.chunk);
      double const again = graph.again(each.what.stage, each.what.chunk);
      if (graph.of.recomputes_all) {
        facts.within.push_back(
          {own_start[before] + graph.time(before), count * again, each.time + own_tail[node]});
        facts.from_start.push_back(
          {start[before] + graph.time(before), count * again, each.time + tail[node]});
        facts.work += count * again;
      }
    }
    if (!graph.is(each.what, role::forward))
      continue;
    if (std::exchange(stage, each.what.stage) != each.what.stage)
      facts.stages.emplace_back();
    add_activation(facts, graph, each.what, count);
  }
}

//! All that the bounds ask. Microbatches of equal costs on the same devices are looked at once.
template <cost_model Cost>
[[nodiscard]] bound_facts
gather_facts(pipeline_view const& over, Cost const& cost, bound_case const& of) {
  shape const& extents = over.extents;
  bound_facts facts;
  facts.devices.resize(static_cast<std::size_t>(extents.devices));
  for (int begin = 0; begin < extents.microbatches;) {
    microbatch_graph<Cost> const graph(over, cost, begin, of);
    int end = begin + 1;
    while (end < extents.microbatches && extents.route_of(end) == extents.route_of(begin) &&
           graph.same_times(end))
      ++end;
    std::vector<double> const start = graph.starts_on(-1);
    std::vector<double> const tail = graph.tails_to(-1);
    for (std::size_t node = 0; node < tail.size(); ++node)
      facts.path = std::max(facts.path, graph.time(node) + tail[node]);
    for (int device = 0; device < extents.devices; ++device)
      add_device(
        facts.devices[static_cast<std::size_t>(device)], graph, start, tail, device, end - begin);
    begin = end;
  }
  return facts;
}

} // namespace detail

//! @brief The choice that orders have for each activation between forward and backward passes, as
//! far as their flow allows it.
enum class memory_relief {
  any,           //!< keep, recompute or copy each to the host and back
  recompute,     //!< keep or recompute each
  recompute_all, //!< recompute every one, as under `with_recompute`
  copy           //!< keep or copy each, as under `with_offload`
};

//! @brief A time, by what bounds it.
struct time_bound {
  double path = 0;   //!< the longest chain of passes and messages of one microbatch
  double work = 0;   //!< the work of a device, after its heads and before its tails
  double memory = 0; //!< under the limit; 0 where there is none

  //! The largest of them.
  [[nodiscard]] constexpr double least() const noexcept {
    return std::max(path, std::max(work, memory));
  }
  //! @brief The word for what bounds it: "path", "work" or "memory".
  [[nodiscard]] constexpr char const* reason() const noexcept {
    return memory > work && memory > path ? "memory" : work >= path ? "work" : "path";
  }
};

//! @brief The bounds on both times of a timetable.
struct time_bounds {
  //! @brief The facts that a bound may presume of its orders.
  struct options {
    //! Activations that a device may hold, in whole microbatches of one stage; or in the unit of
    //! `chunk_shares`.
    double memory_limit = std::numeric_limits<double>::infinity();
    //! The share of each chunk in the tokens of its sequence, [C], with sum 1; empty for equal
    //! shares. Or the memory of the activation of each unit, [units], in any measure, such as
    //! tokens. Under a limit unequal numbers of chunks need these. Not owned.
    std::span<double const> chunk_shares = {};
    //! True when forward and backward passes may overlap in pairs, at the time that the cost has.
    bool pairs = false;
    memory_relief relief = memory_relief::any; //!< what the orders do to free memory in between
  };

  time_bound span;     //!< on the span
  time_bound makespan; //!< on the makespan
};

namespace detail {

//! The longest of the preemptive schedules of one device by largest tail: no order of these jobs
//! ends sooner, tails included.
//! @source Jackson's rule; Carlier, "The one-machine sequencing problem", EJOR 1982.
[[nodiscard]] inline double preemptive_end(std::vector<bound_job> jobs) {
  std::sort(jobs.begin(), jobs.end(), [](bound_job const& a, bound_job const& b) {
    return a.head < b.head;
  });
  auto const shorter_tail = [](bound_job const& a, bound_job const& b) { return a.tail < b.tail; };
  std::vector<bound_job> ready;
  double now = 0;
  double end = 0;
  std::size_t next = 0;
  while (next < jobs.size() || !ready.empty()) {
    if (ready.empty())
      now = std::max(now, jobs[next].head);
    for (; next < jobs.size() && jobs[next].head <= now; ++next) {
      ready.push_back(jobs[next]);
      std::push_heap(ready.begin(), ready.end(), shorter_tail);
    }
    std::pop_heap(ready.begin(), ready.end(), shorter_tail);
    bound_job job = ready.back();
    ready.pop_back();
    double const until = next < jobs.size() ? jobs[next].head : HUGE_VAL;
    if (now + job.time > until) {
      job.time -= until - now;
      now = until;
      ready.push_back(job);
      std::push_heap(ready.begin(), ready.end(), shorter_tail);
    } else {
      now += job.time;
      end = std::max(end, now + job.tail);
    }
  }
  return end;
}

//! The least span of a device whose activations are `count`, live `life` at least, and may be
//! `room` at a time: each start waits for the one before it, which takes `taker`, and for the end
//! of the one `room` before.
[[nodiscard]] inline double
end_of_room(double count, double room, double life, double taker) noexcept {
  if (count < 1 || room >= count || room * taker >= life)
    return 0;
  double const rounds = std::floor((count - 1) / room);
  return rounds * life + (count - 1 - rounds * room) * taker + life;
}

//! The least span of one device under a memory limit.
//! @param once an activation comes and goes once. @param stays it stays until then.
[[nodiscard]] inline double
least_span_in_memory(bound_device const& device, double limit, bool once, bool stays) {
  if (!(device.weight > limit))
    return 0;
  double bound = device.living / limit; // Little's law: what is held, over all time
  double const most = std::floor(limit / device.least_weight + 1e-9);
  for (bound_stage const& stage : device.stages)
    if (once)
      bound = std::max(bound, end_of_room(stage.count, most, stage.least_life, stage.least_taker));
  if (!stays)
    return bound;
  // Before its first backward pass a device can run what fits of the forward passes, after its
  // last forward pass what is left of the activations that it holds. More than the limit never
  // fits, so the first backward pass comes before the last forward pass, and both waits add up.
  double const forwards = std::min(most * device.most_forward, limit * device.forward_per_weight);
  double const backwards =
    std::min(most * device.most_backward, limit * device.backward_per_weight);
  double const up = std::max(0.0, device.first_backward - forwards);
  double const down = std::max(0.0, device.behind_last_forward - backwards);
  return std::max(bound, device.work + up + down);
}

//! True where no stage goes one way, as frozen ones do: bounds are known.
[[nodiscard]] constexpr bool all_go_back(pipeline_view const& over) {
  for (int stage = 0; stage < over.extents.stages(); ++stage)
    if (goes_forward_only(over, stage))
      return false;
  return !detail::stages_go_one_way(*over.declared);
}

} // namespace detail

//! @brief The span and the makespan that no order of this pipeline can beat.
//!
//! Where activations are recomputed or copied to the host and back, memory bounds count the least
//! time that they are on the device. The memory in which a checkpointed forward pass works is not
//! counted.
//! Stages of groups, such as shards of a vocabulary, have activations of other sizes, which the
//! limit does not count.
//! @param over any placement, stages in a chain or a graph that goes forward and back. @param cost
//! any cost model. @throws std::invalid_argument for other stages, extents that cannot be, a limit
//! at which nothing runs, or shares that are not one per chunk or unit.
//! @complexity O(n) for n passes to look at all costs; on top of it, for each run of microbatches
//! of equal costs, O(P E), and O(S C E) under a memory limit, with E edges between its passes: O(S
//! C) in a chain.
//! @source own derivation: longest paths, Jackson's preemptive schedule per device, Little's law,
//! and windows before the first backward and after the last forward pass.
[[nodiscard]] time_bounds least_times(pipeline_view const& over,
                                      cost_model auto const& cost,
                                      time_bounds::options const& options = {}) {
  shape const& extents = over.extents;
  detail::check_extents(extents);
  if (!detail::all_go_back(over))
    throw std::invalid_argument(
      "least_times: every stage must go forward and back; here some go one way");
  if (extents.where == placement::custom && over.holders == nullptr)
    throw std::invalid_argument(
      "least_times: a custom placement has its devices in a table; give the pipeline of it");
  bool const limited = options.memory_limit < std::numeric_limits<double>::infinity();
  bool const unequal = over.first_units != nullptr;
  std::size_t const given = options.chunk_shares.size();
  if (given != 0 && given != static_cast<std::size_t>(over.units()) &&
      (unequal || given != static_cast<std::size_t>(extents.chunks)))
    throw std::invalid_argument(unequal ? "least_times: give what each unit takes"
                                        : "least_times: give one share per chunk");
  if (unequal && limited && given == 0)
    throw std::invalid_argument("least_times: microbatches have unequal numbers of chunks; under a "
                                "memory limit, give what each unit takes");
  bool const all = options.relief == memory_relief::recompute_all;
  bool const recomputes =
    options.relief != memory_relief::copy && over.declared->kind_with(role::again) != flow::no_kind;
  bool const copies =
    (options.relief == memory_relief::any || options.relief == memory_relief::copy) &&
    over.declared->kind_with(role::copy, engine::copy_out) != flow::no_kind;
  if (all && !recomputes)
    throw std::invalid_argument("least_times: these passes are of a flow without recomputation");
  if (!(options.memory_limit > 0))
    throw std::invalid_argument("least_times: the memory limit must be above 0");
  detail::bound_facts const facts = detail::gather_facts(
    over, cost, {options.chunk_shares, options.pairs, limited, recomputes, all, copies});
  bool const stays = !options.pairs && !recomputes && !copies;
  time_bounds result;
  result.makespan.path = facts.path;
  for (detail::bound_device const& device : facts.devices) {
    if (device.stages.front().count == 0)
      continue;
    result.span.path = std::max(result.span.path, device.path);
    result.span.work = std::max(result.span.work, detail::preemptive_end(device.within));
    result.makespan.work =
      std::max(result.makespan.work, detail::preemptive_end(device.from_start));
    if (!limited)
      continue;
    if (options.memory_limit < device.least_weight * (1 - 1e-9))
      throw std::invalid_argument(
        "least_times: the memory limit is below one activation, so nothing runs");
    // Shards of a vocabulary may run where a device waits in between.
    double const span = detail::least_span_in_memory(
      device, options.memory_limit, !copies, stays && !device.has_shards);
    result.span.memory = std::max(result.span.memory, span);
    if (span > 0)
      result.makespan.memory = std::max(result.makespan.memory, device.first + span);
  }
  return result;
}

} // namespace pipelining::inline v0_3
