// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Steps over NCCL that end although something in them never does: full queues of launches, passes
// and aborts that never return, communicators of the program.
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <tests/cuda/nccl.hpp>
#include <tests/cuda/schedules.hpp>
#include <tuple>
#include <vector>

namespace {

using namespace std::chrono_literals;
using standin::fault_action;

constexpr std::chrono::milliseconds deadline = 50ms;
constexpr std::chrono::milliseconds abort_deadline = 15ms;

std::vector<named_plan> plans_of(int microbatches) {
  std::vector<named_plan> plans;
  add_plans<pipelining::OneFOneB>(plans, "1F1B", 3, microbatches);
  return plans;
}

bool everything() {
  return std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
}

bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

nccl_case two_steps(named_plan const& plan, bool graph) {
  return {.work = plan.work,
          .graph = graph,
          .steps = 2,
          .deadline = deadline,
          .abort_deadline = abort_deadline,
          .end_together = false};
}

//! All ranks but one end in time, with a report; nobody waits for ever.
void check_ended(nccl_result const& result, std::size_t dead) {
  CHECK(!standin::found(standin::finding::deadlock));
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    rank_report const& report = result.ranks[rank];
    CAPTURE(rank);
    CAPTURE(report.failure);
    if (rank == dead)
      continue;
    CHECK(report.ended);
    CHECK(has(report.failure, "\n  rank " + std::to_string(rank) + ' '));
    CHECK(report.end < standin::clock::time_point(2 * deadline + 3 * abort_deadline + 5ms));
  }
}

constexpr std::size_t nobody = 99;

struct queue_case {
  int depth;
  int run_ahead;
  int microbatches;
};

} // namespace

TEST_CASE("a dead peer, an endless pass or a stage that throws ends the step with a full queue of "
          "launches") {
  for (queue_case const& queue :
       {queue_case{16, 2, 6}, queue_case{128, 16, 14}, queue_case{1024, 128, 160}})
    for (named_plan const& plan : plans_of(queue.microbatches))
      for (bool const graph : {false, true})
        for (int const deed : {0, 1, 2}) {
          // Of the longest queue, which takes long: a stage that throws where one communicator has
          // all messages, a graph, and the rest where PIPELINING_TEST_EVERYTHING asks for it.
          bool const pair = has(plan.name, "per pair");
          bool const chosen = pair ? deed != 2 && (!graph || deed == 0)
                                   : has(plan.name, "per pipeline") && deed == 2 && !graph;
          if (queue.depth == 1024 && !chosen && !everything())
            continue;
          CAPTURE(plan.name);
          CAPTURE(queue.depth);
          CAPTURE(graph);
          CAPTURE(deed);
          nccl_case work = two_steps(plan, graph);
          work.run_ahead = queue.run_ahead;
          standin::configuration how{.launch_depth = queue.depth};
          auto const call = static_cast<std::uint64_t>(queue.microbatches);
          if (deed == 2)
            work.failing_stage = 1;
          else
            how.faults = {{.function = "cudaLaunchKernel",
                           .call = call,
                           .rank = 1,
                           .action = deed == 0 ? fault_action::death : fault_action::stall}};
          standin::configure(how);
          check_ended(run_on_ranks(work), deed == 0 ? 1 : nobody);
        }
}

TEST_CASE("without a fault no order comes near the deadline, nor finds anything") {
  for (named_plan const& plan : plans_of(8))
    for (bool const graph : {false, true})
      for (std::size_t const buffered : {0U, 1U << 20})
        for (std::uint64_t seed = 0; seed < 12; ++seed) {
          CAPTURE(plan.name);
          CAPTURE(graph);
          CAPTURE(buffered);
          CAPTURE(seed);
          standin::configure(
            {.execution = standin::order::random, .seed = seed, .buffered_bytes = buffered});
          auto const result = run_on_ranks(two_steps(plan, graph));
          CHECK(standin::summary() == "");
          for (rank_report const& rank : result.ranks) {
            CHECK(rank.failure == "");
            CHECK(rank.end < standin::clock::time_point(5ms));
          }
        }
}

TEST_CASE("a rank that sits in a launch is freed soon after the deadline") {
  for (named_plan const& plan : plans_of(8))
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      nccl_case work = two_steps(plan, graph);
      work.run_ahead = 100'000;
      standin::configure({.launch_depth = 16,
                          .faults = {{.function = graph ? "cudaGraphLaunch" : "cudaLaunchKernel",
                                      .call = graph ? 1U : 5U,
                                      .rank = 1,
                                      .action = fault_action::death}}});
      auto const result = run_on_ranks(work);
      check_ended(result, 1);
      for (std::size_t const rank : {0U, 2U}) {
        CAPTURE(result.ranks[rank].failure);
        CHECK(!has(result.ranks[rank].failure, "still busy"));
        CHECK(result.ranks[rank].failed_device == 1);
      }
    }
}

TEST_CASE("a pass that never ends is left behind, and the step throws with its report") {
  for (named_plan const& plan : plans_of(4)) {
    CAPTURE(plan.name);
    standin::configure(
      {.faults = {
         {.function = "cudaLaunchKernel", .call = 3, .rank = 1, .action = fault_action::stall}}});
    auto const result = run_on_ranks(two_steps(plan, false));
    check_ended(result, nobody);
    CHECK(has(result.ranks[1].failure, "\n  its streams are still busy; end the process"));
    CHECK(has(result.ranks[0].failure, "\n  rank 1 "));
    CHECK(result.ranks[0].failed_device == 1);
  }
}

TEST_CASE("a graph that its GPU never begins is left behind, though its launch never returns") {
  for (named_plan const& plan : plans_of(2))
    for (int rank = 0; rank < 3; ++rank) {
      CAPTURE(plan.name);
      CAPTURE(rank);
      standin::configure(
        {.launch_depth = 16,
         .faults = {{.function = "cudaGraphLaunch", .rank = rank, .action = fault_action::stall}}});
      auto const result = run_on_ranks(two_steps(plan, true));
      check_ended(result, nobody);
      for (rank_report const& report : result.ranks) {
        CAPTURE(report.failure);
        bool const own = &report == &result.ranks[static_cast<std::size_t>(rank)];
        CHECK(has(report.failure, "\n  its streams are still busy; end the process") == own);
        CHECK(has(report.failure, "\n  rank " + std::to_string(rank) + ' '));
      }
    }
}

TEST_CASE("ranks in launches of their graphs hear of a failure at once, and their GPUs are freed") {
  for (named_plan const& plan : plans_of(8)) {
    CAPTURE(plan.name);
    standin::configure(
      {.launch_depth = 16, .faults = {{.function = "cudaGraphLaunch", .call = 1, .rank = 1}}});
    for (rank_report const& report : run_on_ranks(two_steps(plan, true)).ranks) {
      CAPTURE(report.failure);
      CHECK(report.failure.find("nccl: rank 1 failed: cuda: cudaGraphLaunch failed at ") == 0);
      CHECK(report.failed_device == 1);
      CHECK(!has(report.failure, "still busy"));
      CHECK(report.end < standin::clock::time_point(deadline));
    }
    CHECK(!standin::found(standin::finding::deadlock));
  }
}

TEST_CASE("an abort that never returns is left behind") {
  for (char const* const function : {"ncclCommAbort", "ncclGroupEnd"}) {
    named_plan const plan = plans_of(4)[1];
    CAPTURE(function);
    nccl_case work = two_steps(plan, false);
    work.failing_stage = 1;
    standin::configure({});
    (void)run_on_ranks(work);
    // The end of the group of aborts is the last one that a rank calls.
    std::uint64_t const last = function == std::string("ncclCommAbort") ? 1 : 0;
    std::vector<standin::fault> faults;
    for (std::uint64_t call = 1; last == 0 && call <= standin::calls_of(function); ++call) {
      standin::configure(
        {.faults = {
           {.function = function, .call = call, .rank = 0, .action = fault_action::stall}}});
      auto const result = run_on_ranks(work);
      if (has(result.ranks[0].failure, "still busy")) {
        check_ended(result, nobody);
        faults.push_back({.call = call});
      }
    }
    if (last == 0) {
      CHECK(!faults.empty());
      continue;
    }
    standin::configure(
      {.faults = {{.function = function, .call = 1, .rank = 0, .action = fault_action::stall}}});
    auto const result = run_on_ranks(work);
    check_ended(result, nobody);
    CHECK(has(result.ranks[0].failure, "nccl: rank 1 failed: loss is not a number"));
    CHECK(has(result.ranks[0].failure, "\n  its streams are still busy; end the process"));
    CHECK(!has(result.ranks[2].failure, "still busy"));
  }
}

TEST_CASE("communicators of the program are aborted together with the runner's") {
  for (named_plan const& plan : plans_of(3))
    for (bool const registered : {true, false}) {
      CAPTURE(plan.name);
      CAPTURE(registered);
      nccl_case work = two_steps(plan, false);
      work.all_reduce = true;
      work.registered = registered;
      standin::configure({});
      auto const whole = run_on_ranks(work);
      CHECK(standin::summary() == "");
      for (rank_report const& rank : whole.ranks)
        CHECK(rank.failure == "");
      // Rank 1 dies before it joins the others' reduction, after which their passes stand.
      standin::configure(
        {.faults = {
           {.function = "ncclAllReduce", .call = 2, .rank = 1, .action = fault_action::death}}});
      auto const result = run_on_ranks(work);
      check_ended(result, 1);
      CHECK(has(result.ranks[0].failure, "still busy") == !registered);
    }
}

namespace {

//! The per-edge plan of two devices, with two lanes each.
named_plan two_lanes() {
  std::vector<named_plan> plans;
  add_plans<pipelining::OneFOneB>(plans, "1F1B", 2, 3);
  REQUIRE(plans[2].work.lanes == std::vector{2, 2});
  return plans[2];
}

//! How many streams two ranks make with room for so many blocks on their GPUs.
std::uint64_t streams_of(nccl_case work, int processors) {
  work.steps = 1;
  work.end_together = false;
  standin::configure({.processors = processors});
  for (rank_report const& rank : run_on_ranks(work).ranks)
    CHECK(rank.failure == "");
  CHECK(standin::summary() == "");
  return standin::calls_of("cudaStreamCreateWithPriority");
}

} // namespace

TEST_CASE("registered communicators count where lanes are to fit on the GPU") {
  nccl_case const work{.work = two_lanes().work, .all_reduce = true};
  nccl_case one = work;
  one.one_message_stream = true;
  nccl_case unknown = work;
  unknown.registered = false;
  nccl_case twice = work;
  twice.registered_twice = 5;
  // Two lanes of 8 blocks, a communicator of 4, and one with 8 as the power of two above 5.
  std::uint64_t const lanes = streams_of(unknown, 16);
  std::uint64_t const few = streams_of(one, 16);
  CHECK(lanes == few + 2);
  CHECK(streams_of(unknown, 15) == few);
  CHECK(streams_of(work, 20) == lanes);
  CHECK(streams_of(work, 19) == few);
  CHECK(streams_of(twice, 28) == lanes);
  CHECK(streams_of(twice, 27) == few);
}

TEST_CASE(
  "registered communicators that leave no room for one lane are refused, with the numbers") {
  for (bool const graph : {false, true})
    for (int const more : {0, 5}) {
      CAPTURE(graph);
      CAPTURE(more);
      nccl_case const work{.work = two_lanes().work,
                           .graph = graph,
                           .end_together = false,
                           .all_reduce = true,
                           .registered_twice = more};
      int const needed = 8 + 4 + (more > 0 ? 8 : 0);
      standin::configure({.processors = needed});
      for (rank_report const& rank : run_on_ranks(work).ranks)
        CHECK(rank.failure == "");
      standin::configure({.processors = needed - 1});
      for (rank_report const& rank : run_on_ranks(work).ranks) {
        CAPTURE(rank.failure);
        CHECK(has(rank.failure,
                  "kernels of the " + std::to_string(more > 0 ? 2 : 1) +
                    " registered communicators may take " + std::to_string(needed - 8) +
                    " SMs and one of the runner 8, but GPU "));
        CHECK(has(rank.failure, " has " + std::to_string(needed - 1) + ", so ranks could wait"));
        CHECK(has(rank.failure, "NCCL_LAUNCH_ORDER_IMPLICIT=1"));
      }
      CHECK(!standin::found(standin::finding::deadlock));
      // The program vouches for one order.
      setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
      standin::configure({.processors = needed - 1});
      for (rank_report const& rank : run_on_ranks(work).ranks)
        CHECK(rank.failure == "");
      unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    }
}

TEST_CASE("with registered communicators a step of another thread ends the run") {
  for (bool const registered : {true, false})
    for (int const step : {0, 1}) {
      CAPTURE(registered);
      CAPTURE(step);
      nccl_case work = two_steps(plans_of(3)[1], false);
      work.all_reduce = true;
      work.registered = registered;
      work.moved_step = step;
      standin::configure({});
      auto const result = run_on_ranks(work);
      for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
        std::string const& text = result.ranks[rank].failure;
        CAPTURE(text);
        if (!registered) {
          CHECK(text == "");
          continue;
        }
        CHECK(text.find("nccl: rank 1 failed: step() was called by another thread than that of the "
                        "first step; ") == 0);
        CHECK(has(text, "\n  rank 1 was to begin a step in another thread than that of its first"));
        CHECK(result.ranks[rank].failed_device == 1);
      }
      CHECK(!standin::found(standin::finding::deadlock));
    }
}

TEST_CASE("an environment in which calls of NCCL block is refused") {
  nccl_case const work = two_steps(plans_of(3)[1], false);
  struct choice {
    char const* value;
    bool refused;
  };
  for (choice const& each :
       {choice{"1", true}, choice{"0x1", true}, choice{"0", false}, choice{"2", false}}) {
    CAPTURE(std::string(each.value));
    setenv("NCCL_COMM_BLOCKING", each.value, 1);
    standin::configure({});
    auto const result = run_on_ranks(work);
    unsetenv("NCCL_COMM_BLOCKING");
    for (rank_report const& rank : result.ranks) {
      CAPTURE(rank.failure);
      if (each.refused)
        CHECK(rank.failure == "nccl: NCCL_COMM_BLOCKING=1 lets calls of NCCL wait for other ranks "
                              "without a deadline; unset it");
      else
        CHECK(rank.failure == "");
    }
    CHECK(!standin::found(standin::finding::deadlock));
  }
}

TEST_CASE(
  "the host may run ahead by any number of items, and waits for nothing that waits for it") {
  for (named_plan const& plan : test_plans())
    for (int const run_ahead : {1, 2, 5}) {
      CAPTURE(plan.name);
      CAPTURE(run_ahead);
      standin::configure({});
      auto const result = run_on_ranks({.work = plan.work, .run_ahead = run_ahead, .steps = 2});
      CHECK(standin::summary() == "");
      for (rank_report const& rank : result.ranks)
        CHECK(rank.failure == "");
      CHECK(result.losses == 2 * plan.expected.losses);
    }
}

TEST_CASE("a rank uses its own GPU only, and makes it current once in a step") {
  for (bool const graph : {false, true}) {
    named_plan const plan = plans_of(6)[1];
    std::uint64_t devices[2]{};
    for (int const steps : {3, 4}) {
      standin::configure({});
      (void)run_on_ranks({.work = plan.work, .graph = graph, .steps = steps});
      devices[steps - 3] = standin::calls_of("cudaSetDevice") + standin::calls_of("cudaGetDevice");
      for (int rank = 0; rank < 3; ++rank)
        CHECK(standin::contexts_of_rank(rank) == std::vector{rank});
    }
    CHECK(devices[1] - devices[0] == 3);
  }
}

TEST_CASE("a rank ends the run for a reason of its own, and all ranks report that") {
  for (named_plan const& plan : plans_of(3))
    for (bool const graph : {false, true})
      for (int const ending : {0, 1, 2})
        for (bool const registered : {false, true}) {
          CAPTURE(plan.name);
          CAPTURE(graph);
          CAPTURE(ending);
          standin::configure({});
          auto const result = run_on_ranks({.work = plan.work,
                                            .graph = graph,
                                            .ending_rank = ending,
                                            .end_together = false,
                                            .all_reduce = registered});
          for (rank_report const& rank : result.ranks) {
            CAPTURE(rank.failure);
            std::string const name = "rank " + std::to_string(ending);
            CHECK(rank.failure.find("nccl: " + name + " has lost its data\n  " + name +
                                    " was between two steps") == 0);
            CHECK(rank.failed_device == ending);
            CHECK(rank.nested == "");
          }
          CHECK(!standin::found(standin::finding::deadlock));
          CHECK(!standin::found(standin::finding::misuse));
          standin::report_leaks();
          CHECK(!has(standin::summary(), "ommunicator"));
        }
}

TEST_CASE("a report names ranks of the whole run where they have other numbers there") {
  named_plan const plan = plans_of(3)[1];
  nccl_case work = two_steps(plan, false);
  work.failing_stage = 1;
  work.world_ranks = {1, 3, 5};
  standin::configure({});
  for (rank_report const& rank : run_on_ranks(work).ranks)
    CHECK(has(rank.failure, "\n  in the whole run: rank 0 is 1, rank 1 is 3, rank 2 is 5"));
  work.world_ranks = {1, 3};
  standin::configure({});
  CHECK(has(run_on_ranks(work).ranks[0].failure, "nccl_options::world_ranks names 2 ranks"));
}

TEST_CASE("a communicator whose group waits for room in the queue is aborted after the others") {
  int waiting = 0;
  for (named_plan const& plan : plans_of(8)) {
    // Where the queue is full just before a group: at one of these depths.
    for (int depth = 12; depth < 36; ++depth) {
      CAPTURE(plan.name);
      CAPTURE(depth);
      nccl_case work = two_steps(plan, false);
      work.run_ahead = 100'000;
      standin::configure(
        {.launch_depth = depth,
         .faults = {
           {.function = "cudaLaunchKernel", .call = 5, .rank = 1, .action = fault_action::death}}});
      auto const result = run_on_ranks(work);
      check_ended(result, 1);
      for (std::size_t const rank : {0U, 2U}) {
        CAPTURE(result.ranks[rank].failure);
        CHECK(!has(result.ranks[rank].failure, "still busy"));
        waiting += has(result.ranks[rank].failure, "a group of messages took longer");
      }
    }
  }
  CHECK(waiting > 0);
}

TEST_CASE("a rank does not close before the others have ended their last step") {
  for (named_plan const& plan : plans_of(3))
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      nccl_case work = two_steps(plan, graph);
      // What one rank has sent may lie in its buffers until the other end takes it.
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        standin::configure({.execution = standin::order::random,
                            .seed = seed,
                            .buffered_bytes = std::size_t{1} << 20});
        for (rank_report const& rank : run_on_ranks(work).ranks)
          CHECK(rank.failure == "");
        CHECK(standin::summary() == "");
      }
      // The first rank dies at its last pass, when the others have ended theirs.
      if (graph)
        continue;
      standin::configure({.execution = standin::order::eager,
                          .buffered_bytes = std::size_t{1} << 20,
                          .faults = {{.function = "cudaLaunchKernel",
                                      .call = 2 * 2 * 3,
                                      .rank = 0,
                                      .action = fault_action::death}}});
      check_ended(run_on_ranks(work), 0);
      CHECK(standin::summary() == "");
    }
}

TEST_CASE("a capture that fails ends behind all that NCCL still adds to it") {
  for (named_plan const& plan : plans_of(3))
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      CAPTURE(plan.name);
      CAPTURE(seed);
      nccl_case work = two_steps(plan, true);
      work.failing_stage = 1;
      standin::configure({.execution = standin::order::random, .seed = seed});
      check_ended(run_on_ranks(work), nobody);
      CHECK(!standin::found(standin::finding::misuse));
    }
}

TEST_CASE("a graph that cannot be freed ends the run, though its communicators wait for it") {
  std::vector<named_plan> plans;
  add_plans<pipelining::OneFOneB>(plans, "1F1B", 4, 6);
  add_plans<pipelining::VHalf>(plans, "V-Half", 3, 4);
  for (named_plan const& plan : plans)
    for (char const* const function : {"cudaGraphExecDestroy", "cudaGraphDestroy"}) {
      CAPTURE(plan.name);
      CAPTURE(std::string(function));
      nccl_case const work = two_steps(plan, true);
      standin::configure({.faults = {{.function = function, .call = 1, .rank = 1}}});
      auto const result = run_on_ranks(work);
      CHECK(!standin::found(standin::finding::deadlock));
      for (rank_report const& rank : result.ranks) {
        bool const own = &rank == &result.ranks[1];
        CAPTURE(rank.failure);
        CHECK(rank.ended);
        CHECK(rank.end < standin::clock::time_point(deadline + 3 * abort_deadline + 5ms));
        CHECK(has(rank.failure, "still busy") == own);
        // The others have closed by then, and need this rank no more.
        bool const closing = function == std::string("cudaGraphExecDestroy");
        if (closing && !own && rank.failure.empty())
          continue;
        CHECK(rank.failure.find("nccl: rank 1 ") == 0);
        CHECK(has(rank.failure, std::string(function) + " failed at "));
        CHECK(rank.failed_device == 1);
      }
    }
}

TEST_CASE("lanes go through one stream where the blocks that NCCL takes do not fit on the GPU") {
  for (named_plan const& plan : test_plans()) {
    int lanes = 0;
    for (int const each : plan.work.lanes)
      lanes = std::max(lanes, each);
    if (lanes < 3)
      continue;
    // The cap of the program, what NCCL makes of it, and what the environment says.
    for (auto const& [cap, forced, blocks] :
         std::vector<std::tuple<int, char const*, int>>{{5, nullptr, 8}, {4, "15", 16}})
      for (int const processors : {lanes * blocks, lanes * blocks - 1}) {
        CAPTURE(plan.name);
        CAPTURE(blocks);
        CAPTURE(processors);
        if (forced != nullptr)
          setenv("NCCL_MAX_CTAS", forced, 1);
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
          standin::configure({.execution = standin::order::random,
                              .seed = seed,
                              .processors = processors,
                              .blocks_take_processors = true});
          auto const result = run_on_ranks({.work = plan.work, .max_blocks = cap, .steps = 1});
          for (rank_report const& rank : result.ranks)
            CHECK(rank.failure == "");
          CHECK(result.losses == plan.expected.losses);
          CHECK(standin::summary() == "");
        }
        unsetenv("NCCL_MAX_CTAS");
      }
  }
}

TEST_CASE("over a network graphs compute the same, and end when a rank dies") {
  for (named_plan const& plan : plans_of(3)) {
    CAPTURE(plan.name);
    standin::for_each_machine(
      {.network = true}, 2, [&](standin::configuration const& how, std::string const& machine) {
        CAPTURE(machine);
        standin::configure(how);
        auto const result = run_on_ranks({.work = plan.work, .graph = true});
        for (rank_report const& rank : result.ranks)
          CHECK(rank.failure == "");
        CHECK(result.losses == 3 * plan.expected.losses);
        CHECK(standin::summary() == "");
        CHECK(standin::counters().host_functions > 0);
      });
    standin::configure(
      {.network = true,
       .faults = {
         {.function = "cudaGraphLaunch", .call = 1, .rank = 1, .action = fault_action::death}}});
    check_ended(run_on_ranks(two_steps(plan, true)), 1);
  }
}

TEST_CASE("a constructor that throws what no peer has caused ends its communicators all the same") {
  for (named_plan const& plan : plans_of(3)) {
    CAPTURE(plan.name);
    nccl_case work = two_steps(plan, false);
    work.unfit_key = "run/connected/"; // when all communicators have been made
    standin::configure({});
    auto const result = run_on_ranks(work);
    CHECK(result.ranks[1].failure == "store: no such key");
    for (int const rank : {0, 2})
      CHECK(has(result.ranks[static_cast<std::size_t>(rank)].failure, "rank 1 could not begin"));
    CHECK(!standin::found(standin::finding::deadlock));
    standin::report_leaks();
    CHECK(!has(standin::summary(), "ommunicator"));
  }
}
