// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Everything that is frozen: each schedule that has a name, in each adapter.

#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace frozen {

namespace pp = pipelining;

//! What a schedule is frozen in: an adapter that has a name, or one of those below.
struct wrapping {
  std::string name; //!< empty: in none
  pp::registry::adapter named = pp::registry::adapter::none;
  enum class own {
    none,
    one_offloaded_stage, //!< offload of the first stage of every device alone
    scatter_once,        //!< sharded weights, gradients scattered once
    all_but_last,        //!< recompute of all but the last stage
    graph,               //!< two encoders, then a chain with a skip from the second to the end
    recompute_of_graph,
    graph_of_recompute,
    offload_of_graph,
    offload_of_recompute
  } also = own::none;
};

//! All of them.
[[nodiscard]] inline std::vector<wrapping> wrappings() {
  using own = wrapping::own;
  std::vector<wrapping> all{{""}};
  for (pp::registry::named_adapter const& each : pp::registry::named_adapter::all())
    all.push_back({std::string(each.name), each.which});
  all.push_back({"offload-one-stage", pp::registry::adapter::offload, own::one_offloaded_stage});
  all.push_back({"scatter-once", pp::registry::adapter::sharded_weights, own::scatter_once});
  all.push_back({"recompute-all-but-last", pp::registry::adapter::none, own::all_but_last});
  all.push_back({"stage-graph", pp::registry::adapter::none, own::graph});
  all.push_back({"recompute of stage-graph", pp::registry::adapter::none, own::recompute_of_graph});
  all.push_back({"stage-graph of recompute", pp::registry::adapter::none, own::graph_of_recompute});
  all.push_back({"offload of stage-graph", pp::registry::adapter::none, own::offload_of_graph});
  all.push_back({"offload of recompute", pp::registry::adapter::none, own::offload_of_recompute});
  return all;
}

//! A schedule of any name as one type.
struct schedule_of_name {
  pp::registry::schedule_choice const* choice = nullptr;
  pp::registry::made_orders* made = nullptr;

  [[nodiscard]] pp::shape arrange(int, int) const { return pp::registry::arrange(*choice); }
  template <pp::cost_model Cost>
  void generate(pp::shape const&, Cost const& cost, pp::row_writer* rows) const {
    pp::device_orders const& orders = made->get(*choice, cost);
    for (int device = 0; device < choice->devices; ++device)
      for (int i = orders.offsets[static_cast<std::size_t>(device)];
           i < orders.offsets[static_cast<std::size_t>(device) + 1];
           ++i)
        rows[device].push(orders.passes[static_cast<std::size_t>(i)]);
  }
};

//! The edges of the frozen graph.
[[nodiscard]] inline std::vector<pp::stage_edge> edges_of(int stages) {
  std::vector<pp::stage_edge> edges;
  for (int stage = 0; stage + 1 < stages; ++stage)
    edges.push_back({stage, stage == 0 && stages > 2 ? 2 : stage + 1, pp::of_unit::same});
  if (stages > 3)
    edges.push_back({1, stages - 1, pp::of_unit::same});
  return edges;
}

//! The timetable of a choice in a wrapping.
//! @throws std::invalid_argument where they do not go together
[[nodiscard]] inline pp::dynamic_timetable make(pp::registry::schedule_choice choice,
                                                wrapping const& in,
                                                pp::registry::any_cost const& cost,
                                                pp::registry::made_orders& made) {
  using own = wrapping::own;
  choice.offloaded_stages = in.also == own::one_offloaded_stage ? 1 : 0;
  choice.scatter_once = in.also == own::scatter_once;
  if (in.also <= own::scatter_once)
    return pp::registry::make_named_timetable(choice, cost, &made);
  pp::registry::named_schedule const& schedule = pp::registry::find_schedule(choice.name);
  if (schedule.traits.places_stages || !choice.chunk_counts.empty() ||
      has(schedule.takes, pp::registry::option::keep))
    throw std::invalid_argument("frozen: a schedule with a placement or chunks of its own");
  schedule_of_name const named{&choice, &made};
  std::vector<pp::stage_edge> const edges = edges_of(pp::registry::arrange(choice).stages());
  pp::pipeline_size const size{choice.devices, choice.microbatches};
  using graph = pp::with_stage_graph<schedule_of_name>;
  using recomputed = pp::with_recompute<schedule_of_name>;
  switch (in.also) {
  case own::all_but_last:
    return pp::make_timetable(
      pp::with_recompute<schedule_of_name, pp::recompute::all_but_last>{named, {}}, size, cost);
  case own::graph: return pp::make_timetable(graph{named, edges}, size, cost);
  case own::recompute_of_graph:
    return pp::make_timetable(pp::with_recompute<graph>{{named, edges}, {}}, size, cost);
  case own::graph_of_recompute:
    return pp::make_timetable(pp::with_stage_graph<recomputed>{{named, {}}, edges}, size, cost);
  case own::offload_of_graph:
    return pp::make_timetable(pp::with_offload<graph>{{named, edges}, {}}, size, cost);
  default: return pp::make_timetable(pp::with_offload<recomputed>{{named, {}}, {}}, size, cost);
  }
}

} // namespace frozen
