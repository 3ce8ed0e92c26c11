// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The schedules that the executors for CUDA are tested with.

#include <pipe/plan/item.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <utility>
#include <vector>

inline constexpr pipelining::uniform_sizes message_words{
  .message = 24, .activation = 8, .weight_input = 8, .sequence = 8, .sequence_gradient = 8};

struct named_plan {
  std::string name;
  pipelining::plan work;
  support::sequential_result expected;
};

//! @brief Every kind of timetable: one flow and two per edge, the ring, the turn-around, split
//! backward, chunks, composite passes, activations that wait on the host, weights in shards; each
//! under all policies.
std::vector<named_plan> test_plans();

//! True for plans whose second stage only goes forward, so that no pass reads what it has kept.
inline bool keeps_nothing(named_plan const& plan) {
  return plan.name.find("frozen") != std::string::npos;
}

//! @brief These, pipelines whose vocabulary is in shards, with one barrier and with two, and one
//! whose devices attend for each other.
std::vector<named_plan> plans_with_shards();

//! @brief The main families on more devices, with messages of this many words, an odd number.
std::vector<named_plan> large_plans(int devices, int microbatches, int words);

//! @brief Adds the plan of a timetable under one policy.
template <class Policy>
void add_plan(std::vector<named_plan>& plans,
              std::string const& name,
              pipelining::dynamic_timetable const& table) {
  namespace pp = pipelining;
  pp::plan work = pp::lower<Policy>(table, message_words);
  REQUIRE(pp::prove(work));
  auto const extents = work.over.extents;
  plans.push_back({name + " " + std::to_string(extents.devices) + "x" +
                     std::to_string(extents.microbatches) + ", communicators per " + Policy::name,
                   std::move(work),
                   support::run_sequentially(extents.stages(),
                                             extents.microbatches,
                                             extents.chunks,
                                             table.over.declared == pp::WeiPipe::declared)});
}

//! @brief Adds the plans of one timetable under all policies that join no exchanges.
inline void add_plans(std::vector<named_plan>& plans,
                      std::string const& name,
                      pipelining::dynamic_timetable const& table) {
  add_plan<pipelining::communicators::one>(plans, name, table);
  add_plan<pipelining::communicators::per_pair>(plans, name, table);
  add_plan<pipelining::communicators::per_edge>(plans, name, table);
}

//! @brief The same for a schedule of the compiler.
template <class Schedule>
void add_plans(std::vector<named_plan>& plans,
               std::string const& name,
               int devices,
               int microbatches) {
  add_plans(plans, name, pipelining::make_timetable<Schedule>({devices, microbatches}));
}

//! @brief The same with activations that wait on the host.
template <class Schedule>
void add_offloaded(std::vector<named_plan>& plans,
                   std::string const& name,
                   int devices,
                   int microbatches) {
  constexpr pipelining::uniform_cost cost{.copy_out = 0.1, .copy_in = 0.1};
  auto const table =
    pipelining::make_timetable(pipelining::with_offload<Schedule>{}, {devices, microbatches}, cost);
  add_plans(plans, name + " with copies", table);
  auto const& items = plans.back().work.items;
  REQUIRE(std::any_of(items.begin(), items.end(), pipelining::detail::runs_beside));
}

//! @brief The same with weights in shards, gathered and scattered for every visit of a stage.
template <class Schedule>
void add_sharded(std::vector<named_plan>& plans,
                 std::string const& name,
                 int devices,
                 int microbatches) {
  constexpr pipelining::uniform_cost cost{.gather = 0.5, .scatter = 0.5};
  auto const table = pipelining::make_timetable(
    pipelining::with_sharded_weights<Schedule>{}, {devices, microbatches}, cost);
  add_plans(plans, name + " with sharded weights", table);
}
