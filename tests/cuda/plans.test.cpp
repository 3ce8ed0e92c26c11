// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Several plans on one runner for CUDA, compiled by nvcc as users compile it, on the stand-in.
#include <pipe/plan/lower.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tests/cuda/training.hpp>
#include <tests/cuda/training_plans.hpp>
#include <tests/simulators/cuda/standin.hpp>
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

TEST_CASE("communicators are shared by plans whose policy calls them the same") {
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 4});
  training_case what{
    .work = pp::lower(table, training_sizes),
    .given = {{pp::lower_evaluation(table, training_sizes)},
              {pp::lower(pp::make_timetable<pp::OneFOneB>({3, 6}), training_sizes)},
              {pp::lower<pp::communicator_per_edge>(table, training_sizes)}},
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
