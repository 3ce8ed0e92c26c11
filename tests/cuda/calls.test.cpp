// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What a step that goes well costs its host: calls of CUDA and NCCL, counted by the stand-in.
#include <pipe/plan/item.hpp>
#include <pipe/plan/lower/waits.hpp>
#include <pipe/plan/plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <tests/cuda/nccl.hpp>
#include <tests/cuda/schedules.hpp>
#include <tests/cuda/streams.hpp>
#include <vector>

namespace {

struct totals_of_plan {
  char const* plan;
  std::uint64_t ranks;   //!< calls that do something, of all ranks in an eager step
  std::uint64_t streams; //!< the same of the stream runner
};

// A step of a plan may cost less than this one day, and must not cost more. Kernels of stages, one
// for each pass, are among them.
constexpr totals_of_plan eager_totals[] = {
  {"GPipe 3x4, communicators per pipeline", 172, 224},
  {"GPipe 3x4, communicators per pair", 185, 237},
  {"GPipe 3x4, communicators per edge", 195, 247},
  {"1F1B 2x3, communicators per pipeline", 80, 96},
  {"1F1B 2x3, communicators per pair", 80, 96},
  {"1F1B 2x3, communicators per edge", 84, 104},
  {"1F1B 4x6, communicators per pipeline", 376, 454},
  {"1F1B 4x6, communicators per pair", 406, 484},
  {"1F1B 4x6, communicators per edge", 412, 526},
  {"Seq1F1B 3x4, communicators per pipeline", 350, 414},
  {"Seq1F1B 3x4, communicators per pair", 370, 434},
  {"Seq1F1B 3x4, communicators per edge", 371, 471},
  {"V-Half 3x5, communicators per pipeline", 462, 558},
  {"V-Half 3x5, communicators per pair", 473, 569},
  {"V-Half 3x5, communicators per edge", 506, 630},
  {"V-Min 3x5, communicators per pipeline", 462, 558},
  {"V-Min 3x5, communicators per pair", 473, 569},
  {"V-Min 3x5, communicators per edge", 506, 630},
  {"ZB-H1 4x6, communicators per pipeline", 404, 506},
  {"ZB-H1 4x6, communicators per pair", 432, 534},
  {"ZB-H1 4x6, communicators per edge", 462, 576},
  {"Interleaved 2x4, communicators per pipeline", 243, 293},
  {"Interleaved 2x4, communicators per pair", 243, 293},
  {"Interleaved 2x4, communicators per edge", 255, 329},
  {"Interleaved 4x4, communicators per pipeline", 497, 667},
  {"Interleaved 4x4, communicators per pair", 585, 755},
  {"Interleaved 4x4, communicators per edge", 608, 782},
  {"interleaved Seq1F1B 2x4, communicators per pipeline", 481, 571},
  {"interleaved Seq1F1B 2x4, communicators per pair", 481, 571},
  {"interleaved Seq1F1B 2x4, communicators per edge", 500, 646},
  {"ZB-V 3x6, communicators per pipeline", 557, 677},
  {"ZB-V 3x6, communicators per pair", 576, 696},
  {"ZB-V 3x6, communicators per edge", 605, 753},
  {"DualPipeV 2x5, communicators per pipeline", 242, 280},
  {"DualPipeV 2x5, communicators per pair", 242, 280},
  {"DualPipeV 2x5, communicators per edge", 260, 302},
  {"1F1B on a graph 4x5, communicators per pipeline", 347, 449},
  {"1F1B on a graph 4x5, communicators per pair", 408, 510},
  {"1F1B on a graph 4x5, communicators per edge", 430, 556},
  {"1F1B with copies 4x6, communicators per pipeline", 555, 633},
  {"1F1B with copies 4x6, communicators per pair", 585, 663},
  {"1F1B with copies 4x6, communicators per edge", 594, 708},
  {"Seq1F1B with copies 3x4, communicators per pipeline", 550, 614},
  {"Seq1F1B with copies 3x4, communicators per pair", 569, 633},
  {"Seq1F1B with copies 3x4, communicators per edge", 572, 672},
  {"Interleaved with copies 2x4, communicators per pipeline", 366, 420},
  {"Interleaved with copies 2x4, communicators per pair", 366, 420},
  {"Interleaved with copies 2x4, communicators per edge", 382, 456},
  {"V-Half with copies 3x5, communicators per pipeline", 708, 804},
  {"V-Half with copies 3x5, communicators per pair", 719, 815},
  {"V-Half with copies 3x5, communicators per edge", 752, 876},
  {"ZB-H1 with copies 4x6, communicators per pipeline", 583, 685},
  {"ZB-H1 with copies 4x6, communicators per pair", 609, 711},
  {"ZB-H1 with copies 4x6, communicators per edge", 642, 756},
  {"BreadthFirst with sharded weights 2x4, communicators per pipeline", 493, 567},
  {"BreadthFirst with sharded weights 2x4, communicators per pair", 493, 567},
  {"BreadthFirst with sharded weights 2x4, communicators per edge", 516, 638},
  {"Interleaved with sharded weights 2x4, communicators per pipeline", 563, 665},
  {"Interleaved with sharded weights 2x4, communicators per pair", 563, 665},
  {"Interleaved with sharded weights 2x4, communicators per edge", 608, 730},
  {"ZB-V with sharded weights 2x4, communicators per pipeline", 346, 392},
  {"ZB-V with sharded weights 2x4, communicators per pair", 346, 392},
  {"ZB-V with sharded weights 2x4, communicators per edge", 357, 407},
  {"1F1B with two frozen stages 4x6, communicators per pipeline", 263, 325},
  {"1F1B with two frozen stages 4x6, communicators per pair", 286, 348},
  {"1F1B with two frozen stages 4x6, communicators per edge", 286, 364}};

using counts = std::map<std::string, std::uint64_t>;

//! What steps have called beyond some that came before.
counts without(counts all, counts const& before) {
  for (auto const& [function, times] : before)
    all[function] -= times;
  return all;
}

struct step_calls {
  counts one;  //!< the fifth step
  counts five; //!< that and the four before: a rank may ask more in one step and less in the next
};

//! @param run runs so many steps.
template <class Run>
step_calls of_steps(standin::order execution, Run run) {
  counts after[6];
  for (int const steps : {0, 4, 5}) {
    standin::configure({.execution = execution});
    run(steps);
    CHECK(standin::summary() == "");
    after[steps] = standin::calls();
  }
  return {without(after[5], after[4]), without(after[5], after[0])};
}

// Waiting is asking again and again, so what asks has no total.
constexpr char const* asking[] = {"cudaEventQuery", "cudaGetLastError", "ncclCommGetAsyncError"};

std::uint64_t that_do_something(counts of) {
  std::uint64_t sum = 0;
  for (char const* const function : asking)
    of.erase(function);
  for (auto const& [function, times] : of)
    sum += times;
  return sum;
}

//! Questions to events that were answered with yes. The error of each no is cleared, and a stage
//! asks for that of each launch of its own.
std::uint64_t answered(counts of) {
  return of["cudaEventQuery"] + of["cudaLaunchKernel"] - of["cudaGetLastError"];
}

//! Passes and groups have one, and every item that another one waits for.
std::uint64_t events_of(pipelining::plan const& work) {
  auto const view = work;
  std::uint64_t events = 0;
  for (int device = 0; device < view.over.extents.devices; ++device) {
    auto const steps = view.program_of(device);
    std::vector<bool> has(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!steps[i].joins)
        has[i] = true;
      for (int const wait : view.waits_of(steps[i]))
        has[static_cast<std::size_t>(wait)] = true;
    }
    events += static_cast<std::uint64_t>(std::count(has.begin(), has.end(), true));
  }
  return events;
}

} // namespace

TEST_CASE("an eager step makes as many calls as it ever did at most") {
  std::size_t plans = 0;
  for (named_plan const& plan : test_plans()) {
    CAPTURE(plan.name);
    REQUIRE(plans < std::size(eager_totals));
    totals_of_plan const& most = eager_totals[plans++];
    REQUIRE(plan.name == most.plan);
    auto const ranks = static_cast<std::uint64_t>(plan.work.over.extents.devices);
    for (auto const execution : {standin::order::lazy, standin::order::eager})
      for (int const run_ahead : {16, 64}) {
        CAPTURE(run_ahead);
        step_calls const over_nccl = of_steps(execution, [&](int steps) {
          (void)run_on_ranks({.work = plan.work, .run_ahead = run_ahead, .steps = steps});
        });
        CHECK(that_do_something(over_nccl.one) == most.ranks);
        // No event that has said yes is asked again; the last one is the end of the step.
        CHECK(answered(over_nccl.five) <= 5 * (events_of(plan.work) + ranks));
        step_calls const on_streams = of_steps(execution, [&](int steps) {
          (void)run_on_streams({.work = plan.work, .run_ahead = run_ahead, .steps = steps});
        });
        CHECK(that_do_something(on_streams.one) == most.streams);
        CHECK(answered(on_streams.five) <= 5 * (events_of(plan.work) + 1));
      }
  }
  CHECK(plans == std::size(eager_totals));
}

TEST_CASE("a step that is a graph is one launch and one event, whatever is in it") {
  for (named_plan const& plan : test_plans()) {
    CAPTURE(plan.name);
    auto const ranks = static_cast<std::uint64_t>(plan.work.over.extents.devices);
    for (auto const execution : {standin::order::lazy, standin::order::eager}) {
      step_calls over_nccl = of_steps(execution, [&](int steps) {
        (void)run_on_ranks({.work = plan.work, .graph = true, .steps = steps});
      });
      CHECK(over_nccl.one["cudaGraphLaunch"] == ranks);
      CHECK(over_nccl.one["cudaEventRecord"] == ranks);
      CHECK(that_do_something(over_nccl.one) == 3 * ranks); // and makes its GPU current
      CHECK(answered(over_nccl.five) <= 5 * (events_of(plan.work) + ranks));
      step_calls on_streams = of_steps(execution, [&](int steps) {
        (void)run_on_streams({.work = plan.work, .graph = true, .steps = steps});
      });
      CHECK(that_do_something(on_streams.one) == 2);
      CHECK(answered(on_streams.five) <= 5 * (events_of(plan.work) + 1));
    }
  }
}
