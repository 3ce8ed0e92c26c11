// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The executor for streams, compiled by nvcc as users compile it, on the stand-in.
#include <pipe/run/error.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tests/cuda/schedules.hpp>
#include <tests/cuda/streams.hpp>
#include <tests/simulators/cuda/standin.hpp>
#include <vector>

namespace {

void check_equal(streams_result const& result,
                 support::sequential_result const& expected,
                 int steps) {
  auto const times = static_cast<std::uint64_t>(steps);
  for (std::size_t s = 0; s < expected.gradients.size(); ++s)
    CHECK(result.gradients[s] == times * expected.gradients[s]);
  CHECK(result.losses == times * expected.losses);
}

std::vector<standin::configuration> orders() {
  return {{.execution = standin::order::lazy},
          {.execution = standin::order::eager},
          {.execution = standin::order::random, .seed = 11},
          {.execution = standin::order::random, .seed = 12}};
}

std::vector<int> one_gpu_each(pipelining::plan const& work) {
  std::vector<int> gpus(static_cast<std::size_t>(work.extents.devices));
  std::iota(gpus.begin(), gpus.end(), 0);
  return gpus;
}

} // namespace

TEST_CASE("streams compute what one device computes, eagerly and as a graph, in every order") {
  for (named_plan const& plan : test_plans())
    for (standin::configuration const& how : orders())
      for (bool const graph : {false, true}) {
        CAPTURE(plan.name);
        CAPTURE(static_cast<int>(how.execution));
        CAPTURE(graph);
        standin::configure(how);
        check_equal(
          run_on_streams({.work = plan.work, .graph = graph, .guarded = true}), plan.expected, 3);
        CHECK(standin::summary() == "");
        standin::configure(how);
        check_equal(run_on_streams({.work = plan.work, .graph = graph}), plan.expected, 3);
        CHECK(standin::summary() == "");
        CHECK(standin::counters().graph_launches == (graph ? 2 : 0));
        standin::report_leaks();
        CHECK(standin::summary() == "");
      }
}

TEST_CASE("after the warm-up nothing is set up any more") {
  for (named_plan const& plan : test_plans())
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      standin::configure({});
      CHECK(run_on_streams({.work = plan.work, .graph = graph, .freeze_after = 2}).findings == "");
    }
}

TEST_CASE("a stage that writes beyond its activation is found when the step has ended") {
  for (bool const graph : {false, true}) {
    standin::configure({});
    auto const plans = test_plans();
    auto const result = run_on_streams(
      {.work = plans[0].work, .graph = graph, .guarded = true, .overrunning_stage = 1, .steps = 1});
    CHECK(result.failure.find("cuda: a pass of device 1 has written beyond slot ") == 0);
    CHECK(result.failure.find(" of class activation, first at byte 260; these had it: the forward "
                              "of stage 1, microbatch ") != std::string::npos);
    standin::configure({});
    CHECK(
      run_on_streams({.work = plans[0].work, .graph = graph, .overrunning_stage = 1, .steps = 1})
        .failure.empty());
  }
}

TEST_CASE("devices may be several, and may share") {
  for (named_plan const& plan : test_plans())
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      standin::configure({.execution = standin::order::random, .seed = 3});
      auto gpus = one_gpu_each(plan.work);
      check_equal(
        run_on_streams({.work = plan.work, .graph = graph, .gpus = gpus}), plan.expected, 3);
      CHECK(standin::summary() == "");
      for (int& gpu : gpus)
        gpu /= 2;
      standin::configure({.execution = standin::order::random, .seed = 4});
      check_equal(
        run_on_streams({.work = plan.work, .graph = graph, .gpus = gpus}), plan.expected, 3);
      CHECK(standin::summary() == "");
    }
}

TEST_CASE("few launch queues and a short queue make no circle") {
  for (named_plan const& plan : test_plans()) {
    CAPTURE(plan.name);
    standin::configure({.launch_depth = 3, .hardware_queues = 1});
    check_equal(run_on_streams({.work = plan.work}), plan.expected, 3);
    CHECK(standin::summary() == "");
  }
}

TEST_CASE("a stage that throws ends the step; the next one starts afresh") {
  // In an eager step, and while the graph is captured.
  for (int const failing_step : {0, 1})
    for (named_plan const& plan : test_plans()) {
      CAPTURE(plan.name);
      standin::configure({.execution = standin::order::random, .seed = 5});
      auto const result = run_on_streams({.work = plan.work,
                                          .graph = true,
                                          .steps = 4,
                                          .failing_stage = 1,
                                          .failing_step = failing_step});
      CHECK(result.failure.find("cuda: device 1 failed when it was to run the forward of stage 1, "
                                "microbatch 1") == 0);
      CHECK(result.failure.find(": loss is not a number") != std::string::npos);
      CHECK(result.nested == "loss is not a number");
      CHECK(standin::summary() == "");
      check_equal(result, plan.expected, 3 - failing_step);
    }
}

TEST_CASE("a stall ends at the deadline and is told with device and pass") {
  standin::configure(
    {.faults = {
       {.function = "cudaLaunchKernel", .call = 4, .action = standin::fault_action::stall}}});
  auto const start = standin::clock::now();
  auto const plans = test_plans();
  auto const result = run_on_streams({.work = plans[0].work, .steps = 2, .deadline_ns = 5'000'000});
  CHECK(result.failure.find("cuda: the iteration has not ended before its deadline\n") == 0);
  CHECK(result.failure ==
        "cuda: the iteration has not ended before its deadline\n"
        "  device 0 has not ended item 5 of 16: send what comes of the forward of stage 0, "
        "microbatch 2 to device 1\n"
        "  device 1 has not ended item 4 of 24: run the forward of stage 1, microbatch 1\n"
        "  device 2 has not ended item 2 of 16: receive what comes of the forward of stage 1, "
        "microbatch 1 from device 1");
  CHECK(result.last_failure == "cuda: an earlier step has failed, and nothing can run after it");
  CHECK(standin::clock::now() - start < std::chrono::milliseconds(20));
}

TEST_CASE("devices may be GPUs in any order, with access to each other where they have it") {
  for (named_plan const& plan : test_plans()) {
    if (plan.work.extents.devices != 2)
      continue;
    for (std::vector<int> const& gpus : {std::vector{1, 0}, std::vector{1, 2}})
      for (bool const access : {true, false}) {
        CAPTURE(plan.name);
        CAPTURE(access);
        standin::configure({.peer_access = access});
        auto const result = run_on_streams({.work = plan.work, .gpus = gpus});
        CHECK(result.failure == "");
        check_equal(result, plan.expected, 3);
        CHECK(standin::summary() == "");
        CHECK((standin::counters().staged_copies == 0) == access);
        std::string const said = std::to_string(gpus[0]) + '-' + std::to_string(gpus[1]);
        CHECK(result.through_host == (access ? "" : gpus[0] < gpus[1] ? said : "0-1"));
        // The first GPU of CUDA is not touched where it is not asked for.
        bool const zero = gpus[1] == 0;
        CHECK((standin::contexts_of_rank(-1).front() == 0) == zero);
      }
  }
}

TEST_CASE("a failure on GPUs without access to each other says that they have none") {
  named_plan const plan = test_plans()[4];
  standin::configure(
    {.peer_access = false,
     .faults = {
       {.function = "cudaLaunchKernel", .call = 4, .action = standin::fault_action::stall}}});
  auto const result = run_on_streams({.work = plan.work, .gpus = {0, 3}, .deadline_ns = 5'000'000});
  CHECK(result.failure.find("\n  messages between GPUs 0 and 3 go through the host") !=
        std::string::npos);
}

TEST_CASE("on one GPU no pass makes it current again") {
  named_plan const plan = test_plans()[7];
  std::uint64_t calls[2]{};
  for (int const steps : {2, 3}) {
    standin::configure({});
    (void)run_on_streams({.work = plan.work, .steps = steps});
    calls[steps - 2] = standin::calls_of("cudaSetDevice") + standin::calls_of("cudaGetDevice");
  }
  CHECK(calls[1] - calls[0] == 1);
}
