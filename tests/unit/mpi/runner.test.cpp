// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/mpi/mpi.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/run/plan_cache.hpp>
#include <pipe/run/post_validated.hpp>
#include <pipe/run/threads.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_stage_graph.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <mpi.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <tests/support/arithmetic_stage.hpp>
#include <tests/support/asked_flows.hpp>
#include <tests/support/beginning_stage.hpp>
#include <tests/support/count_allocations.hpp>
#include <tests/support/early_training.hpp>
#include <tests/support/expert_overlap.hpp>
#include <tests/support/frozen_stages.hpp>
#include <tests/support/partnered_model.hpp>
#include <tests/support/placements.hpp>
#include <tests/support/random_flows.hpp>
#include <tests/support/sizes.hpp>
#include <tests/support/stage_graphs.hpp>
#include <tests/support/training.hpp>
#include <tests/support/vocabulary_stages.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr auto patience = std::chrono::seconds(20);
using support::words;
// More than MPI sends eagerly: sends stay open until their receives are posted.
constexpr pp::uniform_sizes large{
  .message = 300000, .activation = 8, .weight_input = 8, .sequence = 8, .sequence_gradient = 8};

int this_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

template <class Stage = support::arithmetic_stage>
std::vector<Stage> make_model(pp::shape const& extents) {
  std::vector<Stage> model(static_cast<std::size_t>(extents.stages()));
  for (std::size_t s = 0; s < model.size(); ++s) {
    model[s].weight = s + 3;
    model[s].chunks = extents.chunks;
  }
  return model;
}

//! Counts how often its gradients were complete.
struct announcing_stage : support::arithmetic_stage {
  int completed = 0;
  void gradients_ready(pp::context const&) { ++completed; }
};

//! A name for a runner, the same on all ranks: runners that meet on one line have names of their
//! own.
std::string next_name() {
  static int made = 0;
  return "runner " + std::to_string(made++);
}

template <class Policy>
void check_equal_to_sequential(pp::mpi_store& meeting,
                               pp::timetable_view table,
                               pp::uniform_sizes const& sizes = words) {
  auto model = make_model<announcing_stage>(table.over.extents);
  pp::mpi_runner runner(pp::lower<Policy>(table, sizes),
                        model,
                        meeting.line(),
                        MPI_COMM_WORLD,
                        {.deadline = patience, .name = next_name(), .guarded = true});
  int const steps = 3;
  for (int step = 0; step < steps; ++step)
    runner.step();
  auto const expected = support::run_sequentially(
    table.over.extents.stages(), table.over.extents.microbatches, table.over.extents.chunks);
  int own = 0;
  for (int s = 0; s < table.over.extents.stages(); ++s) {
    auto const index = static_cast<std::size_t>(s);
    bool const mine = pp::device_of(table.over.extents, s) == runner.rank();
    own += mine ? 1 : 0;
    CHECK(model[index].gradient == (mine ? steps * expected.gradients[index] : 0));
    CHECK(model[index].completed == (mine ? steps : 0));
    CHECK(runner.owns(s) == mine);
  }
  CHECK(own == table.over.extents.stages_per_device);
  if (pp::device_of(table.over.extents, table.over.extents.stages() - 1) == runner.rank())
    CHECK(model.back().losses == steps * expected.losses);
}

} // namespace

TEST_CASE("four processes compute what one device computes, under every policy") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  check_equal_to_sequential<pp::communicators::per_pair>(meeting,
                                                         pp::make_timetable<pp::GPipe>({4, 7}));
  check_equal_to_sequential<pp::communicators::per_edge>(meeting,
                                                         pp::make_timetable<pp::OneFOneB>({4, 7}));
  check_equal_to_sequential<pp::communicators::one>(meeting,
                                                    pp::make_timetable<pp::OneFOneB>({4, 7}));
  check_equal_to_sequential<pp::communicators::per_pair>(
    meeting, pp::make_timetable<pp::Seq1F1B<3>>({4, 6}));
  check_equal_to_sequential<pp::communicators::per_pair>(
    meeting, pp::make_timetable<pp::ZeroBubbleH1>({4, 8}));
  check_equal_to_sequential<pp::communicators::one>(meeting, pp::make_timetable<pp::VHalf>({4, 8}));
  check_equal_to_sequential<pp::communicators::per_pair>(
    meeting, pp::make_timetable<pp::Interleaved<2>>({4, 8}));
  check_equal_to_sequential<pp::communicators::per_pair>(
    meeting, pp::make_timetable<pp::OneFOneB>({4, 7}), large);
  check_equal_to_sequential<pp::communicators::one>(
    meeting, pp::make_timetable<pp::VHalf>({4, 8}), large);
}

namespace {

// What a plan reads on this rank is what the interpreter says.
void check_interpreted(support::interpreted_plan const& plan,
                       pp::mpi_store& meeting,
                       std::string const& name) {
  pp::pipeline const& over = plan.work.over;
  auto model = support::beginning_model(plan.work, 1);
  pp::mpi_runner runner(
    plan.work, model, meeting.line(), MPI_COMM_WORLD, {.deadline = patience, .name = name});
  runner.step();
  for (support::beginning_stage& stage : model)
    stage.read.clear();
  runner.step();
  support::digests expected = plan.expected;
  std::erase_if(expected, [&](auto const& each) {
    return pp::device_of(over, each.first[1], each.first[2]) != this_rank();
  });
  CHECK(support::read_by(model) == expected);
}

} // namespace

TEST_CASE("flows by chance, on all engines, read on four processes what an interpreter says") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  int ran = 0;
  for (unsigned seed = 0; seed < 600; ++seed)
    if (auto const plan = support::interpreted_by_chance(seed, 4)) {
      CAPTURE(seed);
      check_interpreted(*plan, meeting, "flow " + std::to_string(seed));
      ++ran;
    }
  CHECK(ran >= 100);
}

TEST_CASE("experts on the network read on four processes what an interpreter says") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  check_interpreted(support::overlap::interpreted({2}, 4, 8), meeting, "experts");
}

TEST_CASE("processes go on with compute while their network works, and traces say so") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const [work, expected] = support::overlap::interpreted({2}, 4, 8);
  support::partnered_model model(work);
  pp::mpi_runner runner(
    work, model.stages, meeting.line(), MPI_COMM_WORLD, {.deadline = patience, .name = "partners"});
  runner.step();
  CHECK(model.overlapping() > 0);
  CHECK(model.fits(runner.trace(), this_rank()));
  CHECK(model.late == 0);
  for (auto const& [key, value] : support::read_by(model.stages))
    CHECK(value == expected.at(key));
}

TEST_CASE("a rank that fails finishes what it has begun, and says that it is abandoned") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const plan =
    support::asked::plan_of("", support::asked::network_last<false>{}, 4, 5).of.work;
  auto model = support::beginning_model(plan, 1);
  for (support::beginning_stage& stage : model) {
    stage.how = [](auto const&) { return support::begun_work::elsewhere; };
    stage.at_work = [](pp::pass const& what) {
      if (what.stage == 3 && what.microbatch == 4 && what.kind == pp::pass_kind{})
        throw std::runtime_error("out of luck");
    };
  }
  pp::mpi_runner runner(
    plan, model, meeting.line(), MPI_COMM_WORLD, {.deadline = patience, .name = "abandoned"});
  std::string text;
  try {
    runner.step();
  } catch (pp::run_error const& error) {
    text = error.what();
  }
  CAPTURE(text);
  CHECK(text.find("rank 3 failed in the attend of stage 3, microbatch 4") != std::string::npos);
  auto const own = static_cast<std::size_t>(this_rank());
  CHECK(model[own].under_way.empty());
  CHECK(model[own].abandoned == (this_rank() == 3 ? 1 : 0));
}

TEST_CASE("flows that users asked for read on four processes what an interpreter says") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  for (support::asked::asked_plan const& one : support::asked::plans()) {
    CAPTURE(one.name);
    check_interpreted(one.of, meeting, one.name);
  }
}

TEST_CASE("four processes train a model that is a graph as one device does") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  std::mt19937 random(1);
  for (int round = 0; round < 4; ++round) {
    auto const edges = support::draw_graph(4, random);
    auto const table = pp::make_timetable(pp::with_stage_graph<pp::OneFOneB>{{}, edges}, {4, 6});
    std::vector<std::uint64_t> weights;
    std::vector<support::joining_stage> model(4);
    for (auto& stage : model)
      weights.push_back(stage.weight = random() | 1u);
    pp::mpi_runner runner(
      pp::lower<pp::communicators::per_pair>(table, words),
      model,
      meeting.line(),
      MPI_COMM_WORLD,
      {.deadline = patience, .name = "graph " + std::to_string(round), .guarded = true});
    runner.step();
    auto const own = static_cast<std::size_t>(runner.rank());
    CHECK(model[own].gradient == support::gradients_of(edges, weights, 6, 1)[own]);
  }
}

TEST_CASE("four processes train what is not frozen as one device does") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  std::mt19937 random(2);
  for (int round = 0; round < 6; ++round) {
    auto const edges = round % 2 == 0 ? support::chain(4) : support::draw_graph(4, random);
    auto const frozen = support::draw_frozen(4, random);
    auto const table = pp::make_timetable(
      pp::with_stage_graph<pp::with_frozen_stages<pp::OneFOneB>>{{{}, frozen}, edges}, {4, 6});
    auto model = support::freezing_model(edges, frozen, 4, random);
    std::vector<std::uint64_t> weights;
    for (auto const& stage : model)
      weights.push_back(stage.weight);
    pp::mpi_runner runner(
      pp::lower<pp::communicators::per_pair>(table, words),
      model,
      meeting.line(),
      MPI_COMM_WORLD,
      {.deadline = patience, .name = "frozen " + std::to_string(round), .guarded = true});
    runner.step();
    auto const own = static_cast<std::size_t>(runner.rank());
    CHECK(std::string(support::fault_of(model[own],
                                        support::gradients_of(edges, weights, 6, 1)[own],
                                        6,
                                        support::only_forward(edges, frozen, runner.rank()))) ==
          "");
  }
}

TEST_CASE("four processes train a model with its vocabulary in shards as one device does") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  std::mt19937 random(2);
  auto const check = [&]<class Policy, int Barriers, class Schedule>(
                       pp::with_vocabulary<Schedule, Barriers>, Policy) {
    auto const table = pp::make_timetable<pp::with_vocabulary<Schedule, Barriers>>({4, 6});
    std::vector<std::uint64_t> weights;
    std::vector<support::vocabulary_stage> model(
      static_cast<std::size_t>(table.over.extents.stages()));
    for (auto& stage : model) {
      stage.barriers = Barriers;
      weights.push_back(stage.weight = random() | 1u);
    }
    pp::mpi_runner runner(pp::lower<Policy>(table, words),
                          model,
                          meeting.line(),
                          MPI_COMM_WORLD,
                          {.deadline = patience, .name = next_name(), .guarded = true});
    runner.step();
    auto const expected = support::vocabulary_gradients(weights, 4, 6, 1, Barriers);
    for (std::size_t s = 0; s < model.size(); ++s)
      if (pp::device_of(table, static_cast<int>(s)) == runner.rank())
        CHECK(model[s].gradient == expected[s]);
  };
  pp::communicators::per_pair const pairs;
  check(pp::with_vocabulary<pp::OneFOneB, 2>{}, pairs);
  check(pp::with_vocabulary<pp::OneFOneB, 1>{}, pairs);
  check(pp::with_vocabulary<pp::VHalf, 2>{}, pairs);
  pp::communicators::exchanges_at_once const exchanges;
  check(pp::with_vocabulary<pp::OneFOneB, 1>{}, exchanges);
  check(pp::with_vocabulary<pp::VHalf, pp::interlaced>{}, exchanges);
}

namespace {

template <class Policy>
void check_training(pp::mpi_store& meeting, pp::timetable_view table) {
  constexpr pp::uniform_sizes sizes{.message = 4,
                                    .activation = 4,
                                    .weight_input = 4,
                                    .tied_bytes = 4,
                                    .totals_bytes = sizeof(support::training_row)};
  int const stages = table.over.extents.stages();
  int const steps = 9;
  auto expected = support::untrained(stages);
  support::train_sequentially(expected, table.over.extents.microbatches, steps);
  auto model = support::training_model(stages);
  pp::mpi_runner runner(pp::lower<Policy>(table, sizes),
                        model,
                        meeting.line(),
                        MPI_COMM_WORLD,
                        {.deadline = patience, .name = next_name(), .guarded = true});
  for (int step = 0; step < steps; ++step)
    runner.step();
  for (int s = 0; s < stages; ++s) {
    auto const index = static_cast<std::size_t>(s);
    bool const mine = pp::device_of(table.over, s) == runner.rank();
    CHECK(support::same_bits(model[index].numbers, expected[index]) == mine);
    CHECK(model[index].stepped == (mine ? steps : 0));
  }
}

} // namespace

TEST_CASE("processes train as one device does, with tied weights, clipping and skipped steps") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  check_training<pp::communicators::per_pair>(meeting, pp::make_timetable<pp::OneFOneB>({4, 6}));
  check_training<pp::communicators::one>(meeting, pp::make_timetable<pp::OneFOneB>({4, 6}));
  check_training<pp::communicators::per_edge>(meeting, pp::make_timetable<pp::VHalf>({4, 6}));
  check_training<pp::communicators::per_pair>(meeting,
                                              pp::make_timetable<pp::Interleaved<2>>({4, 6}));
  check_training<pp::communicators::per_pair>(meeting,
                                              pp::make_timetable<support::ends_together>({4, 6}));
}

namespace {

template <class Policy>
void check_copies(pp::mpi_store& meeting, pp::timetable_view table) {
  int const stages = table.over.extents.stages();
  int const steps = 9;
  support::trained_copies expected(4, support::untrained(stages, 0x1p100F));
  support::train_copies(table.over, expected, steps);
  auto model = support::training_model(stages, 0x1p100F);
  pp::mpi_runner runner(pp::lower<Policy>(table, support::training_sizes),
                        model,
                        meeting.line(),
                        MPI_COMM_WORLD,
                        {.deadline = patience, .name = next_name(), .guarded = true});
  for (int step = 0; step < steps; ++step)
    runner.step();
  auto const rank = static_cast<std::size_t>(runner.rank());
  int trained = 0;
  for (std::size_t s = 0; s < model.size(); ++s) {
    CHECK(support::same_bits(model[s].numbers, expected[rank][s]));
    trained += model[s].stepped == steps ? 1 : 0;
  }
  int copies = 0;
  for (int s = 0; s < stages; ++s)
    copies += pp::detail::copies_of(table.over, s);
  CHECK(trained == copies / 4); // each process has as many
}

} // namespace

TEST_CASE("processes train several copies of every stage as one device that adds them in order") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  check_copies<pp::communicators::per_pair>(meeting, pp::make_timetable<pp::DualPipe<>>({4, 8}));
  check_copies<pp::communicators::one>(meeting, pp::make_timetable<pp::Chimera>({4, 8}));
  check_copies<pp::communicators::per_edge>(meeting, pp::make_timetable<pp::BitPipe>({4, 8}));
  check_copies<pp::communicators::per_pair>(meeting,
                                            pp::make_timetable<support::second_in_turn>({4, 8}));
}

namespace {

template <class Policy>
void check_early_training(pp::mpi_store& meeting, pp::timetable_view table) {
  constexpr pp::uniform_sizes sizes{.message = 4,
                                    .activation = 4,
                                    .weight_input = 4,
                                    .tied_bytes = 4,
                                    .totals_bytes = sizeof(support::training_row)};
  int const stages = table.over.extents.stages();
  int const steps = 14;
  auto expected = support::untrained(stages, 64);
  support::train_planted(expected, table.over.extents.microbatches, 0, steps);
  auto model = support::early_training_model(stages);
  auto plans = pp::lower_post_validated<Policy>(table, sizes);
  pp::mpi_runner runner(plans.first,
                        model,
                        meeting.line(),
                        MPI_COMM_WORLD,
                        {.deadline = patience, .name = next_name(), .guarded = true});
  pp::post_validated_steps early(runner);
  auto const numbers = early.add(std::move(plans));
  for (int step = 0; step < steps; ++step) {
    early.step(numbers);
    if (step == 5)
      early.finish();
  }
  early.finish();
  CHECK(early.corrected() >= 6);
  CHECK(early.repeated() > 3);
  CHECK(early.repeated() < early.corrected()); // `finish` finds that of step 5 wrong
  for (int s = 0; s < stages; ++s) {
    auto const index = static_cast<std::size_t>(s);
    bool const mine = pp::device_of(table.over.extents, s) == runner.rank();
    CHECK(support::same_bits(model[index].numbers, expected[index]) == mine);
    CHECK(model[index].rolled_back + model[index].made_up == (mine ? early.corrected() : 0));
  }
}

} // namespace

TEST_CASE("processes step early and validate in the next iteration, to the same bits") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  check_early_training<pp::communicators::per_pair>(meeting,
                                                    pp::make_timetable<pp::OneFOneB>({4, 6}));
  check_early_training<pp::communicators::one>(meeting, pp::make_timetable<pp::OneFOneB>({4, 6}));
  check_early_training<pp::communicators::per_edge>(meeting, pp::make_timetable<pp::VHalf>({4, 6}));
  check_early_training<pp::communicators::per_pair>(meeting,
                                                    pp::make_timetable<pp::Interleaved<2>>({4, 6}));
}

TEST_CASE("a program that zeroes gradients before every step has the bits of steps that wait") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  constexpr pp::uniform_sizes sizes{.message = 4,
                                    .activation = 4,
                                    .weight_input = 4,
                                    .tied_bytes = 4,
                                    .totals_bytes = sizeof(support::training_row)};
  auto const table = pp::make_timetable<pp::ZeroBubbleH2>({4, 5});
  long corrected = 0;
  for (float const clip : {1e6F, 4.0F, 2.0F, 1.0F}) {
    CAPTURE(clip);
    auto expected = support::zeroed_by_the_program(4, clip);
    pp::thread_runner waits(pp::lower(table, sizes), expected);
    auto model = support::zeroed_by_the_program(4, clip);
    auto plans = pp::lower_post_validated(table, sizes);
    pp::mpi_runner runner(plans.first,
                          model,
                          meeting.line(),
                          MPI_COMM_WORLD,
                          {.deadline = patience, .name = "zeroed " + std::to_string(clip)});
    pp::post_validated_steps early(runner);
    auto const numbers = early.add(std::move(plans));
    for (int step = 0; step < 6; ++step) {
      for (auto* each : {&expected, &model})
        for (auto& stage : *each)
          support::zero(stage.numbers);
      waits.step();
      early.step(numbers);
    }
    early.finish();
    auto const own = static_cast<std::size_t>(runner.rank());
    CHECK(support::same_bits(model[own].numbers, expected[own].numbers));
    corrected += early.corrected();
  }
  CHECK(corrected > 0);
}

TEST_CASE("training, evaluation and another number of microbatches share ranks, memory and "
          "communicator, without a barrier") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const table = [](int microbatches) {
    return pp::make_timetable<pp::OneFOneB>({4, microbatches});
  };
  // Only the stage of this rank is there.
  std::vector<std::unique_ptr<support::arithmetic_stage>> model(4);
  auto const own = static_cast<std::size_t>(this_rank());
  model[own] = std::make_unique<support::arithmetic_stage>();
  model[own]->weight = own + 3;
  pp::mpi_runner runner(pp::lower(table(6), words),
                        model,
                        meeting.line(),
                        MPI_COMM_WORLD,
                        {.deadline = patience, .guarded = true});
  pp::plan_number const rest = runner.add(pp::lower(table(3), large));
  pp::plan_number const evaluation = runner.add(pp::lower_evaluation(table(5), words));
  pp::plan_number const halves =
    runner.add(pp::lower(pp::make_timetable<pp::ZeroBubbleH1>({4, 8}), words));
  std::uint64_t gradient = 0;
  std::uint64_t losses = 0;
  for (int epoch = 0; epoch < 10; ++epoch)
    for (auto const& [which, microbatches] :
         {std::pair{pp::plan_number{}, 6}, {evaluation, 5}, {rest, 3}, {halves, 8}, {{}, 6}}) {
      runner.step(which);
      auto const expected = support::run_sequentially(4, microbatches, 1);
      gradient += which == evaluation ? 0 : expected.gradients[own];
      losses += expected.losses;
      CHECK(model[own]->gradient == gradient);
      CHECK(model[own]->losses == (own == 3 ? losses : 0));
    }
  pp::dynamic_timetable const trace = runner.trace();
  CHECK(trace.over.extents.microbatches == 6);
  CHECK(trace.passes == table(6).passes);
  double longest = 0;
  for (std::size_t i = 0; i < trace.passes.size(); ++i) {
    CHECK(trace.ends[i] >= trace.starts[i]);
    CHECK(trace.starts[i] > 0);
    longest = std::max(longest, trace.ends[i]);
  }
  CHECK(longest < 20);
  CHECK_THROWS_AS(runner.step({4}), std::invalid_argument);
}

namespace {

//! Its row of the totals is what it has seen.
struct counting_stage : support::arithmetic_stage {
  std::uint64_t evaluated = 0;
  int updates = 0;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    evaluated += where.evaluating ? 1 : 0;
    support::arithmetic_stage::forward(where, in, out);
  }
  void contribute(pp::context const& where, pp::output row) {
    row.as<std::uint64_t>()[0] = where.evaluating ? evaluated : 77;
  }
  void optimizer_step(pp::context const&, pp::totals const&) { ++updates; }
};

} // namespace

TEST_CASE("stages of a rank are told when its memory moves, and reserved memory does not") {
  struct viewing_stage : support::arithmetic_stage {
    std::vector<std::byte*> kept{};
    int told = 0;
    void forward(pp::context const& where, pp::input in, pp::output out) {
      kept.push_back(where.activation.data);
      support::arithmetic_stage::forward(where, in, out);
    }
    void memory_moved(pp::context const& where) {
      CHECK(where.device == this_rank());
      kept.clear();
      ++told;
    }
  };
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const plan_of = [](int microbatches) {
    return pp::lower(pp::make_timetable<pp::GPipe>({4, microbatches}), large);
  };
  auto model = make_model<viewing_stage>({4, 4});
  pp::mpi_runner runner(plan_of(4), model, meeting.line(), MPI_COMM_WORLD, {.deadline = patience});
  auto& own = model[static_cast<std::size_t>(this_rank())];
  runner.step();
  CHECK(own.told == 0);
  auto const before = own.kept;
  auto const larger = runner.add(plan_of(16));
  runner.step();
  CHECK(own.told == 1);
  CHECK(own.kept != before);
  runner.step(larger);
  CHECK(own.told == 1);
  runner.reserve(plan_of(64));
  runner.step();
  CHECK(own.told == 2);
  auto const reserved = std::exchange(own.kept, {});
  auto const largest = runner.add(plan_of(64));
  runner.step();
  CHECK(own.told == 2);
  CHECK(own.kept == reserved);
  runner.step(largest);
  for (auto const& other : model)
    CHECK((other.told == 0 || &other == &own));
}

TEST_CASE("iterations of other sizes follow each other, and few of their plans are kept") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const of_size = [](int microbatches) {
    return pp::lower(pp::make_timetable<pp::OneFOneB>({4, microbatches}),
                     pp::uniform_sizes{.message = 4,
                                       .activation = 4,
                                       .weight_input = 4,
                                       .tied_bytes = 4,
                                       .totals_bytes = sizeof(support::training_row)});
  };
  auto expected = support::untrained(4);
  auto model = support::training_model(4);
  pp::mpi_runner runner(
    of_size(2), model, meeting.line(), MPI_COMM_WORLD, {.deadline = patience, .name = "sizes"});
  pp::plan_cache<int, pp::plan_number> cache(2);
  for (int const microbatches : {4, 6, 4, 6, 9, 6, 4, 9}) {
    runner.step(cache.get(microbatches, [&](pp::plan_number const* instead) {
      return instead == nullptr ? runner.add(of_size(microbatches))
                                : runner.replace(*instead, of_size(microbatches));
    }));
    support::train_sequentially(expected, microbatches, 1);
  }
  CHECK(cache.made() == 5);
  CHECK(cache.reused() == 3);
  auto const mine = static_cast<std::size_t>(runner.rank());
  CHECK(support::same_bits(model[mine].numbers, expected[mine]));
}

TEST_CASE("every rank reads the totals of an evaluation") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  constexpr pp::uniform_sizes sizes{
    .message = 24, .activation = 8, .weight_input = 8, .totals_bytes = 8};
  auto const table = pp::make_timetable<pp::VHalf>({4, 6});
  auto model = make_model<counting_stage>(table.over.extents);
  pp::mpi_runner runner(pp::lower(table, sizes),
                        model,
                        meeting.line(),
                        MPI_COMM_WORLD,
                        {.deadline = patience, .guarded = true});
  pp::plan_number const evaluation = runner.add(pp::lower_evaluation(table, sizes));
  for (std::uint64_t epoch = 1; epoch < 4; ++epoch) {
    runner.step(evaluation);
    REQUIRE(runner.totals().rows == 8);
    for (int s = 0; s < 8; ++s)
      CHECK(runner.totals().row<std::uint64_t>(s)[0] == epoch * 6);
    runner.step();
    for (int s = 0; s < 8; ++s)
      CHECK(runner.totals().row<std::uint64_t>(s)[0] == 77);
  }
  for (int s = 0; s < 8; ++s)
    CHECK(model[static_cast<std::size_t>(s)].updates ==
          (pp::device_of(table.over.extents, s) == runner.rank() ? 3 : 0));
}

TEST_CASE("steps allocate nothing") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const table = pp::make_timetable<pp::Seq1F1B<2>>({4, 6});
  auto model = make_model(table.over.extents);
  pp::mpi_runner runner(pp::lower(table, words), model, meeting.line());
  pp::plan_number const evaluation = runner.add(pp::lower_evaluation(table, words));
  runner.step();
  runner.step(evaluation);
  long const before = support::allocations();
  CHECK(before > 0);
  for (int step = 0; step < 200; ++step) {
    runner.step();
    if (step % 4 == 0)
      runner.step(evaluation);
  }
  long const after = support::allocations();
  MPI_Barrier(MPI_COMM_WORLD); // a rank that ends its runner tells the store, which rank 0 serves
  CHECK(after - before == 0);
}

namespace {

struct failing_stage : support::arithmetic_stage {
  int fails_at = -1;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    if (where.microbatch == fails_at)
      throw std::domain_error("loss is not a number");
    support::arithmetic_stage::forward(where, in, out);
  }
};

//! The text of the run_error of a step that must fail.
template <class Runner>
std::string failure_of(Runner& runner, int rank) {
  try {
    runner.step();
    FAIL("the step must throw");
  } catch (pp::run_error const& error) {
    CHECK(error.device() == rank);
    bool const nested = dynamic_cast<std::nested_exception const*>(&error) != nullptr;
    return (nested ? "nested " : "") + std::string(error.what());
  }
  return {};
}

} // namespace

TEST_CASE("an exception in a stage ends the step on all ranks, and each says where it was") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const table = pp::make_timetable<pp::OneFOneB>({4, 6});
  auto model = make_model<failing_stage>(table.over.extents);
  pp::mpi_runner runner(pp::lower(table, words), model, meeting.line());
  runner.step();
  model[2].fails_at = 3;
  std::string const text = failure_of(runner, 2);
  std::string const reason = "run: rank 2 failed in the forward of stage 2, microbatch 3 (item ";
  CHECK(text.find(": loss is not a number") != std::string::npos);
  std::string const here = "\n  rank " + std::to_string(runner.rank()) + " was at item ";
  if (runner.rank() == 2)
    CHECK(text.find("nested " + reason) == 0);
  else
    CHECK(text.find(reason) == 0);
  CHECK((text.find(here) != std::string::npos) == (runner.rank() != 2));
  if (runner.rank() == 3)
    CHECK(text.find(", its last pass was the ") != std::string::npos);
  CHECK_THROWS_WITH_AS(runner.step(),
                       ("run: rank " + std::to_string(runner.rank()) +
                        " cannot run another step after one that failed; end the process, and "
                        "start all ranks again")
                         .c_str(),
                       pp::run_error);
}

namespace {

struct overrunning_stage : support::arithmetic_stage {
  int overruns_at = -1;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    support::arithmetic_stage::forward(where, in, out);
    if (where.microbatch == overruns_at)
      out.data[out.bytes] ^= std::byte{0x55};
  }
};

} // namespace

TEST_CASE("in the checked mode a stage that writes one byte beyond its output ends the step on all "
          "ranks, with rank, pass and slot") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const table = pp::make_timetable<pp::OneFOneB>({4, 6});
  auto model = make_model<overrunning_stage>(table.over.extents);
  pp::mpi_runner runner(pp::lower(table, words),
                        model,
                        meeting.line(),
                        MPI_COMM_WORLD,
                        {.deadline = patience, .guarded = true});
  runner.step();
  model[1].overruns_at = 3;
  std::string const text = failure_of(runner, 1);
  CAPTURE(text);
  std::string const reason = "run: rank 1 failed in the forward of stage 1, microbatch 3 (item ";
  CHECK(text.find((runner.rank() == 1 ? "nested " : "") + reason) == 0);
  CHECK(text.find(": the stage has written beyond the 24 bytes of its output, first at byte 24; "
                  "data, bytes and as<T>() say where it ends") != std::string::npos);
  std::string const here = "\n  rank " + std::to_string(runner.rank()) + " was at item ";
  CHECK((text.find(here) != std::string::npos) == (runner.rank() != 1));
}

namespace {

//! Stage 1 does not return from one pass until the failure of the run has reached it.
struct stalling_stage : support::arithmetic_stage {
  pp::store* line = nullptr;
  void forward(pp::context const& where, pp::input in, pp::output out) {
    while (line != nullptr && where.microbatch == 1 && !line->failure())
      std::this_thread::yield();
    support::arithmetic_stage::forward(where, in, out);
  }
};

} // namespace

TEST_CASE("a stall becomes an error on all ranks that says who waits for whom") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const table = pp::make_timetable<pp::OneFOneB>({4, 4});
  auto model = make_model<stalling_stage>(table.over.extents);
  bool const impatient = this_rank() == 2;
  auto const deadline = impatient ? std::chrono::nanoseconds(std::chrono::seconds(1)) : patience;
  pp::mpi_runner runner(
    pp::lower(table, words), model, meeting.line(), MPI_COMM_WORLD, {.deadline = deadline});
  if (this_rank() == 1)
    model[1].line = &meeting.line();
  // The deadline is rank 2's, but it began with rank 1.
  std::string const text = failure_of(runner, 1);
  CAPTURE(text);
  CHECK(text.find("run: no progress before the deadline: rank 2 was at item ") == 0);
  CHECK(text.find(", and it waited for rank 1 to complete item ") != std::string::npos);
  CHECK(text.find(": receive what comes of the forward of stage 1, microbatch 1 from device 1") !=
        std::string::npos);
  // Its watchdog may answer while the pass lasts, or the rank itself after it.
  std::string const origin = "\n  rank 1 is where it began: it ";
  std::string const pass = "is still in the forward of stage 1, microbatch 1 (item ";
  CHECK((text.find(origin + "was at item ") != std::string::npos ||
         text.find(origin + pass) != std::string::npos));
  if (this_rank() == 0 || this_rank() == 3)
    CHECK(text.find("\n  rank " + std::to_string(this_rank()) + " was at ") != std::string::npos);
}

namespace {

//! Ranks 0, 1 and 2 come to a store that rank 3 is late for; returns what they learn.
std::string missed_by(MPI_Comm world, int late) {
  std::string text = "none";
  if (this_rank() == late)
    for (int other = 0; other < 4; ++other)
      if (other != late)
        MPI_Recv(nullptr, 0, MPI_BYTE, other, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  auto const start = std::chrono::steady_clock::now();
  try {
    pp::mpi_store meeting(world, std::chrono::milliseconds(500));
  } catch (std::exception const& error) {
    text = error.what();
  }
  CHECK(std::chrono::steady_clock::now() - start < patience);
  if (this_rank() != late)
    MPI_Send(nullptr, 0, MPI_BYTE, late, 7, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  return text;
}

} // namespace

TEST_CASE("a rank that is late for the store is named when the deadline has passed") {
  for (int const late : {3, 0}) {
    MPI_Comm world = MPI_COMM_NULL; // the messages that nobody takes stay in it
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    std::string const text = missed_by(world, late);
    std::string const name = "has waited for rank " + std::to_string(late);
    CAPTURE(text);
    CHECK((text.find(name + ' ') != std::string::npos) == (this_rank() != late));
  }
}

TEST_CASE("what keeps rank 0 from serving is told to all") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  try {
    pp::mpi_store other(MPI_COMM_WORLD, patience, "203.0.113.1");
    FAIL("nobody can listen there");
  } catch (std::runtime_error const& error) {
    std::string const own = this_rank() == 0 ? "store: " : "store: rank 0 cannot serve: store: ";
    CHECK(std::string(error.what()) == own + "cannot listen on port 0 of 203.0.113.1: Cannot "
                                             "assign requested address");
  }
}

TEST_CASE("ranks with different plans do not start") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const table = pp::make_timetable<pp::OneFOneB>({4, this_rank() == 2 ? 5 : 6});
  auto model = make_model(table.over.extents);
  try {
    pp::mpi_runner runner(pp::lower(table, words), model, meeting.line());
    FAIL("the runner must throw");
  } catch (pp::run_error const& error) {
    CHECK(std::string(error.what()) ==
          "run: rank 2 could not begin: devices 0 and 2 disagree: microbatches 6 vs 5; start all "
          "ranks with the same program and options");
    CHECK(error.device() == 2);
  }
}

TEST_CASE("ranks with different texts do not start, though their plans are the same") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const table = pp::make_timetable<pp::OneFOneB>({4, 6});
  auto model = make_model(table.over.extents);
  std::string const about = this_rank() == 2 ? "layers=8\nseed=7\n" : "layers=8\nseed=1\n";
  try {
    pp::mpi_runner runner(
      pp::lower(table, words), model, meeting.line(), MPI_COMM_WORLD, {.about = about});
    FAIL("the runner must throw");
  } catch (pp::run_error const& error) {
    CHECK(std::string(error.what())
            .find("run: rank 2 could not begin: rank 0 has seed=1, rank 2 "
                  "has seed=7; start all ranks with the same program and "
                  "options") == 0);
    CHECK(error.device() == 2);
  }
}

TEST_CASE("ranks that add different plans, or run them, end") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const lowered = [](int microbatches) {
    return pp::lower(pp::make_timetable<pp::OneFOneB>({4, microbatches}), words);
  };
  auto model = make_model(pp::make_timetable<pp::OneFOneB>({4, 2}).over.extents);
  {
    pp::mpi_runner runner(lowered(4), model, meeting.line());
    try {
      (void)runner.add(lowered(this_rank() == 2 ? 5 : 6));
      FAIL("the plan must be refused");
    } catch (pp::run_error const& error) {
      CHECK(std::string(error.what())
              .find("run: rank 2 could not add a plan: devices 0 and 2 disagree: microbatches 6 vs "
                    "5; start all ranks with the same program and options") == 0);
    }
    CHECK_THROWS_AS(runner.step(), pp::run_error);
    CHECK_THROWS_AS((void)runner.trace(), pp::run_error);
  }
}

TEST_CASE("a rank that runs another plan than the others stalls, and is told to") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const table = pp::make_timetable<pp::OneFOneB>({4, 6});
  auto model = make_model(table.over.extents);
  pp::mpi_runner runner(pp::lower(table, words),
                        model,
                        meeting.line(),
                        MPI_COMM_WORLD,
                        {.deadline = std::chrono::seconds(5)});
  pp::plan_number const again = runner.add(pp::lower(table, words)); // the same sizes
  runner.step();
  try {
    runner.step(this_rank() == 1 ? again : pp::plan_number{});
    FAIL("the step must throw");
  } catch (pp::run_error const& error) {
    std::string const text = error.what();
    CHECK(text.find("run: no progress before the deadline") == 0);
  }
}

TEST_CASE("a plan that places stages on other ranks is refused") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const loops = pp::make_timetable<pp::Interleaved<2>>({4, 4});
  auto model = make_model(loops.over.extents);
  pp::mpi_runner runner(pp::lower(loops, words), model, meeting.line());
  CHECK_THROWS_WITH_AS(
    (void)runner.add(pp::lower(pp::make_timetable<pp::VHalf>({4, 4}), words)),
    "run: the plans of a runner keep each stage on the same rank, but this one places them "
    "elsewhere; make another runner for it",
    std::invalid_argument);
}

TEST_CASE("a plan for another number of ranks is refused") {
  pp::mpi_store meeting(MPI_COMM_WORLD, patience);
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 2});
  auto model = make_model(table.over.extents);
  CHECK_THROWS_WITH_AS(
    pp::mpi_runner(pp::lower(table, words), model, meeting.line()),
    "run: the plan has 3 devices, but the communicator has 4 ranks; start one process per device "
    "(mpirun -n 3)",
    std::invalid_argument);
}
