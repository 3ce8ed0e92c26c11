// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The executor for NCCL, compiled by nvcc as users compile it, on the stand-in.
#include <pipe/cuda/communicators.cuh>
#include <pipe/plan/lower.hpp>
#include <pipe/planner/model/measured.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/view/plan_tables.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <tests/cuda/nccl.hpp>
#include <tests/cuda/schedules.hpp>
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
  for (named_plan const& plan : plans_with_shards())
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
                (graph ? 2U * static_cast<unsigned>(plan.work.over.extents.devices) : 0U));
          standin::report_leaks();
          CHECK(standin::summary() == "");
        });
}

TEST_CASE("every rank has the times of all passes, eagerly and as a graph") {
  for (bool const graph : {false, true}) {
    named_plan const plan = test_plans().front();
    int const devices = plan.work.over.extents.devices;
    standin::configure({});
    auto const result = run_on_ranks({.work = plan.work, .graph = graph, .timed_ranks = devices});
    check_equal(result, plan.expected, 3);
    REQUIRE(result.traces.size() == 3);
    for (pipelining::dynamic_timetable const& step : result.traces) {
      std::vector<pipelining::timetable_view> const steps{step};
      pipelining::cost_table const fitted = pipelining::costs_of(steps);
      double work = 0;
      for (int device = 0; device < devices; ++device) {
        double last = 0;
        for (int i = step.offsets[static_cast<std::size_t>(device)];
             i < step.offsets[static_cast<std::size_t>(device) + 1];
             ++i) {
          auto const at = static_cast<std::size_t>(i);
          CHECK(step.starts[at] >= last);
          CHECK(step.ends[at] >= step.starts[at]);
          last = step.ends[at];
          work += fitted.duration(step.passes[at]);
        }
        CHECK(last > 0);
      }
      CHECK(work > 0);
    }
    CHECK(standin::summary() == "");
  }
}

TEST_CASE("a rank that does not ask for the trace ends the others at their deadline") {
  named_plan const plan = test_plans().front();
  standin::configure({});
  auto const result = run_on_ranks(
    {.work = plan.work, .steps = 1, .timed_ranks = plan.work.over.extents.devices - 1});
  CHECK(result.ranks.front().failure.find("\n  rank 0 waits for the times of rank " +
                                          std::to_string(plan.work.over.extents.devices - 1)) !=
        std::string::npos);
  for (rank_report const& rank : result.ranks)
    CHECK(rank.ended);
}

TEST_CASE("a stage that writes beyond its activation ends the run in the checked mode") {
  for (named_plan const& plan : test_plans())
    for (bool const graph : {false, true}) {
      CAPTURE(plan.name);
      CAPTURE(graph);
      standin::configure({.execution = standin::order::random, .seed = 9});
      check_equal(
        run_on_ranks({.work = plan.work, .graph = graph, .guarded = true}), plan.expected, 3);
      standin::configure({});
      auto const result = run_on_ranks(
        {.work = plan.work, .graph = graph, .guarded = true, .overrunning_stage = 1, .steps = 2});
      CHECK(result.ranks[1].failure.find("nccl: rank 1 failed: a pass of device 1 has written "
                                         "beyond slot ") == 0);
      std::string const& text = result.ranks[1].failure;
      auto const passes = text.find(" of class activation, first at byte 12; these had it: the ");
      CHECK(passes != std::string::npos);
      CHECK(text.find("forward of stage ", passes) != std::string::npos);
    }
}

TEST_CASE("the checked mode over NCCL knows what was overrun: either end, activation or output") {
  named_plan const plan = test_plans()[4];
  for (bool const graph : {false, true})
    for (bool const checked : {false, true})
      for (bool const output : {false, true})
        for (int const by : {0, 12, -4, -64}) {
          CAPTURE(graph);
          CAPTURE(output);
          CAPTURE(by);
          standin::configure({});
          auto const result = run_on_ranks({.work = plan.work,
                                            .graph = graph,
                                            .guarded = true,
                                            .overrunning_stage = 0,
                                            .overrun_by = by,
                                            .overruns_output = output,
                                            .checked = checked,
                                            .steps = 2,
                                            .end_together = false});
          for (rank_report const& rank : result.ranks) {
            CAPTURE(rank.failure);
            CHECK(rank.failure.find(
                    std::string("nccl: rank 0 failed: a pass of device 0 has written ") +
                    (by < 0 ? "in front of" : "beyond") + " slot ") == 0);
            int const end = output ? 24 : 8;
            CHECK(rank.failure.find(std::string(" of class ") + (output ? "output" : "activation") +
                                    ", first at byte " + std::to_string(by < 0 ? by : end + by) +
                                    "; these had it: ") != std::string::npos);
            CHECK(rank.failure.find("the forward of stage 0, microbatch 1") != std::string::npos);
            CHECK(rank.failed_device == 0);
          }
          CHECK(!standin::found(standin::finding::deadlock));
        }
}

TEST_CASE("what a stage has not written is poison in the checked mode over NCCL") {
  for (named_plan const& plan : test_plans())
    for (bool const graph : {false, true})
      for (bool const guarded : {false, true}) {
        if (keeps_nothing(plan))
          continue;
        CAPTURE(plan.name);
        CAPTURE(graph);
        CAPTURE(guarded);
        standin::configure({});
        auto const result = run_on_ranks(
          {.work = plan.work, .graph = graph, .guarded = guarded, .leaving_stage = 1, .steps = 2});
        for (rank_report const& rank : result.ranks)
          CHECK(rank.failure == "");
        CHECK((result.seen == ~std::uint64_t{0}) == guarded);
      }
}

TEST_CASE("an output that is not written to its end ends the run in the checked mode over NCCL") {
  for (named_plan const& plan : test_plans())
    for (bool const graph : {false, true})
      for (int const left : {4, 16, 24}) {
        CAPTURE(plan.name);
        CAPTURE(graph);
        CAPTURE(left);
        standin::configure({});
        auto const result = run_on_ranks({.work = plan.work,
                                          .graph = graph,
                                          .guarded = true,
                                          .leaving_stage = 0,
                                          .leaves_bytes = left,
                                          .steps = 2,
                                          .end_together = false});
        CHECK(!standin::found(standin::finding::deadlock));
        // An output that ends as poison does by chance is no finding.
        for (rank_report const& rank : result.ranks)
          if (left < 16)
            CHECK(rank.failure == "");
          else
            CHECK((rank.failure.find("nccl: rank 0 failed: the ") == 0 &&
                   rank.failure.find(
                     "forward of stage 0, microbatch 1" +
                     std::string(plan.work.over.extents.chunks > 1 ? ", chunk 0" : "") +
                     " on device 0 has left the last 16 bytes of its output of 24 bytes "
                     "unwritten, all of which the next stage reads") != std::string::npos));
      }
}

TEST_CASE(
  "after the warm-up nothing is set up any more, and calls are those that the plan counts") {
  for (named_plan const& plan : plans_with_shards())
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
        return std::vector{standin::calls_of("ncclSend") + standin::calls_of("ncclRecv") +
                             standin::calls_of("ncclBroadcast"),
                           standin::calls_of("ncclGroupStart") + standin::calls_of("ncclGroupEnd"),
                           standin::calls_of("cudaStreamWaitEvent"),
                           standin::calls_of("cudaMemcpyAsync")};
      };
      auto const few = counted(2);
      auto const more = counted(3);
      auto const expected = pipelining::detail::count_calls(plan.work);
      int streams = 0; // in addition to those of passes
      for (int device = 0; device < plan.work.over.extents.devices; ++device) {
        int last = 0;
        for (pipelining::item const& step : plan.work.program_of(device))
          last = std::max(last, step.stream());
        streams += last;
      }
      CHECK(more[0] - few[0] == static_cast<std::uint64_t>(expected.messages));
      CHECK(more[1] - few[1] == static_cast<std::uint64_t>(expected.group_marks));
      // In addition to the waits of items, every stream waits for the start and is waited for at
      // the end.
      CHECK(more[2] - few[2] == static_cast<std::uint64_t>(expected.waits + 2 * streams));
      CHECK(more[3] - few[3] == static_cast<std::uint64_t>(expected.copies));
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
      // Kernels after an aborted message run on what its slot holds, so reads are not checked.
      CHECK(!standin::found(standin::finding::misuse));
      CHECK(!standin::found(standin::finding::deadlock));
    }
}

TEST_CASE("a report names the item also inside a graph, by one node per pass and group") {
  for (named_plan const& plan : test_plans()) {
    CAPTURE(plan.name);
    standin::configure({});
    (void)run_on_ranks({.work = plan.work, .graph = true, .steps = 2});
    int passes_and_groups = 0;
    for (int device = 0; device < plan.work.over.extents.devices; ++device) {
      auto const steps = plan.work.program_of(device);
      for (std::size_t i = 0; i < steps.size(); ++i)
        passes_and_groups += steps[i].joins ? 0 : 1;
    }
    CHECK(standin::calls_of("cudaEventRecordWithFlags") ==
          static_cast<std::uint64_t>(passes_and_groups));

    // Rank 1 dies before it launches its graph; the others are somewhere in theirs.
    standin::configure({.faults = {{.function = "cudaGraphLaunch",
                                    .call = 1,
                                    .rank = 1,
                                    .action = standin::fault_action::death}}});
    auto const result = run_on_ranks({.work = plan.work, .graph = true, .steps = 2});
    CHECK(!standin::found(standin::finding::deadlock));
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
      if (rank == 1)
        continue;
      std::string const& text = result.ranks[rank].failure;
      std::string const who = "\n  rank " + std::to_string(rank);
      CAPTURE(text);
      CHECK(text.find(" failed: the iteration took longer than the deadline") != std::string::npos);
      CHECK(text.find(who + " has not ended item ") != std::string::npos);
      CHECK(text.find("\n  rank 1 is where it began: it does not answer") != std::string::npos);
      CHECK(result.ranks[rank].failed_device == 1);
      // Every plan lets rank 0 begin with a pass that waits for nobody.
      if (rank == 0) {
        CHECK(text.find(who + " has not ended item 0 ") == std::string::npos);
        auto const own = plan.work.program_of(0);
        bool const meets = std::any_of(own.begin(), own.end(), [&](auto const& step) {
          return step.what != pipelining::operation::run && plan.work.message_of(step).peer == 1;
        });
        bool const waits_for_it =
          text.find(" device 1", text.find(who + " has not ended")) != std::string::npos;
        CHECK(waits_for_it == meets);
      }
    }
  }
}

TEST_CASE("an iteration that is not watched has no nodes for it, and a report says so") {
  auto const plans = test_plans();
  standin::configure({.faults = {{.function = "cudaGraphLaunch",
                                  .call = 1,
                                  .rank = 1,
                                  .action = standin::fault_action::death}}});
  auto const result =
    run_on_ranks({.work = plans[4].work, .graph = true, .watched = false, .steps = 2});
  CHECK(!standin::found(standin::finding::deadlock));
  CHECK(standin::calls_of("cudaEventRecordWithFlags") == 0);
  CAPTURE(result.ranks[0].failure);
  CHECK(result.ranks[0].failure.find("\n  rank 0 is somewhere in its iteration, which is not "
                                     "watched") != std::string::npos);
}

TEST_CASE("one rank copies without communicators") {
  std::vector<named_plan> plans;
  add_offloaded<pipelining::GPipe>(plans, "GPipe", 1, 4);
  for (bool const graph : {false, true}) {
    standin::configure({});
    check_equal(run_on_ranks({.work = plans[0].work, .graph = graph}), plans[0].expected, 3);
    CHECK(standin::summary() == "");
    // None but that of the passes, and those of the two engines.
    CHECK(standin::calls_of("cudaStreamCreateWithPriority") == 3);
    CHECK(standin::calls_of("ncclCommInitRankConfig") == 0);
  }
}

TEST_CASE("a copy that stalls or fails ends all ranks, with rank and item") {
  std::vector<named_plan> plans;
  add_offloaded<pipelining::OneFOneB>(plans, "1F1B", 2, 4);
  for (named_plan const& plan : plans)
    for (bool const graph : {false, true})
      for (bool const stalls : {false, true}) {
        CAPTURE(plan.name);
        CAPTURE(graph);
        CAPTURE(stalls);
        standin::configure(
          {.faults = {{.function = "cudaMemcpyAsync",
                       .call = 1,
                       .rank = 0,
                       .action = stalls ? standin::fault_action::stall
                                        : standin::fault_action::asynchronous_error}}});
        auto const result = run_on_ranks({.work = plan.work, .graph = graph, .steps = 2});
        CHECK(!standin::found(standin::finding::deadlock));
        for (rank_report const& rank : result.ranks) {
          CAPTURE(rank.failure);
          CHECK(rank.failed_device == 0);
          CHECK(rank.failure.find(": run the copy_out of stage 0, microbatch 0") !=
                std::string::npos);
        }
      }
}

TEST_CASE("kernels without room on the GPU end at the deadline, with who stands where") {
  int stuck = 0;
  for (named_plan const& plan : test_plans()) {
    standin::configure(
      {.execution = standin::order::random, .seed = 5, .resident_nccl_kernels = 1});
    auto const result = run_on_ranks({.work = plan.work, .steps = 1});
    CHECK(!standin::found(standin::finding::deadlock));
    if (result.ranks[0].failure.empty())
      continue;
    CAPTURE(plan.name);
    ++stuck;
    CHECK(plan.name.find("per pipeline") == std::string::npos);
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
      std::string const& text = result.ranks[rank].failure;
      CAPTURE(text);
      CHECK(text.find("failed: the iteration took longer than the deadline") != std::string::npos);
      // A rank whose stage only goes forward may be done.
      CHECK((keeps_nothing(plan) || text.find("\n  rank " + std::to_string(rank) +
                                              " has not ended item ") != std::string::npos));
      CHECK(text.find(" device ") != std::string::npos); // the peer
    }
  }
  CHECK(stuck > 0);
}

namespace {

using pipelining::cuda::detail::communicator_members;

//! How many communicators are made one after the other where each rank makes its own in the order
//! of the list, and making one waits for all of its members.
int longest_chain(std::vector<communicator_members> const& all) {
  std::vector<int> made(32, 0); // by a rank, with all that it has waited for
  for (communicator_members const& each : all) {
    int before = 0;
    for (int const device : each.devices)
      before = std::max(before, made[static_cast<std::size_t>(device)]);
    for (int const device : each.devices)
      made[static_cast<std::size_t>(device)] = before + 1;
  }
  return *std::max_element(made.begin(), made.end());
}

template <class Policy, class Schedule>
std::vector<communicator_members> communicators_of_32() {
  auto const table = pipelining::make_timetable<Schedule>({32, 32});
  pipelining::plan const work = pipelining::lower<Policy>(table, message_words);
  return pipelining::cuda::detail::communicators_of(work);
}

//! @param neighbours of a rank, with each of which it shares a communicator, or one per direction.
template <class Schedule>
void check_chains(int neighbours) {
  auto const pairs = communicators_of_32<pipelining::communicators::per_pair, Schedule>();
  CHECK(longest_chain(pairs) == neighbours);
  auto const edges = communicators_of_32<pipelining::communicators::per_edge, Schedule>();
  CHECK(longest_chain(edges) == 2 * neighbours);
  CHECK(longest_chain(communicators_of_32<pipelining::communicators::one, Schedule>()) == 1);
}

} // namespace

TEST_CASE("32 ranks make their communicators in rounds, not in a chain from rank to rank") {
  check_chains<pipelining::OneFOneB>(2);
  check_chains<pipelining::VHalf>(2);
  check_chains<pipelining::Interleaved<2>>(2);
  auto by_key = communicators_of_32<pipelining::communicators::per_pair, pipelining::OneFOneB>();
  CHECK(by_key.size() == 31);
  std::sort(
    by_key.begin(), by_key.end(), [](auto const& a, auto const& b) { return a.key < b.key; });
  CHECK(longest_chain(by_key) == 31);
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

TEST_CASE("ranks with different texts refuse to begin, though their plans are the same") {
  standin::configure({});
  auto const result = run_on_ranks({.work = test_plans()[4].work, .other_seed_rank = 1});
  for (rank_report const& rank : result.ranks) {
    CAPTURE(rank.failure);
    CHECK(rank.failure.find("nccl: rank 1 could not connect: rank 0 has seed=1, rank 1 has seed=7; "
                            "start all ranks with the same program and options") == 0);
  }
}
