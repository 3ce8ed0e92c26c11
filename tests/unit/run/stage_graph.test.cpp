// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Stages that are no chain, on threads: gradients equal to one unit after the other, under every
// schedule and policy, with guards around all slots.
#include <pipe/plan/lower.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <random>
#include <tests/support/sizes.hpp>
#include <tests/support/stage_graphs.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using support::words;

template <class Policy, class Schedule>
void check_gradients(Schedule const& schedule, pp::pipeline_size size, std::mt19937& random) {
  pp::shape const extents = schedule.arrange(size.devices, size.microbatches);
  auto const edges = support::draw_graph(pp::stages(extents), random);
  auto const table = pp::make_timetable(
    pp::with_stage_graph<Schedule>{schedule, edges}, size, pp::uniform_cost{.communication = 0.25});
  std::vector<std::uint64_t> weights;
  std::vector<support::joining_stage> model(static_cast<std::size_t>(pp::stages(extents)));
  for (auto& stage : model)
    weights.push_back(stage.weight = random() | 1u);
  pp::thread_runner runner(pp::lower<Policy>(table, words), model, {.guarded = true});
  int const steps = 2;
  for (int step = 0; step < steps; ++step)
    runner.step();
  auto const expected = support::gradients_of(edges, weights, extents.microbatches, extents.chunks);
  auto const units = static_cast<std::uint64_t>(steps * pp::units(extents));
  for (std::size_t s = 0; s < model.size(); ++s) {
    CHECK(model[s].gradient == steps * expected[s]);
    CHECK(model[s].inputs == units * support::before(edges, static_cast<int>(s)).size());
    CHECK(model[s].outputs == model[s].inputs);
  }
  CHECK(pp::verify(runner.trace()));
}

template <class Schedule>
void check_graphs(Schedule const& schedule, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (int const devices : {1, 2, 4})
    for (int const microbatches : {2, 8}) {
      check_gradients<pp::communicator_per_pair>(schedule, {devices, microbatches}, random);
      check_gradients<pp::communicator_per_edge>(schedule, {devices, microbatches}, random);
      check_gradients<pp::one_communicator>(schedule, {devices, microbatches}, random);
    }
}

} // namespace

TEST_CASE("a model that is a graph has the gradients of one unit after the other") {
  SUBCASE("gpipe") {
    check_graphs(pp::GPipe{}, 1);
  }
  SUBCASE("1f1b") {
    check_graphs(pp::OneFOneB{}, 2);
  }
  SUBCASE("seq1f1b") {
    check_graphs(pp::Seq1F1B<2>{}, 3);
  }
  SUBCASE("zb-h1") {
    check_graphs(pp::ZeroBubbleH1{}, 4);
  }
  SUBCASE("interleaved") {
    check_graphs(pp::Interleaved<2>{}, 5);
  }
  SUBCASE("v-half") {
    check_graphs(pp::detail::SweptVHalf{}, 6);
  }
}
