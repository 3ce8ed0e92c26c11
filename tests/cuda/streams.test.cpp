// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The executor for streams, compiled by nvcc as users compile it, on the stand-in.
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/plan/item.hpp>
#include <pipe/planner/model/measured.hpp>
#include <pipe/run/between_steps.hpp>
#include <pipe/run/error.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/view/plan_tables.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <simulators/cuda/standin.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <tests/cuda/schedules.hpp>
#include <tests/cuda/streams.hpp>
#include <vector>

namespace pp = pipelining;

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
  std::vector<int> gpus(static_cast<std::size_t>(work.over.extents.devices));
  std::iota(gpus.begin(), gpus.end(), 0);
  return gpus;
}

//! Streams have no communicators, so policies make little difference.
std::vector<named_plan> test_plans_of_one_policy() {
  std::vector<named_plan> plans = test_plans();
  std::size_t at = 0;
  std::erase_if(plans, [&](named_plan const&) { return at++ % 3 != 1; });
  return plans;
}

//! All passes of the plan, in its order, none before what it waits for.
void check_times(pp::plan const& work, pp::timetable_view step) {
  pp::dynamic_timetable const order =
    pp::detail::trace_of(work, [](int, std::size_t, bool) { return 0; });
  CHECK(
    std::equal(order.passes.begin(), order.passes.end(), step.passes, step.passes + step.size()));
  std::vector<double> ends(static_cast<std::size_t>(step.over.pass_indices()), -1);
  double longest = 0;
  for (int i = 0; i < step.size(); ++i) {
    ends[static_cast<std::size_t>(pp::detail::pass_index(step.over, step.passes[i]))] =
      step.ends[i];
    longest = std::max(longest, step.ends[i] - step.starts[i]);
  }
  CHECK(longest > 0);
  int wrong = 0;
  for (int row = 0; row < step.rows(); ++row)
    for (int i = step.offsets[row]; i < step.offsets[row + 1]; ++i) {
      double ready = i > step.offsets[row] ? step.ends[i - 1] : 0;
      pp::detail::dependency_list const needed(step.over, step.passes[i]);
      for (int k = 0; k < needed.count; ++k)
        ready = std::max(ready, ends[static_cast<std::size_t>(needed.index(k))]);
      wrong += step.starts[i] < ready - 1e-6 || step.ends[i] < step.starts[i] ? 1 : 0;
    }
  CHECK(wrong == 0);
}

} // namespace

TEST_CASE("streams compute what one device computes, eagerly and as a graph, in every order") {
  for (named_plan const& plan : plans_with_shards())
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
      {.work = plans[0].work, .graph = graph, .guarded = true, .overrunning_stage = 1, .steps = 2});
    CHECK(result.failure.find("cuda: a pass of device 1 has written beyond slot ") == 0);
    CHECK(result.failure.find(" of class activation, first at byte 12; these had it: the forward "
                              "of stage 1, microbatch ") != std::string::npos);
    standin::configure({});
    CHECK(
      run_on_streams({.work = plans[0].work, .graph = graph, .overrunning_stage = 1, .steps = 2})
        .failure.empty());
  }
}

TEST_CASE("passes have the times of their events, eagerly and as a graph") {
  for (named_plan const& plan : test_plans_of_one_policy())
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      standin::configure({});
      auto const result = run_on_streams({.work = plan.work, .graph = graph, .timed = true});
      CHECK(result.failure == "");
      check_equal(result, plan.expected, 3);
      REQUIRE(result.traces.size() == 3);
      for (pp::dynamic_timetable const& step : result.traces)
        check_times(plan.work, step);
      standin::report_leaks();
      CHECK(standin::summary() == "");
      std::vector<pp::timetable_view> const steps(result.traces.begin(), result.traces.end());
      pp::cost_table const fitted = pp::costs_of(steps);
      for (pp::pass const& what : result.traces.front().passes)
        CHECK(fitted.duration(what) >= 0);
      if (!graph)
        continue; // else the host is late with launches, as kernels of 10 us are short
      // The modelled machine: 10 us for a kernel, 5 us for a message, of which several may wait for
      // each other.
      pp::cost_table const of_graph = pp::costs_of(std::span(steps).subspan(1));
      CHECK(of_graph.duration(steps.front().passes[0]) == doctest::Approx(10e-6).epsilon(0.01));
      double least = 1;
      for (pp::detail::measured_link const& link : pp::fit_links(
             pp::message_samples(std::span(steps).subspan(1), [](pp::pass const&) { return 0; })))
        least = std::min(least, link.latency);
      CHECK(least == doctest::Approx(5e-6).epsilon(0.02));
    }
}

TEST_CASE("events for times are made only where they are asked for, and not again") {
  for (bool const graph : {false, true}) {
    named_plan const plan = test_plans().front();
    standin::configure({});
    auto const plain = run_on_streams({.work = plan.work, .graph = graph, .freeze_after = 2});
    standin::configure({});
    auto const timed =
      run_on_streams({.work = plan.work, .graph = graph, .freeze_after = 2, .timed = true});
    CHECK(timed.findings == "");
    CHECK(timed.calls > plain.calls);
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
      CHECK(result.failure.find("cuda: device 1 failed when it was to run the ") == 0);
      CHECK(result.failure.find("forward of stage 1, microbatch 1") != std::string::npos);
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
  CHECK(!standin::found(standin::finding::deadlock));
}

TEST_CASE("devices may be GPUs in any order, with access to each other where they have it") {
  for (named_plan const& plan : test_plans()) {
    if (plan.work.over.extents.devices != 2)
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
  CHECK(!standin::found(standin::finding::deadlock));
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

TEST_CASE("a pass that never ends and a stage that throws end the step with a full queue") {
  struct queue_case {
    int depth;
    int run_ahead;
  };
  for (queue_case const& queue : {queue_case{16, 2}, queue_case{128, 16}, queue_case{1024, 128}}) {
    std::vector<named_plan> plans;
    add_plans<pipelining::OneFOneB>(plans, "1F1B", 2, 6 + queue.depth / 9);
    for (named_plan const& plan : plans)
      for (bool const throws : {false, true}) {
        CAPTURE(plan.name);
        CAPTURE(throws);
        streams_case work{.work = plan.work,
                          .run_ahead = queue.run_ahead,
                          .steps = 1,
                          .gpus = {0, 1},
                          .deadline_ns = 50'000'000};
        work.failing_stage = throws ? 1 : -1;
        standin::configure({.launch_depth = queue.depth});
        if (!throws)
          standin::configure(
            {.launch_depth = queue.depth,
             .faults = {{.function = "cudaLaunchKernel", .action = standin::fault_action::stall}}});
        auto const result = run_on_streams(work);
        CAPTURE(result.failure);
        CHECK(!standin::found(standin::finding::deadlock));
        CHECK(standin::clock::now() < standin::clock::time_point(std::chrono::milliseconds(70)));
        if (throws) {
          CHECK(result.nested == "loss is not a number");
          continue;
        }
        CHECK(result.failure.find("cuda: the iteration has not ended before its deadline\n  device "
                                  "0 has not ended item 0 of ") == 0);
        // The host has stopped long before the end of the iteration.
        auto const launches = standin::calls_of("cudaLaunchKernel");
        CHECK(launches <= static_cast<std::uint64_t>(2 * queue.run_ahead + 2));
      }
  }
}

TEST_CASE("a graph that its GPU never begins is left behind on streams, and one of which it takes "
          "no more") {
  std::vector<named_plan> plans;
  add_plans<pipelining::OneFOneB>(plans, "1F1B", 2, 6);
  for (bool const spread : {false, true})
    for (char const* const stalled : {"cudaGraphLaunch", "cudaEventRecord"}) {
      CAPTURE(spread);
      CAPTURE(std::string(stalled));
      streams_case const work{.work = plans[0].work,
                              .graph = true,
                              .steps = 2,
                              .gpus = spread ? one_gpu_each(plans[0].work) : std::vector<int>{},
                              .deadline_ns = 5'000'000};
      standin::configure({.launch_depth = 16});
      CHECK(run_on_streams(work).failure == "");
      // The last event is the one after the graph.
      auto const records = standin::calls_of("cudaEventRecord");
      bool const launch = stalled == std::string("cudaGraphLaunch");
      standin::configure({.launch_depth = 16,
                          .faults = {{.function = stalled,
                                      .call = launch ? 1 : records,
                                      .action = standin::fault_action::stall}}});
      streams_result result;
      // A thread that is abandoned ends with its process, as which a rank counts.
      auto const outcomes = standin::run_ranks(1, [&](int) { result = run_on_streams(work); });
      CHECK(!outcomes[0].threw);
      CHECK(!standin::found(standin::finding::deadlock));
      CAPTURE(result.failure);
      CHECK(result.failure ==
            std::string("cuda: the iteration has not ended before its deadline\n") +
              (launch ? "  the launch of its graph has not returned: the GPU has "
                        "not begun it, or takes no more of it"
                      : "  all devices have ended all items"));
      CHECK(result.last_failure == result.failure);
    }
}

TEST_CASE("the host may run ahead of streams by any number of items") {
  for (named_plan const& plan : test_plans_of_one_policy())
    for (int const run_ahead : {1, 3, 0})
      for (bool const spread : {false, true}) {
        CAPTURE(plan.name);
        CAPTURE(run_ahead);
        standin::configure({.execution = standin::order::random, .seed = 6});
        auto const result =
          run_on_streams({.work = plan.work,
                          .run_ahead = run_ahead,
                          .steps = 2,
                          .gpus = spread ? one_gpu_each(plan.work) : std::vector<int>{}});
        CHECK(result.failure == "");
        check_equal(result, plan.expected, 2);
        CHECK(standin::summary() == "");
      }
}

TEST_CASE("the checked mode of streams knows what was overrun: either end, activation or output") {
  named_plan const plan = test_plans()[4];
  for (bool const graph : {false, true})
    for (bool const spread : {false, true})
      for (bool const output : {false, true})
        for (int const by : {0, 12, -4, -64}) {
          CAPTURE(graph);
          CAPTURE(output);
          CAPTURE(by);
          streams_case work{.work = plan.work,
                            .graph = graph,
                            .guarded = true,
                            .overrunning_stage = 0,
                            .overrun_by = by,
                            .overruns_output = output,
                            .steps = 2};
          if (spread)
            work.gpus = {0, 1};
          standin::configure({});
          auto const result = run_on_streams(work);
          CAPTURE(result.failure);
          CHECK(result.failure.find(std::string("cuda: a pass of device 0 has written ") +
                                    (by < 0 ? "in front of" : "beyond") + " slot ") == 0);
          // A message of 24 bytes, and an activation as long as its slot.
          int const end = output ? 24 : 8;
          CHECK(result.failure.find(std::string(" of class ") + (output ? "output" : "activation") +
                                    ", first at byte " + std::to_string(by < 0 ? by : end + by) +
                                    "; these had it: ") != std::string::npos);
          CHECK(result.failure.find("the forward of stage 0, microbatch 1") != std::string::npos);
        }
}

TEST_CASE("what a stage has not written is poison in the checked mode, and an old value without") {
  for (named_plan const& plan : test_plans_of_one_policy())
    for (bool const graph : {false, true})
      for (bool const guarded : {false, true}) {
        if (keeps_nothing(plan))
          continue;
        CAPTURE(plan.name);
        CAPTURE(graph);
        CAPTURE(guarded);
        standin::configure({});
        auto const result = run_on_streams(
          {.work = plan.work, .graph = graph, .guarded = guarded, .leaving_stage = 1, .steps = 2});
        CHECK(result.failure == "");
        CHECK((result.seen == ~std::uint64_t{0}) == guarded);
      }
}

TEST_CASE("an output that is not written to its end is found in the checked mode") {
  for (named_plan const& plan : test_plans_of_one_policy())
    for (bool const graph : {false, true})
      for (bool const guarded : {false, true})
        for (int const left : {4, 16, 24}) {
          CAPTURE(plan.name);
          CAPTURE(graph);
          CAPTURE(guarded);
          CAPTURE(left);
          standin::configure({});
          auto const result = run_on_streams({.work = plan.work,
                                              .graph = graph,
                                              .guarded = guarded,
                                              .leaving_stage = 0,
                                              .leaves_bytes = left,
                                              .steps = 2});
          bool const found = guarded && left >= 16;
          CHECK((result.failure.find("has left the last 16 bytes of its output of 24 bytes "
                                     "unwritten, all of which the next stage reads") !=
                 std::string::npos) == found);
          CHECK((result.failure.find("cuda: the ") == 0) == found);
          CHECK((result.failure.find("forward of stage 0, microbatch 1") != std::string::npos) ==
                found);
        }
}

TEST_CASE("copies to the host and back go beside the passes: the host waits for none of them") {
  for (named_plan const& plan : test_plans()) {
    bool const copies = plan.name.find(" with copies ") != std::string::npos;
    CAPTURE(plan.name);
    auto const& items = plan.work.items;
    auto const count =
      std::count_if(items.begin(), items.end(), [&plan](pipelining::item const& step) {
        return pipelining::detail::is_copy(plan.work.over.declared, step);
      });
    CHECK((count > 0) == copies);
    std::uint64_t done[2]{};
    for (int const steps : {2, 3}) {
      standin::configure({});
      CHECK(run_on_streams({.work = plan.work, .steps = steps}).failure == "");
      CHECK(standin::counters().waiting_copies == 0);
      done[steps - 2] = standin::calls_of("cudaMemcpyAsync");
    }
    auto const messages =
      static_cast<std::uint64_t>(pipelining::detail::count_calls(plan.work).messages);
    CHECK(done[1] - done[0] == messages / 2 + static_cast<std::uint64_t>(count));
    // A device pins what its plan keeps on the host, once.
    CHECK(standin::calls_of("cudaMallocHost") ==
          (copies ? static_cast<std::uint64_t>(std::count_if(plan.work.host_bytes.begin(),
                                                             plan.work.host_bytes.end(),
                                                             [](auto bytes) { return bytes > 0; }))
                  : 0));
  }
}

TEST_CASE("a copy that stalls or fails is told with device and item") {
  std::vector<named_plan> plans;
  add_offloaded<pipelining::GPipe>(plans, "GPipe", 1, 4);
  for (bool const graph : {false, true})
    for (bool const stalls : {false, true}) {
      CAPTURE(graph);
      CAPTURE(stalls);
      standin::configure(
        {.faults = {{.function = "cudaMemcpyAsync",
                     .call = 1,
                     .action = stalls ? standin::fault_action::stall
                                      : standin::fault_action::asynchronous_error}}});
      auto const result = run_on_streams(
        {.work = plans[0].work, .graph = graph, .steps = 2, .deadline_ns = 5'000'000});
      CAPTURE(result.failure);
      CHECK(result.failure.find(stalls ? "cuda: the iteration has not ended before its deadline\n"
                                       : "cuda: the iteration has failed: ") == 0);
      CHECK(result.failure.find(": run the copy_out of stage 0, microbatch 0") !=
            std::string::npos);
      CHECK(!standin::found(standin::finding::deadlock));
    }
}
