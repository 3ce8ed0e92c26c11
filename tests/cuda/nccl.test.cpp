// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The executor for NCCL, compiled by nvcc as users compile it, on the stand-in.
#include <pipe/plan/calls.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tests/cuda/nccl.hpp>
#include <tests/cuda/schedules.hpp>
#include <tests/standin/standin.hpp>
#include <vector>

namespace {

void check_equal(nccl_result const& result,
                 support::sequential_result const& expected,
                 std::uint64_t times) {
  for (rank_report const& rank : result.ranks)
    CHECK(rank.failure == "");
  for (std::size_t s = 0; s < expected.gradients.size(); ++s)
    CHECK(result.gradients[s] == times * expected.gradients[s]);
  CHECK(result.losses == times * expected.losses);
}

} // namespace

TEST_CASE("ranks compute what one device computes, on every machine, eagerly and as a graph") {
  for (named_plan const& plan : test_plans())
    for (bool const graph : {false, true})
      standin::for_each_machine(
        {}, 1, [&](standin::configuration const& how, std::string const& machine) {
          CAPTURE(plan.name);
          CAPTURE(machine);
          CAPTURE(graph);
          // Kernels of several communicators fit on a GPU with room for one only if they come one
          // after the other.
          bool const narrow = how.resident_nccl_kernels == 1;
          standin::configure(how);
          check_equal(
            run_on_ranks({.work = plan.work, .graph = graph, .one_message_stream = narrow}),
            plan.expected,
            3);
          CHECK(standin::summary() == "");
          CHECK(standin::counters().graph_launches ==
                (graph ? 2U * static_cast<unsigned>(plan.work.extents.devices) : 0U));
          standin::report_leaks();
          CHECK(standin::summary() == "");
        });
}

TEST_CASE(
  "after the warm-up nothing is set up any more, and calls are those that the plan counts") {
  for (named_plan const& plan : test_plans())
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      standin::configure({});
      CHECK(run_on_ranks({.work = plan.work, .graph = graph, .freeze_after = 2}).findings == "");
      if (graph)
        continue;
      auto const counted = [&](int steps) {
        standin::configure({});
        (void)run_on_ranks({.work = plan.work, .steps = steps});
        return std::vector{standin::calls_of("ncclSend") + standin::calls_of("ncclRecv"),
                           standin::calls_of("ncclGroupStart") + standin::calls_of("ncclGroupEnd"),
                           standin::calls_of("cudaStreamWaitEvent")};
      };
      auto const few = counted(2);
      auto const more = counted(3);
      auto const expected = pipelining::count_calls(plan.work);
      int lanes = 0;
      for (int const each : plan.work.lanes)
        lanes += each;
      CHECK(more[0] - few[0] == static_cast<std::uint64_t>(expected.messages));
      CHECK(more[1] - few[1] == static_cast<std::uint64_t>(expected.group_marks));
      // Beside the waits of items, every lane waits for the start and is waited for at the end.
      CHECK(more[2] - few[2] == static_cast<std::uint64_t>(expected.waits + 2 * lanes));
    }
}

TEST_CASE("a stage that throws ends the run on all ranks, with rank, pass and position") {
  for (named_plan const& plan : test_plans())
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      standin::configure({.execution = standin::order::random, .seed = 7});
      auto const result = run_on_ranks({.work = plan.work, .graph = graph, .failing_stage = 1});
      for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
        std::string const& text = result.ranks[rank].failure;
        CAPTURE(text);
        CHECK(text.find("nccl: rank 1 failed: loss is not a number\n  rank 1 ") == 0);
        CHECK(text.find("\n  rank " + std::to_string(rank) + ' ') != std::string::npos);
        CHECK(result.ranks[rank].failed_device == 1);
        CHECK(result.ranks[rank].nested == (rank == 1 ? "loss is not a number" : ""));
      }
      // Kernels behind an aborted message run on what its slot holds, so reads are not checked.
      CHECK(!standin::found(standin::finding::misuse));
      CHECK(!standin::found(standin::finding::deadlock));
    }
}

TEST_CASE("kernels without room on the GPU end at the deadline, with who stands where") {
  int stuck = 0;
  for (named_plan const& plan : test_plans()) {
    standin::configure(
      {.execution = standin::order::random, .seed = 5, .resident_nccl_kernels = 1});
    auto const result = run_on_ranks({.work = plan.work, .steps = 1});
    if (result.ranks[0].failure.empty())
      continue;
    CAPTURE(plan.name);
    ++stuck;
    CHECK(plan.name.find("per pipeline") == std::string::npos);
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
      std::string const& text = result.ranks[rank].failure;
      CAPTURE(text);
      CHECK(text.find("failed: the iteration took longer than the deadline") != std::string::npos);
      CHECK(text.find("\n  rank " + std::to_string(rank) + " has not ended item ") !=
            std::string::npos);
      CHECK(text.find(" device ") != std::string::npos); // the peer
    }
  }
  CHECK(stuck > 0);
}

namespace {

// Runs a plan with one fault; all ranks must end in bounded time, and agree that it failed.
void check_fault(
  named_plan const& plan, bool graph, standin::fault const& fault, bool noticed, int& failed_runs) {
  CAPTURE(plan.name);
  CAPTURE(graph);
  CAPTURE(fault.call);
  CAPTURE(fault.rank);
  CAPTURE(static_cast<int>(fault.action));
  CAPTURE(noticed);
  standin::configure({.peers_notice_death = noticed, .faults = {fault}});
  auto const result = run_on_ranks({.work = plan.work, .graph = graph, .steps = 2});
  int survivors = 0;
  int failed = 0;
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    rank_report const& report = result.ranks[rank];
    CHECK((report.ended || result.outcomes[rank].threw || result.outcomes[rank].died));
    if (static_cast<int>(rank) == fault.rank)
      continue;
    ++survivors;
    CAPTURE(report.failure);
    CHECK(report.end < standin::clock::time_point(std::chrono::seconds(5)));
    if (report.failure.empty())
      continue;
    ++failed;
    CHECK(report.failure.find("rank ") != std::string::npos);
  }
  // What a rank does after the last step concerns nobody else.
  CHECK((failed == 0 || failed == survivors));
  failed_runs += failed != 0 ? 1 : 0;
  if (failed == 0) {
    rank_report const& own = result.ranks[static_cast<std::size_t>(fault.rank)];
    CAPTURE(own.failure);
    CHECK(own.failure.find("iteration") == std::string::npos);
  }
}

void check_faults(standin::fault_action action, bool noticed, std::uint64_t stride) {
  auto const plans = test_plans();
  for (named_plan const* plan : {&plans[4], &plans[5]}) // 1F1B 2x3 per pair and per edge
    for (bool const graph : {false, true}) {
      standin::configure({});
      (void)run_on_ranks({.work = plan->work, .graph = graph, .steps = 2});
      std::uint64_t const calls = standin::total_calls() / 2;
      int failed_runs = 0;
      for (int rank = 0; rank < 2; ++rank)
        for (std::uint64_t call = 1 + static_cast<std::uint64_t>(rank); call <= calls;
             call += stride)
          check_fault(
            *plan, graph, {.call = call, .rank = rank, .action = action}, noticed, failed_runs);
      // Not every call enqueues something that could fail later.
      bool const later = action == standin::fault_action::asynchronous_error;
      CHECK(failed_runs > static_cast<int>(calls / stride) / (later ? 8 : 2));
    }
}

} // namespace

TEST_CASE("an error at any call ends all ranks, with its reason") {
  check_faults(standin::fault_action::error, false, 3);
}
TEST_CASE("an error on the device at any call ends all ranks") {
  check_faults(standin::fault_action::asynchronous_error, false, 5);
}
TEST_CASE("a stall at any call ends all ranks at the deadline") {
  check_faults(standin::fault_action::stall, false, 5);
}
TEST_CASE("the death of a rank at any call ends the others, whether NCCL notices or not") {
  check_faults(standin::fault_action::death, false, 5);
  check_faults(standin::fault_action::death, true, 5);
}

TEST_CASE("ranks with different plans refuse to begin, and say what differs") {
  auto const plans = test_plans();
  standin::configure({});
  auto const result = run_on_ranks({.work = plans[4].work, .other_work = &plans[5].work});
  for (rank_report const& rank : result.ranks) {
    CAPTURE(rank.failure);
    CHECK(rank.failure.find("nccl: rank 1 could not connect: devices 0 and 1 disagree: ") == 0);
    CHECK(rank.failure.find("policy pair vs edge") != std::string::npos);
  }
}
