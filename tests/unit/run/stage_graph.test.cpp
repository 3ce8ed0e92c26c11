// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Stages that are no chain, on threads: gradients equal to one unit after the other, under every
// schedule and policy, with guards around all slots.
#include <pipe/plan/lower.hpp>
#include <pipe/run/guards.hpp>
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
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <random>
#include <tests/support/asked_flows.hpp>
#include <tests/support/sizes.hpp>
#include <tests/support/stage_graphs.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

using support::words;

template <class Policy, class Schedule>
void check_gradients(Schedule const& schedule,
                     pp::pipeline_size size,
                     std::mt19937& random,
                     bool across_chunks = false) {
  pp::shape const extents = schedule.arrange(size.devices, size.microbatches);
  auto const edges = across_chunks ? support::draw_units(extents.stages(), random)
                                   : support::draw_graph(extents.stages(), random);
  auto const table = pp::make_timetable(
    pp::with_stage_graph<Schedule>{schedule, edges}, size, pp::uniform_cost{.communication = 0.25});
  std::vector<std::uint64_t> weights;
  std::vector<support::joining_stage> model(static_cast<std::size_t>(extents.stages()));
  for (auto& stage : model)
    weights.push_back(stage.weight = random() | 1u);
  pp::thread_runner runner(pp::lower<Policy>(table, words), model, {.guarded = true});
  int const steps = 2;
  for (int step = 0; step < steps; ++step)
    runner.step();
  auto const expected = support::gradients_of(edges, weights, extents.microbatches, extents.chunks);
  for (std::size_t s = 0; s < model.size(); ++s) {
    std::size_t inputs = 0; // of a microbatch
    for (int chunk = 0; chunk < extents.chunks; ++chunk)
      inputs +=
        support::units_beside(edges, {static_cast<int>(s), chunk}, -1, extents.chunks).size();
    CHECK(model[s].gradient == steps * expected[s]);
    CHECK(model[s].inputs == static_cast<std::size_t>(steps * extents.microbatches) * inputs);
    CHECK(model[s].outputs == model[s].inputs);
  }
  CHECK(pp::verify(runner.trace()));
}

template <class Schedule>
void check_graphs(Schedule const& schedule, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (int const devices : {1, 2, 4})
    for (int const microbatches : {2, 8}) {
      check_gradients<pp::communicators::per_pair>(schedule, {devices, microbatches}, random);
      check_gradients<pp::communicators::per_edge>(schedule, {devices, microbatches}, random);
      check_gradients<pp::communicators::one>(schedule, {devices, microbatches}, random);
    }
}

// All forward passes, then all backward passes, which suits edges to any chunks.
struct all_forward_first {
  int chunks = 1;

  [[nodiscard]] pp::shape arrange(int devices, int microbatches) const {
    return {.devices = devices, .microbatches = microbatches, .chunks = chunks};
  }
  static void order(pp::shape const& extents, int device, pp::row_writer& out) {
    for (int m = 0; m < extents.microbatches; ++m)
      for (int chunk = 0; chunk < extents.chunks; ++chunk)
        out.forward(device, m, chunk);
    for (int m = 0; m < extents.microbatches; ++m)
      for (int chunk = extents.chunks - 1; chunk >= 0; --chunk)
        out.backward(device, m, chunk);
  }
};

// Prompts, then tokens: a chunk is a step, and the last stage hands its token to the first one.
struct decode_times {
  double prefill = 1;

  [[nodiscard]] double duration(pp::pass const& what) const {
    return what.chunk == 0 ? prefill : 1;
  }
  [[nodiscard]] static double latency() { return 0; }
};
// Token t + 1 of a group is what the stages make of token t.
struct decoding_stage {
  std::vector<std::uint64_t> made{};

  static std::uint64_t next(std::uint64_t read, int stage) {
    return read * 6364136223846793005U + static_cast<std::uint64_t>(stage);
  }
  void perform(pp::pass_kind, pp::context const& at, pp::input in, pp::output out) {
    std::uint64_t const read =
      at.first_stage() ? static_cast<std::uint64_t>(at.microbatch) : in.as<std::uint64_t>()[0];
    made.push_back(next(read, at.stage));
    if (!at.last_stage())
      for (std::uint64_t& word : out.as<std::uint64_t>())
        word = made.back();
  }
};

} // namespace

TEST_CASE("stages that read other chunks have the gradients of one unit after the other") {
  std::mt19937 random(7);
  for (int const devices : {1, 2, 3, 5})
    for (int const chunks : {1, 2, 4})
      for (int round = 0; round < 3; ++round) {
        all_forward_first const schedule{chunks};
        check_gradients<pp::communicators::per_pair>(schedule, {devices, 2}, random, true);
        check_gradients<pp::communicators::per_edge>(schedule, {devices, 3}, random, true);
        check_gradients<pp::communicators::one>(schedule, {devices, 2}, random, true);
      }
}

TEST_CASE("the last stage hands its token to the first one for the next step") {
  struct {
    int stages, groups, tokens;
    double prefill, makespan; // by the closed form of decode rings
  } const rings[] = {{4, 4, 8, 1, 39}, {4, 8, 8, 5, 119}, {3, 2, 5, 1, 19}, {1, 1, 3, 2, 5}};
  for (auto const& ring : rings) {
    auto const table = pp::make_timetable(
      support::asked::decode{ring.tokens}, {ring.stages, ring.groups}, decode_times{ring.prefill});
    CHECK(pp::verify(table));
    CHECK(pp::makespan(table) == ring.makespan);
    std::vector<decoding_stage> model(static_cast<std::size_t>(ring.stages));
    pp::thread_runner runner(pp::lower(table, words), model, {.guarded = true});
    runner.step();
    for (int group = 0; group < ring.groups; ++group) {
      auto token = static_cast<std::uint64_t>(group);
      for (int step = 0; step <= ring.tokens; ++step)
        for (int stage = 0; stage < ring.stages; ++stage) {
          token = decoding_stage::next(token, stage);
          CHECK(model[static_cast<std::size_t>(stage)]
                  .made[static_cast<std::size_t>(step * ring.groups + group)] == token);
        }
    }
  }
}

TEST_CASE_TEMPLATE("a model that is a graph has the gradients of one unit after the other",
                   Schedule,
                   pp::GPipe,
                   pp::OneFOneB,
                   pp::Seq1F1B<2>,
                   pp::ZeroBubbleH1,
                   pp::Interleaved<2>,
                   pp::detail::SweptVHalf) {
  check_graphs(Schedule{}, 1);
}
