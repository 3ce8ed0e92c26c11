// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Stages without weights to train, in chains and graphs, under schedules of all families.
#include <pipe/flow/dependencies.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/run/fits.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <tests/support/frozen_stages.hpp>
#include <tests/support/sizes.hpp>
#include <tuple>
#include <vector>

namespace pp = pipelining;

namespace {

// Messages of one step: an activation to every other device that reads it, a gradient to each
// stage elsewhere that takes one.
int messages_by_hand(pp::timetable_view const& table,
                     support::edge_list const& edges,
                     std::vector<int> const& frozen) {
  int count = 0;
  for (int m = 0; m < table.over.extents.microbatches; ++m)
    for (int to = 0; to < table.over.extents.stages(); ++to) {
      int const home = pp::device_of(table, to, m);
      std::vector<bool> reads(static_cast<std::size_t>(table.over.extents.devices), false);
      for (int const after : support::after(edges, to))
        reads[static_cast<std::size_t>(pp::device_of(table, after, m))] = true;
      for (std::size_t device = 0; device < reads.size(); ++device)
        count += reads[device] && static_cast<int>(device) != home ? 1 : 0;
      for (int const from : support::before(edges, to))
        count += !support::only_forward(edges, frozen, from) &&
                     !support::only_forward(edges, frozen, to) &&
                     pp::device_of(table, from, m) != home
                   ? 1
                   : 0;
    }
  return count * table.over.extents.chunks;
}

void check_plan(pp::plan const& work,
                pp::timetable_view const& table,
                support::edge_list const& edges,
                std::vector<int> const& frozen) {
  int sends = 0;
  for (pp::item const& step : work.items)
    sends += step.what == pp::operation::send ? 1 : 0;
  CHECK(sends == messages_by_hand(table, edges, frozen));
  for (int i = 0; i < table.size(); ++i)
    if (support::only_forward(edges, frozen, table.passes[i].stage))
      CHECK((*table.over.declared)[table.passes[i].kind].calls == pp::stage_call::forward);
  for (int device = 0; device < table.over.extents.devices; ++device)
    CHECK(work.layout(device, pp::slot_class::activation).count ==
          pp::peak_activation_chunks(table, device));
}

template <class Policy, class Schedule>
void check_frozen(Schedule const& schedule,
                  pp::pipeline_size size,
                  bool graph,
                  std::mt19937& random) {
  pp::shape const extents = schedule.arrange(size.devices, size.microbatches);
  int const stages = extents.stages();
  auto const edges = graph ? support::draw_graph(stages, random) : support::chain(stages);
  auto const frozen = support::draw_frozen(stages, random);
  pp::uniform_cost const cost{.communication = 0.25 * static_cast<double>(random() % 9)};
  pp::with_frozen_stages<Schedule> const declared{schedule, frozen};
  auto const table =
    graph ? pp::make_timetable(
              pp::with_stage_graph<pp::with_frozen_stages<Schedule>>{declared, edges}, size, cost)
          : pp::make_timetable(declared, size, cost);
  CAPTURE(frozen.size());
  auto const work = pp::lower<Policy>(table, support::words);
  check_plan(work, table, edges, frozen);
  auto model = support::freezing_model(edges, frozen, stages, random);
  pp::thread_runner runner(work, model, {.guarded = true});
  int const steps = 2;
  for (int step = 0; step < steps; ++step)
    runner.step();
  std::vector<std::uint64_t> weights;
  for (auto const& stage : model)
    weights.push_back(stage.weight);
  auto const expected = support::gradients_of(edges, weights, extents.microbatches, extents.chunks);
  for (std::size_t s = 0; s < model.size(); ++s) {
    CAPTURE(s);
    CHECK(std::string(
            support::fault_of(model[s],
                              steps * expected[s],
                              steps * extents.units(),
                              support::only_forward(edges, frozen, static_cast<int>(s)))) == "");
  }
  bool const pairs = std::any_of(
    table.passes.begin(), table.passes.end(), [](pp::pass const& what) { return what.overlapped; });
  CHECK((pairs || pp::verify(runner.trace()))); // the halves of pairs run in turn
}

template <class Schedule>
void check_schedule(Schedule const& schedule, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (int const devices : {1, 2, 4})
    for (int const microbatches : {2, 8})
      for (bool const graph : {false, true}) {
        CAPTURE(devices);
        CAPTURE(microbatches);
        CAPTURE(graph);
        check_frozen<pp::communicators::per_pair>(schedule, {devices, microbatches}, graph, random);
        check_frozen<pp::communicators::per_edge>(schedule, {devices, microbatches}, graph, random);
        check_frozen<pp::communicators::one>(schedule, {devices, microbatches}, graph, random);
      }
}

// A schedule of one's own that leaves out what its first two stages do not need.
struct no_backward {
  [[nodiscard]] constexpr pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches};
  }
  constexpr void order(pp::shape const& extents, int device, pp::row_writer& out) const {
    int const lead = device < 2 ? extents.microbatches : extents.devices - device;
    int forward = 0;
    for (; forward < lead; ++forward)
      out.forward(device, forward);
    for (int back = 0; back < extents.microbatches && device >= 2; ++back) {
      out.backward(device, back);
      if (forward < extents.microbatches)
        out.forward(device, forward++);
    }
  }
};

} // namespace

TEST_CASE("trained stages have the gradients of one unit after the other, frozen ones no work") {
  SUBCASE("GPipe") {
    check_schedule(pp::GPipe{}, 1);
  }
  SUBCASE("1F1B") {
    check_schedule(pp::OneFOneB{}, 2);
  }
  SUBCASE("Seq1F1B") {
    check_schedule(pp::Seq1F1B<2>{}, 3);
  }
  SUBCASE("ZB-H1") {
    check_schedule(pp::ZeroBubbleH1{}, 4);
  }
  SUBCASE("two stages a device") {
    check_schedule(pp::Interleaved<2>{}, 5);
  }
  SUBCASE("V-Half") {
    check_schedule(pp::detail::SweptVHalf{}, 6);
  }
  SUBCASE("pairs") {
    check_schedule(pp::DualPipeV<>{}, 7);
  }
  SUBCASE("recomputation") {
    check_schedule(pp::with_recompute<pp::OneFOneB>{}, 8);
  }
  SUBCASE("copies to the host") {
    check_schedule(pp::with_offload<pp::OneFOneB>{}, 9);
  }
}

TEST_CASE("a frozen prefix costs its forward passes, and memory as of the trained stages") {
  // The makespans come from a simulation of the trained half apart.
  double const expected[] = {53, 71, 89};
  for (int latency = 0; latency < 3; ++latency) {
    pp::uniform_cost const cost{.communication = static_cast<double>(latency)};
    // [snippet frozen]
    auto const table =
      pp::make_timetable(pp::with_frozen_stages<pp::OneFOneB>{{}, {0, 1}}, {4, 16}, cost);
    // [snippet frozen]
    CHECK(pp::makespan(table) == expected[latency]);
    CHECK(pp::makespan(table) < pp::makespan(pp::make_timetable<pp::OneFOneB>({4, 16}, cost)));
    pp::plan const lowered = pp::lower(table, support::words);
    pp::plan const& work = lowered;
    for (int device = 0; device < 4; ++device) {
      CAPTURE(device);
      CHECK(pp::peak_activation_chunks(table, device) == (device == 2 ? 2 : 1));
      CHECK(work.layout(device, pp::slot_class::received_gradient).count <= (device == 2 ? 2 : 0));
      CHECK(work.layout(device, pp::slot_class::input_gradient).count <= (device == 3 ? 2 : 0));
      CHECK(work.layout(device, pp::slot_class::received_input).count <= 3);
      CHECK(work.layout(device, pp::slot_class::output).count <= 3);
    }
  }
}

TEST_CASE("a schedule without the passes that nobody needs is accepted where stages are frozen") {
  CHECK_THROWS_AS((void)pp::make_timetable<no_backward>({4, 8}), std::invalid_argument);
  auto const table = pp::make_timetable(pp::with_frozen_stages<no_backward>{{}, {0, 1}}, {4, 8});
  auto const same = pp::make_timetable(pp::with_frozen_stages<pp::OneFOneB>{{}, {0, 1}}, {4, 8});
  CHECK(table.passes == same.passes);
  CHECK(pp::makespan(table) == pp::makespan(same));
  // Of a trained stage nothing may be missing.
  CHECK_THROWS_AS((void)pp::make_timetable(pp::with_frozen_stages<no_backward>{{}, {0}}, {4, 8}),
                  std::invalid_argument);
}

namespace {

struct forward_alone {
  static constexpr bool frozen = true;
  int calls = 0;
  void forward(pp::context const& where, pp::input, pp::output out) {
    ++calls;
    out.as<std::uint64_t>()[0] = static_cast<std::uint64_t>(where.microbatch);
  }
};
struct only_trained {
  std::uint64_t gradient = 0;
  void forward(pp::context const& where, pp::input in, pp::output) {
    where.activation.as<std::uint64_t>()[0] = in.as<std::uint64_t>()[0];
  }
  void backward(pp::context const& where, pp::input, pp::output out) {
    CHECK(out.slot == -1); // nobody takes it
    gradient += where.activation.as<std::uint64_t>()[0];
  }
};
static_assert(pp::stage_functor<forward_alone>);

} // namespace

TEST_CASE("a frozen stage with nothing trained before it needs forward alone") {
  // [snippet found]
  std::tuple<forward_alone, only_trained> model;
  auto const table = pp::make_timetable_for(model, pp::OneFOneB{}, {2, 5});
  // [snippet found]
  CHECK(table.passes ==
        pp::make_timetable(pp::with_frozen_stages<pp::OneFOneB>{{}, {0}}, {2, 5}).passes);
  pp::plan const work = pp::lower(table, support::single_words);
  CHECK(std::count_if(work.items.begin(), work.items.end(), [](pp::item const& step) {
          return step.what == pp::operation::send;
        }) == 5); // no gradient goes back
  pp::run(work, model, {.guarded = true});
  CHECK(std::get<0>(model).calls == 5);
  CHECK(std::get<1>(model).gradient == 0 + 1 + 2 + 3 + 4);
  // Where the plan has passes that it cannot run, it is refused.
  CHECK_THROWS_AS(pp::run(pp::lower(pp::make_timetable<pp::OneFOneB>({2, 5})), model),
                  std::invalid_argument);
}

TEST_CASE("frozen stages have rows of the totals, and copies of them nothing to add") {
  auto const counts = [](pp::plan const& work, pp::detail::subject about) {
    return std::count_if(work.items.begin(), work.items.end(), [&](pp::item const& step) {
      return step.what == pp::operation::run && step.about == about;
    });
  };
  pp::uniform_sizes const sizes{.message = 8, .totals_bytes = 8, .copied_gradient = 8};
  auto const two = pp::lower(
    pp::make_timetable(pp::with_frozen_stages<pp::DualPipe<>>{{}, {0, 1}}, {4, 8}), sizes);
  CHECK(counts(two, pp::detail::subject::contribution) == 4);
  CHECK(counts(two, pp::detail::subject::update) == 8);
  CHECK(counts(two, pp::detail::subject::add_copies) == 4); // of the two that are trained
}

TEST_CASE("frozen stages that cannot be are refused") {
  auto const make = [](std::vector<int> const& frozen) {
    (void)pp::make_timetable(pp::with_frozen_stages<pp::OneFOneB>{{}, frozen}, {2, 4});
  };
  CHECK_THROWS_WITH_AS(
    make({2}), "frozen stages: there is no stage 2; stages are 0 to 1", std::invalid_argument);
  CHECK_THROWS_WITH_AS(make({1, 0}),
                       "frozen stages: all stages are frozen, so nothing is trained; leave one "
                       "out, or evaluate",
                       std::invalid_argument);
  auto const table = pp::make_timetable(pp::with_frozen_stages<pp::OneFOneB>{{}, {0}}, {2, 4});
  CHECK_THROWS_WITH_AS((void)pp::lower(table, pp::uniform_sizes{.tied_bytes = 8}),
                       "plan: the first stage is frozen, so no gradient of a tied weight comes of "
                       "it; leave tied_bytes out, and add the last stage's own",
                       std::invalid_argument);
  CHECK_NOTHROW((void)pp::lower(table, pp::uniform_sizes{.totals_bytes = 8}));
}
