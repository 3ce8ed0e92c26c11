// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Stages without weights to train, drawn by lot, under every schedule that has a name: plans are
// proven and run, and gradients are those of one unit after the other.
#include <pipe/flow/edge_table.hpp>
#include <pipe/flow/stage_graph.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tests/support/frozen_stages.hpp>
#include <tests/support/sizes.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr pp::uniform_cost times{1, 1.5, 0.5, 0.25};

// A timetable with frozen stages, as with_frozen_stages makes it of a schedule's type.
pp::dynamic_timetable
freeze(pp::dynamic_timetable const& trained, std::vector<int> const& frozen, bool& paired) {
  pp::device_orders orders{trained.over, trained.passes, trained.offsets};
  pp::shape const& extents = trained.over.extents;
  orders.over.edges = pp::detail::edge_table(
    support::chain(extents.stages()), extents.stages(), {}, frozen, extents.chunks);
  pp::detail::leave_out_unneeded(orders);
  for (pp::pass const& what : orders.passes)
    paired = paired || what.overlapped;
  return pp::simulate(orders, times);
}

void check_frozen(pp::dynamic_timetable const& trained, std::mt19937& random) {
  pp::shape const& extents = trained.over.extents;
  int const stages = extents.stages();
  auto const frozen = support::draw_frozen(stages, random);
  auto const edges = support::chain(stages);
  bool paired = false;
  auto const table = freeze(trained, frozen, paired);
  REQUIRE(pp::verify(table));
  auto model = support::freezing_model(edges, frozen, stages, random);
  std::vector<std::uint64_t> weights;
  for (auto const& stage : model)
    weights.push_back(stage.weight);
  pp::thread_runner runner(pp::lower(table, support::words), model, {.guarded = true});
  runner.step();
  auto const expected = support::gradients_of(edges, weights, extents.microbatches, extents.chunks);
  for (std::size_t s = 0; s < model.size(); ++s)
    CHECK(std::string(
            support::fault_of(model[s],
                              expected[s],
                              extents.units(),
                              support::only_forward(edges, frozen, static_cast<int>(s)))) == "");
}

} // namespace

TEST_CASE("stages frozen by lot have the right gradients under every schedule that has a name") {
  std::mt19937 random(1);
  std::set<std::string> ran;
  std::set<std::string> others;
  for (pp::registry::named_schedule const& schedule : pp::registry::named_schedules())
    for (int const devices : {2, 4})
      for (int const microbatches : {4, 8}) {
        pp::registry::schedule_choice one;
        one.name = schedule.name;
        one.devices = devices;
        one.microbatches = microbatches;
        if (has(schedule.takes, pp::registry::option::stages_per_device))
          one.stages_per_device = 2;
        if (has(schedule.needs, pp::registry::option::memory_limit))
          one.memory_limit = 2 * devices;
        pp::dynamic_timetable table;
        try {
          table = pp::registry::make_named_timetable(one, times);
        } catch (std::invalid_argument const&) {
          continue; // a precondition of the schedule
        }
        CAPTURE(one.name);
        CAPTURE(devices);
        CAPTURE(microbatches);
        pp::registry::schedule_traits const& traits = schedule.traits;
        bool const trains_a_chain =
          !traits.weights_travel && !traits.stages_go_one_way && table.over.edges.empty();
        (trains_a_chain ? ran : others).insert(one.name);
        for (int draw = 0; draw < 3 && trains_a_chain; ++draw)
          check_frozen(table, random);
      }
  std::cout << "frozen by lot: " << ran.size() << " schedules, " << others.size() << " others\n";
  CHECK(ran.size() >= 30);
  CHECK(others.size() <= 4); // weights that travel, stages that go one way, a graph
}
