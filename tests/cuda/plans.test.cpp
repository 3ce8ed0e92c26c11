// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Several plans on one runner for CUDA, compiled by nvcc as users compile it, on the stand-in.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <simulators/cuda/standin.hpp>
#include <stdexcept>
#include <string>
#include <tests/cuda/training.hpp>
#include <tests/cuda/training_plans.hpp>
#include <vector>

namespace pp = pipelining;

namespace {

void check_equal(training_result const& result, training_result const& expected) {
  CHECK(result.failure == "");
  CHECK(result.findings == "");
  CHECK(differences(result, expected) == 0);
}

} // namespace

TEST_CASE("plans that are added and replaced train like those of threads, and tell their totals") {
  for (several_plans const& plans : all_several_plans())
    for (bool const graph : {false, true})
      for (auto const order :
           {standin::order::lazy, standin::order::eager, standin::order::random}) {
        CAPTURE(plans.name);
        CAPTURE(graph);
        CAPTURE(static_cast<int>(order));
        training_case what = plans.what;
        what.graph = graph;
        standin::configure({.execution = order, .seed = 51});
        check_equal(train_on_streams(what), plans.expected);
        standin::configure({.execution = order, .seed = 52});
        check_equal(train_on_ranks(what), plans.expected);
        standin::report_leaks();
        CHECK(standin::summary() == "");
        what.checked = true;
        standin::configure({.execution = order, .seed = 53, .resident_nccl_kernels = 1});
        what.one_message_stream = true;
        check_equal(train_on_ranks(what), plans.expected);
      }
}

TEST_CASE("steps of plans that are there set nothing up any more") {
  for (several_plans const& plans : all_several_plans()) {
    CAPTURE(plans.name);
    training_case what = plans.what;
    what.given.clear();
    for (given_plan const& each : plans.what.given)
      if (each.instead_of < 0)
        what.given.push_back({each.work, 0});
    int const count = static_cast<int>(what.given.size()) + 1;
    what.turns.clear();
    for (int step = 0; step < 4 * count; ++step)
      what.turns.push_back(step % count);
    what.steps = 4 * count;
    what.freeze_after = 2 * count; // two steps of each, the second of which is captured
    for (bool const graph : {false, true})
      for (bool const ranks : {false, true}) {
        CAPTURE(graph);
        CAPTURE(ranks);
        what.graph = graph;
        standin::configure({});
        auto const result = ranks ? train_on_ranks(what) : train_on_streams(what);
        CHECK(result.failure == "");
        CHECK(result.findings == "");
      }
  }
}

TEST_CASE("stages are told when the memory of their device moves, and reserved memory does not") {
  auto const plan_of = [](int microbatches) {
    return pp::lower(pp::make_timetable<pp::OneFOneB>({3, microbatches}), training_sizes);
  };
  auto const larger = pp::lower(pp::make_timetable<pp::OneFOneB>({3, 6}),
                                pp::uniform_sizes{.message = 65536,
                                                  .activation = 65536,
                                                  .tied_bytes = 4,
                                                  .totals_bytes = sizeof(support::training_row)});
  for (bool const graph : {false, true})
    for (bool const ranks : {false, true}) {
      CAPTURE(graph);
      CAPTURE(ranks);
      training_case what{.work = plan_of(4),
                         .given = {{larger, 3}, {plan_of(5), 4}},
                         .turns = {0, 0, 0, 1, 0, 2, 1, 0},
                         .graph = graph,
                         .steps = 8};
      auto const train = [&] {
        standin::configure({});
        return ranks ? train_on_ranks(what) : train_on_streams(what);
      };
      auto const moved = train();
      CHECK(moved.failure == "");
      CHECK(moved.moves == 3);
      what.reserved = true;
      auto const stayed = train();
      CHECK(stayed.failure == "");
      CHECK(stayed.moves == 0);
      CHECK(differences(stayed, moved) == 0);
    }
}

TEST_CASE("communicators are shared by plans whose policy calls them the same") {
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 4});
  training_case what{
    .work = pp::lower(table, training_sizes),
    .given = {{pp::lower_evaluation(table, training_sizes)},
              {pp::lower(pp::make_timetable<pp::OneFOneB>({3, 6}), training_sizes)},
              {pp::lower<pp::communicators::per_edge>(table, training_sizes)}},
    .turns = {0, 1, 2, 3, 0},
    .steps = 5};
  standin::configure({});
  CHECK(train_on_ranks(what).failure == "");
  // Two pairs of neighbours, each with one communicator, and then one for each direction.
  CHECK(standin::calls_of("ncclCommInitRankConfig") == 2 * 2 + 2 * 4);
}

TEST_CASE("plans for others are refused, and so are numbers of no plan") {
  auto const plan_of = [](int devices, int microbatches) {
    return pp::lower(pp::make_timetable<pp::OneFOneB>({devices, microbatches}), training_sizes);
  };
  auto const failure = [&](bool ranks, training_case const& what) {
    standin::configure({});
    return (ranks ? train_on_ranks(what) : train_on_streams(what)).failure;
  };
  for (bool const ranks : {false, true}) {
    CAPTURE(ranks);
    CHECK(failure(ranks,
                  {.work = plan_of(2, 4), .given = {{plan_of(3, 4)}}, .turns = {0}, .steps = 1}) ==
          "run: the plans of a runner have the same devices and stages, but this one has 3 devices "
          "instead of 2; make another runner for it");
    CHECK(failure(ranks, {.work = plan_of(2, 4), .turns = {1}, .steps = 1}) ==
          "run: this runner has no plan 1; it has 1, and add gives the numbers of those after the "
          "first");
    CHECK(failure(
            ranks,
            {.work = plan_of(2, 4), .given = {{plan_of(2, 3), 0, 7}}, .turns = {0}, .steps = 1}) ==
          "run: this runner has no plan 7; it has 1, and add gives the numbers of those after the "
          "first");
  }
  auto const looped = pp::lower(pp::make_timetable<pp::Interleaved<2>>({2, 4}), training_sizes);
  auto const v = pp::lower(pp::make_timetable<pp::VHalf>({2, 4}), training_sizes);
  CHECK(failure(true, {.work = looped, .given = {{v}}, .turns = {0}, .steps = 1}) ==
        "nccl: the plans of a runner keep each stage on the same rank, but this one places them "
        "elsewhere; make another runner for it");
  CHECK(failure(false, {.work = looped, .given = {{v}}, .turns = {0, 1}, .steps = 2}) == "");
  CHECK(
    failure(false, {.work = looped, .given = {{v}}, .turns = {0}, .steps = 1, .gpus = {0, 1}}) ==
    "cuda: the plans of a runner keep each stage on the same GPU, but this one places stage 2 "
    "elsewhere; make another runner for it");
}

namespace {

//! Some devices have stepped when others find out that the step was wrong, or none has.
void check_early(early_plans const& plans, training_case const& what, bool ranks) {
  CAPTURE(plans.name);
  CAPTURE(ranks);
  auto const result = ranks ? train_on_ranks(what) : train_on_streams(what);
  CHECK(result.failure == "");
  CHECK(result.findings == "");
  for (std::size_t s = 0; s < plans.expected.size(); ++s)
    CHECK(support::same_bits(result.stages[s], plans.expected[s]));
  CHECK(result.rolled_back > 0);
  CHECK(result.made_up > 0);
  CHECK(result.repeated > 0);
}

} // namespace

TEST_CASE("steps that are validated afterwards leave the bits of steps that wait") {
  for (early_plans const& plans : all_early_plans())
    for (auto const order : {standin::order::lazy, standin::order::eager, standin::order::random})
      for (bool const ranks : {false, true}) {
        standin::configure({.execution = order, .seed = 61});
        check_early(plans, plans.what, ranks);
        training_case other = plans.what;
        for (int device = 0; device < other.work.over.extents.devices && !ranks; ++device)
          other.gpus.push_back(device);
        other.checked = other.one_message_stream = ranks;
        standin::configure({.execution = order, .seed = 62, .resident_nccl_kernels = 1});
        check_early(plans, other, ranks);
        // A program that zeroes gradients before every step has the same bits.
        other.zeroed = true;
        standin::configure({.execution = order, .seed = 63});
        check_early(plans, other, ranks);
        standin::report_leaks();
        CHECK(standin::summary() == "");
      }
}

TEST_CASE("a graph cannot ask the host, and a step that is not validated is not passed over") {
  training_case what = all_early_plans().front().what;
  what.graph = true;
  standin::configure({});
  auto const sentence =
    "run: a CUDA graph is launched as a whole, and cannot ask the host in the middle of an "
    "iteration whether the optimizer's step of the one before was right; run without a graph, or "
    "lower the plan with step_validation::at_once";
  CHECK(train_on_ranks(what).failure == sentence);
  standin::configure({});
  CHECK_THROWS_WITH_AS((void)train_on_streams(what), sentence, std::invalid_argument);
  what.graph = what.early = false;
  for (bool const ranks : {false, true}) {
    what.turns = {0, 0};
    what.steps = 2;
    standin::configure({});
    CHECK((ranks ? train_on_ranks(what) : train_on_streams(what)).failure ==
          "run: the optimizer's step of the iteration before is not validated yet, and this plan "
          "would not do it; run the plan that was lowered with step_validation::last before it");
    what.turns = {1};
    what.steps = 1;
    standin::configure({});
    CHECK(
      (ranks ? train_on_ranks(what) : train_on_streams(what)).failure ==
      "run: this plan validates an optimizer's step of the iteration before, but the last step "
      "that came to its end took none early, or has rows of another size; run the plan that was "
      "lowered with step_validation::next");
  }
}
