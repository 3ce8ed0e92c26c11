// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Weights in shards, on threads: the same numbers as with whole weights, from slots that hold what
// was gathered only while a visit lasts.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/chronos_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/hanayo.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

//! Messages of three numbers, weights and their gradients of one.
struct sharded_sizes {
  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const&) const {
    return of == pp::slot_class::output || of == pp::slot_class::input_gradient ? 24 : 8;
  }
};
constexpr pp::uniform_cost gather_costs{
  .communication = 0.25, .copy_out = 0.3, .copy_in = 0.3, .gather = 0.6, .scatter = 0.4};

// Its weight is the sum of two shards, and passes read it where it was gathered; its gradient is a
// shard too, and grows by what was collected.
struct sharded_stage {
  static constexpr bool takes_chunks = true;
  support::arithmetic_stage whole;
  std::uint64_t shards[2]{};
  std::uint64_t const* weight = nullptr;
  std::uint64_t* collected = nullptr;
  std::uint64_t kept = 0; // its weight, where it never leaves
  std::uint64_t gradient = 0;
  int gathers = 0;
  int scatters = 0;
  int ready = 0;

  void gather_weights(pp::context const&, pp::output out) {
    ++gathers;
    out.as<std::uint64_t>()[0] = shards[0] + shards[1];
  }
  void use_weights(pp::context const&, pp::input in) { weight = in.as<std::uint64_t>().data(); }
  void collect_gradients(pp::context const&, pp::output out) {
    collected = out.as<std::uint64_t>().data();
    *collected = 0;
  }
  void scatter_gradients(pp::context const&, pp::input in) {
    ++scatters;
    CHECK(ready == 0);
    CHECK(weight != &kept);
    gradient += in.as<std::uint64_t>()[0];
  }
  void gradients_ready(pp::context const&) { ++ready; }
  void forward(pp::context const& where, pp::input in, pp::output out) {
    whole.weight = *weight;
    whole.forward(where, in, out);
  }
  void recompute(pp::context const& where, pp::input in) {
    CHECK(*weight == shards[0] + shards[1]);
    where.activation.as<std::uint64_t>()[0] =
      in.slot < 0 ? support::arithmetic_stage::unit(where) : in.as<std::uint64_t>()[0];
  }
  void backward(pp::context const& where, pp::input in, pp::output out) {
    whole.weight = *weight;
    whole.backward(where, in, out);
    collect();
  }
  void backward_input(pp::context const& where, pp::input in, pp::output out) {
    whole.weight = *weight;
    whole.backward_input(where, in, out);
  }
  void backward_weight(pp::context const& where) {
    whole.backward_weight(where);
    collect();
  }

private:
  void collect() {
    *collected += whole.gradient;
    whole.gradient = 0;
  }
};

int count_kinds(pp::timetable_view table, pp::stage_call call) {
  int count = 0;
  for (int i = 0; i < table.size(); ++i)
    count += (*table.over.declared)[table.passes[i].kind].calls == call ? 1 : 0;
  return count;
}

bool is_gathered(pp::timetable_view table, int stage) {
  return std::any_of(table.passes, table.passes + table.size(), [stage](pp::pass const& what) {
    return what.kind == pp::pass_kind::gather_weights && what.stage == stage;
  });
}

// Of a timetable, so that it compiles once for all schedules.
template <class Policy>
void check_sharded(pp::timetable_view table) {
  CAPTURE(table.over.extents.devices);
  CAPTURE(table.over.extents.microbatches);
  std::vector<sharded_stage> model(static_cast<std::size_t>(table.over.extents.stages()));
  for (std::size_t s = 0; s < model.size(); ++s) {
    model[s].shards[0] = 2 * s;
    model[s].shards[1] = s + 3 - 2 * s;
    model[s].whole.chunks = table.over.extents.chunks;
    model[s].kept = s + 3;
    if (!is_gathered(table, static_cast<int>(s))) {
      model[s].weight = &model[s].kept;
      model[s].collected = &model[s].gradient;
    }
  }
  auto const work = pp::lower<Policy>(table, sharded_sizes{});
  auto const slots = [&work](int device, pp::slot_class of) {
    return work.layout(device, of).count;
  };
  for (int device = 0; device < table.over.extents.devices; ++device) {
    using enum pp::slot_class;
    CHECK(slots(device, weights) == pp::detail::peak_chunks(table, device, weights));
    // A scatter that ends just when gradients begin to be collected still has its slot.
    CHECK(slots(device, full_gradients) >= pp::detail::peak_chunks(table, device, full_gradients));
    CHECK(slots(device, full_gradients) <=
          pp::detail::peak_chunks(table, device, full_gradients) + 1);
  }
  pp::thread_runner runner(work, model, {.guarded = true});
  int const steps = 2;
  for (int step = 0; step < steps; ++step) {
    for (sharded_stage& stage : model)
      stage.ready = 0;
    runner.step();
  }
  auto const expected = support::run_sequentially(
    table.over.extents.stages(), table.over.extents.microbatches, table.over.extents.chunks);
  int gathers = 0;
  int scatters = 0;
  for (std::size_t s = 0; s < model.size(); ++s) {
    CHECK(model[s].gradient == steps * expected.gradients[s]);
    CHECK(model[s].ready == 1);
    gathers += model[s].gathers;
    scatters += model[s].scatters;
  }
  CHECK(model.back().whole.losses == steps * expected.losses);
  CHECK(gathers == steps * count_kinds(table, pp::stage_call::gather_weights));
  CHECK(scatters == steps * count_kinds(table, pp::stage_call::scatter_gradients));
  bool pairs = false; // whose halves run in turn on these stages
  for (int i = 0; i < table.size(); ++i)
    pairs = pairs || table.passes[i].overlapped;
  if (!pairs)
    CHECK(pp::verify(runner.trace()));
}

template <class Schedule>
void check_shards(Schedule const& schedule) {
  for (int devices = 1; devices <= 4; ++devices)
    for (int const rounds : {1, 3}) {
      auto const timed = [size =
                            pp::pipeline_size{devices, rounds * devices}](auto const& sharded) {
        return pp::make_timetable(sharded, size, gather_costs);
      };
      using sharded = pp::with_sharded_weights<Schedule>;
      check_sharded<pp::communicators::per_pair>(timed(sharded{schedule, {}}));
      check_sharded<pp::communicators::per_edge>(
        timed(sharded{schedule, pp::reshard::gathered_once()}));
      check_sharded<pp::communicators::one>(
        timed(sharded{schedule, {.scatter_once = true, .prefetch = 0}}));
      check_sharded<pp::communicators::per_pair>(
        timed(pp::with_sharded_weights<Schedule, pp::weights_on_host>{schedule, {}}));
    }
}

} // namespace

TEST_CASE_TEMPLATE("every schedule gives the same numbers with weights in shards",
                   Schedule,
                   pp::GPipe,
                   pp::OneFOneB,
                   pp::BreadthFirst<3>,
                   pp::Interleaved<2>,
                   pp::ZeroBubbleH2,
                   pp::detail::SweptZeroBubbleV,
                   pp::Seq1F1B<3>,
                   pp::Seq1F1BInterleaved<2, 3>,
                   pp::detail::SweptVHalf,
                   pp::Hanayo<2>,
                   pp::detail::SweptChronosPipe,
                   pp::with_recompute<pp::Interleaved<2>>,
                   pp::with_offload<pp::GPipe>) {
  check_shards(Schedule{});
}

TEST_CASE("braids give the same numbers with weights in shards") {
  for (int const microbatches : {12, 17})
    check_sharded<pp::communicators::per_pair>(
      pp::make_timetable(pp::with_sharded_weights<pp::STP<>>{}, {4, microbatches}, gather_costs));
}

namespace {

// Reads the weights of another stage in its backward passes.
struct late_stage : sharded_stage {
  late_stage const* other = nullptr;
  std::uint64_t seen = 0;

  void backward(pp::context const& where, pp::input in, pp::output out) {
    if (other != nullptr)
      seen = *other->weight;
    sharded_stage::backward(where, in, out);
  }
};

} // namespace

TEST_CASE("in the checked mode, weights that have been released are poison") {
  std::vector<late_stage> model(4);
  for (late_stage& stage : model)
    stage.shards[0] = 5;
  auto const table =
    pp::make_timetable(pp::with_sharded_weights<pp::BreadthFirst<2>>{}, {2, 2}, gather_costs);
  model[0].other = &model[2]; // whose last pass came before, and whose slot nobody else needs
  model[1].other = &model[3];
  pp::thread_runner runner(pp::lower(table, sharded_sizes{}), model, {.guarded = true});
  runner.step();
  CHECK(model[0].seen == UINT64_MAX);
  CHECK(model[1].seen == UINT64_MAX);
}

TEST_CASE("a schedule with sharded weights says what a stage lacks") {
  auto const table =
    pp::make_timetable(pp::with_sharded_weights<pp::GPipe>{}, {2, 2}, gather_costs);
  std::vector<support::arithmetic_stage> model(2);
  CHECK_THROWS_WITH_AS(
    (pp::thread_runner{pp::lower(table, sharded_sizes{}), model}),
    "run: the schedule gathers sharded weights, but stage 0 lacks gather_weights(context const&, "
    "output) or use_weights(context const&, input)",
    std::invalid_argument);
}

TEST_CASE("an evaluation says that it gathers no weights") {
  auto const table =
    pp::make_timetable(pp::with_sharded_weights<pp::GPipe>{}, {2, 2}, gather_costs);
  CHECK_THROWS_AS((void)pp::lower_evaluation(table), std::invalid_argument);
}
