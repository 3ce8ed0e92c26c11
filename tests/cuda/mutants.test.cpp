// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every planted bug is found by one of the checks that the tests of the executors make.
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/view/plan_tables.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <tests/cuda/killers.hpp>
#include <tests/cuda/mutants.hpp>
#include <tests/cuda/schedules.hpp>
#include <utility>
#include <vector>

namespace {

//! What a check found wrong with an executor; empty when nothing is.
using verdict = std::string;

verdict first_finding() {
  if (standin::reports().empty())
    return {};
  return std::string(standin::name_of(standin::reports().front().kind));
}

template <class Result>
verdict compare(Result const& result, support::sequential_result const& expected, int steps) {
  auto const times = static_cast<std::uint64_t>(steps);
  if (result.losses != times * expected.losses)
    return "wrong losses";
  for (std::size_t s = 0; s < expected.gradients.size(); ++s)
    if (result.gradients[s] != times * expected.gradients[s])
      return "wrong gradients";
  return {};
}

verdict failure_in(nccl_result const& result) {
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    if (result.outcomes[rank].threw)
      return result.outcomes[rank].what;
    std::string const& text = result.ranks[rank].failure;
    if (!text.empty())
      return text.substr(0, text.find('\n'));
  }
  return {};
}

verdict first_of(verdict one, verdict other) {
  return one.empty() ? std::move(other) : std::move(one);
}

std::vector<standin::configuration> machines() {
  return {{.execution = standin::order::eager},
          {.execution = standin::order::lazy},
          {.execution = standin::order::random, .seed = 21},
          {.execution = standin::order::random, .seed = 22}};
}

verdict on_streams(mutant const& what, named_plan const& plan, bool graph) {
  for (standin::configuration const& how : machines()) {
    standin::configure(how);
    auto const result = what.on_streams({.work = plan.work, .graph = graph});
    verdict const found =
      first_of(first_finding(), first_of(result.failure, compare(result, plan.expected, 3)));
    if (!found.empty())
      return found;
  }
  return {};
}

verdict on_ranks(mutant const& what, named_plan const& plan, bool graph, int resident) {
  for (standin::configuration how : machines()) {
    how.resident_nccl_kernels = resident;
    standin::configure(how);
    auto const result = what.on_ranks({.work = plan.work, .graph = graph});
    verdict const found =
      first_of(first_finding(), first_of(failure_in(result), compare(result, plan.expected, 3)));
    if (!found.empty())
      return found;
  }
  return {};
}

//! A stage throws: on streams the next step is whole again, on ranks all say why.
verdict after_failure(mutant const& what, named_plan const& plan) {
  standin::configure({});
  auto const one = what.on_streams({.work = plan.work, .steps = 4, .failing_stage = 1});
  verdict found = first_of(first_finding(), compare(one, plan.expected, 3));
  for (bool const graph : {false, true}) {
    standin::configure({});
    auto const all = what.on_ranks({.work = plan.work, .graph = graph, .failing_stage = 1});
    if (standin::found(standin::finding::misuse))
      found = first_of(found, "misuse");
    for (rank_report const& rank : all.ranks)
      if (rank.failure.find("loss is not a number") == std::string::npos)
        found = first_of(found, "a rank does not know why it ended");
  }
  return found;
}

//! A rank dies at one of several calls: the others end in time, and at once where NCCL notices.
verdict after_death(mutant const& what, named_plan const& plan, bool noticed) {
  auto const bound = std::chrono::milliseconds(noticed ? 800 : 5000);
  for (std::uint64_t call = 2; call <= 12; ++call) {
    standin::configure({.peers_notice_death = noticed,
                        .faults = {{.function = "ncclGroupEnd",
                                    .call = call,
                                    .rank = 1,
                                    .action = standin::fault_action::death}}});
    auto const result = what.on_ranks({.work = plan.work});
    if (standin::found(standin::finding::deadlock))
      return "a rank never ends";
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank)
      if (rank != 1 && result.ranks[rank].end > standin::clock::time_point(bound))
        return "a rank ends too late";
  }
  return {};
}

//! A rank dies while the others run their iteration as a graph.
verdict after_death_in_graph(mutant const& what, named_plan const& plan) {
  standin::configure({.faults = {{.function = "cudaGraphLaunch",
                                  .call = 1,
                                  .rank = 1,
                                  .action = standin::fault_action::death}}});
  auto const result = what.on_ranks({.work = plan.work, .graph = true});
  for (rank_report const& rank : result.ranks)
    if (rank.failure.find("still busy") != std::string::npos)
      return "streams are left behind";
  return standin::found(standin::finding::misuse) ? "misuse" : "";
}

//! A queue of launches that a dead peer or an endless pass fills: all ranks still end, in time.
verdict after_full_queue(mutant const& what, named_plan const& plan, int run_ahead, bool dies) {
  for (std::uint64_t call = 2; call <= 10; call += 2) {
    standin::configure(
      {.launch_depth = 16,
       .faults = {{.function = "cudaLaunchKernel",
                   .call = call,
                   .rank = 1,
                   .action = dies ? standin::fault_action::death : standin::fault_action::stall}}});
    auto const result = what.on_ranks({.work = plan.work, .run_ahead = run_ahead});
    if (standin::found(standin::finding::deadlock))
      return "a rank never ends";
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
      rank_report const& report = result.ranks[rank];
      if (dies && rank == 1)
        continue;
      if (report.failure.empty())
        return "a rank has not noticed";
      if (report.end > standin::clock::time_point(std::chrono::seconds(4)))
        return "a rank ends too late";
      if (dies && report.failure.find("still busy") != std::string::npos)
        return "streams are left behind";
    }
  }
  return {};
}

//! The first rank dies at its last pass, when all others have ended theirs.
verdict after_late_death(mutant const& what, named_plan const& plan) {
  standin::configure({});
  (void)what.on_ranks({.work = plan.work, .steps = 1});
  auto const passes = standin::calls_of("cudaLaunchKernel") /
                      static_cast<std::uint64_t>(plan.work.over.extents.devices);
  standin::configure({.execution = standin::order::eager,
                      .faults = {{.function = "cudaLaunchKernel",
                                  .call = passes,
                                  .rank = 0,
                                  .action = standin::fault_action::death}}});
  auto const result = what.on_ranks({.work = plan.work, .steps = 1, .end_together = false});
  for (std::size_t rank = 1; rank < result.ranks.size(); ++rank)
    if (result.ranks[rank].failure.empty())
      return "a rank closes as if all had ended";
  return {};
}

//! A graph cannot be destroyed: communicators would wait for it for ever.
verdict after_lasting_graph(mutant const& what, named_plan const& plan) {
  standin::configure({.faults = {{.function = "cudaGraphExecDestroy", .call = 1, .rank = 1}}});
  auto const result = what.on_ranks({.work = plan.work, .graph = true, .end_together = false});
  if (standin::found(standin::finding::deadlock))
    return "a rank never ends";
  return result.ranks[1].failure.find("cudaGraphExecDestroy") == std::string::npos
           ? "the call that has failed is not told"
           : "";
}

//! A kernel that never ends: the step ends at its deadline.
verdict after_stall(mutant const& what, named_plan const& plan) {
  standin::configure(
    {.faults = {
       {.function = "cudaLaunchKernel", .call = 4, .action = standin::fault_action::stall}}});
  auto const result = what.on_streams({.work = plan.work, .steps = 1, .deadline_ns = 5'000'000});
  return result.failure.empty() ? "a stall is taken for the end" : "";
}

//! The same on streams, where the host must not come to a full queue at all.
verdict after_full_queue_on_streams(mutant const& what, named_plan const& plan) {
  standin::configure(
    {.launch_depth = 64,
     .faults = {
       {.function = "cudaLaunchKernel", .call = 2, .action = standin::fault_action::stall}}});
  auto const result =
    what.on_streams({.work = plan.work, .run_ahead = 4, .steps = 1, .deadline_ns = 5'000'000});
  if (standin::found(standin::finding::deadlock))
    return "the host sits in a launch";
  return result.failure.empty() ? "a stall is taken for the end" : "";
}

std::vector<named_plan> three_devices(int microbatches) {
  std::vector<named_plan> plans;
  add_plans<pipelining::OneFOneB>(plans, "1F1B", 3, microbatches);
  return plans;
}

nccl_case two_short_steps(named_plan const& plan, bool graph) {
  return {.work = plan.work,
          .graph = graph,
          .steps = 2,
          .deadline = std::chrono::milliseconds(50),
          .abort_deadline = std::chrono::milliseconds(15),
          .end_together = false};
}

//! The queue is full just before a group, at one of these depths, and the group waits for room.
verdict after_waiting_group(mutant const& what) {
  nccl_case work = two_short_steps(three_devices(8)[2], false);
  work.run_ahead = 100'000;
  for (int depth = 12; depth < 36; ++depth) {
    standin::configure({.launch_depth = depth,
                        .faults = {{.function = "cudaLaunchKernel",
                                    .call = 5,
                                    .rank = 1,
                                    .action = standin::fault_action::death}}});
    auto const result = what.on_ranks(work);
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank)
      if (rank != 1 && result.ranks[rank].failure.find("still busy") != std::string::npos)
        return "streams are left behind";
  }
  return {};
}

//! A graph with more nodes than the queue of launches: its GPU never begins it, or it fails where
//! others launch theirs.
verdict after_launch(mutant const& what, bool fails) {
  using standin::fault_action;
  for (named_plan const& plan : three_devices(8)) {
    standin::configure({.launch_depth = 16,
                        .faults = {{.function = "cudaGraphLaunch",
                                    .call = 1,
                                    .rank = 1,
                                    .action = fails ? fault_action::error : fault_action::stall}}});
    auto const result = what.on_ranks(two_short_steps(plan, true));
    if (standin::found(standin::finding::deadlock))
      return "a rank never ends";
    if (standin::found(standin::finding::misuse))
      return "misuse";
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
      rank_report const& report = result.ranks[rank];
      if (report.failure.empty())
        return "a rank has not noticed";
      if (report.end > standin::clock::time_point(std::chrono::milliseconds(fails ? 50 : 100)))
        return "a rank ends too late";
      if ((fails || rank != 1) && report.failure.find("still busy") != std::string::npos)
        return "streams are left behind";
    }
  }
  return {};
}

//! The same on streams.
verdict after_launch_on_streams(mutant const& what, named_plan const& plan) {
  standin::configure(
    {.launch_depth = 16,
     .faults = {
       {.function = "cudaGraphLaunch", .call = 1, .action = standin::fault_action::stall}}});
  streams_result result;
  (void)standin::run_ranks(1, [&](int) {
    result =
      what.on_streams({.work = plan.work, .graph = true, .steps = 2, .deadline_ns = 5'000'000});
  });
  if (standin::found(standin::finding::deadlock))
    return "the host sits in a launch";
  return result.failure.empty() ? "a stall is taken for the end" : "";
}

//! Messages lie in buffers of their senders until they are received.
verdict closed_early(mutant const& what) {
  for (named_plan const& plan : three_devices(3))
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      standin::configure({.execution = standin::order::random,
                          .seed = seed,
                          .buffered_bytes = std::size_t{1} << 20});
      (void)what.on_ranks(two_short_steps(plan, false));
      verdict const found = first_finding();
      if (!found.empty())
        return found;
    }
  return {};
}

//! A stage throws while others capture messages, which threads of NCCL add to their graphs.
verdict after_failed_capture(mutant const& what) {
  for (named_plan const& plan : three_devices(8))
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      standin::configure({.execution = standin::order::random, .seed = seed});
      nccl_case work = two_short_steps(plan, true);
      work.failing_stage = 1;
      (void)what.on_ranks(work);
      if (standin::found(standin::finding::misuse))
        return "misuse";
    }
  return {};
}

//! A captured graph that is not freed keeps communicators from ending.
verdict after_lasting_capture(mutant const& what, named_plan const& plan) {
  standin::configure({.faults = {{.function = "cudaGraphDestroy", .call = 1, .rank = 1}}});
  auto const result = what.on_ranks({.work = plan.work, .graph = true, .end_together = false});
  return result.ranks[1].failure.find("cudaGraphDestroy") == std::string::npos
           ? "the call that has failed is not told"
           : "";
}

//! Room for fewer blocks than NCCL makes of a cap of 5 for every lane.
verdict crowded(mutant const& what, named_plan const& plan) {
  int lanes = 0;
  for (int const each : plan.work.lanes)
    lanes = std::max(lanes, each);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    standin::configure({.execution = standin::order::random,
                        .seed = seed,
                        .processors = 8 * lanes - 1,
                        .blocks_take_processors = true});
    auto const result = what.on_ranks({.work = plan.work, .max_blocks = 5, .steps = 1});
    verdict const found = first_of(first_finding(), failure_in(result));
    if (!found.empty())
      return found;
  }
  return {};
}

//! Communicators of the program, which take 4 blocks and 8: lanes with room next to them only in
//! one stream, and lanes without room.
verdict registered(mutant const& what, named_plan const& plan) {
  nccl_case const work{.work = plan.work,
                       .steps = 1,
                       .end_together = false,
                       .all_reduce = true,
                       .registered_twice = 8};
  std::uint64_t streams[2]{};
  for (int const short_of : {0, 1}) {
    standin::configure({.processors = 2 * 8 + 4 + 8 - short_of});
    verdict const found = failure_in(what.on_ranks(work));
    if (!found.empty())
      return found;
    streams[short_of] = standin::calls_of("cudaStreamCreateWithPriority");
  }
  if (streams[0] != streams[1] + 2)
    return "streams not as there is room";
  standin::configure({.processors = 8 + 4 + 8 - 1});
  return failure_in(what.on_ranks(work)).empty() ? "too little room is not refused" : "";
}

//! The checked mode: guards and poison.
verdict unguarded(mutant const& what, named_plan const& plan, bool graph) {
  standin::configure({});
  auto const whole = what.on_ranks({.work = plan.work, .graph = graph, .guarded = true});
  verdict const found =
    first_of(first_finding(), first_of(failure_in(whole), compare(whole, plan.expected, 3)));
  if (!found.empty())
    return found;
  standin::configure({});
  auto const beyond = what.on_streams(
    {.work = plan.work, .graph = graph, .guarded = true, .overrunning_stage = 1, .steps = 2});
  if (beyond.failure.find(" beyond slot ") == std::string::npos)
    return "an overrun goes unnoticed";
  standin::configure({});
  auto const left = what.on_streams(
    {.work = plan.work, .graph = graph, .guarded = true, .leaving_stage = 1, .steps = 2});
  if (left.seen != ~std::uint64_t{0})
    return "an unwritten slot holds no poison";
  standin::configure({});
  auto const part = what.on_streams({.work = plan.work,
                                     .graph = graph,
                                     .guarded = true,
                                     .leaving_stage = 0,
                                     .leaves_bytes = 16,
                                     .steps = 2});
  return part.failure.find(" unwritten, all of which ") != std::string::npos
           ? ""
           : "an output that ends unwritten goes unnoticed";
}

verdict set_up_late(mutant const& what, named_plan const& plan) {
  standin::configure({});
  return what.on_ranks({.work = plan.work, .steps = 1, .freeze_after = 0}).findings.empty()
           ? ""
           : "late set-up";
}

verdict miscounted(mutant const& what, named_plan const& plan) {
  std::uint64_t marks[2]{};
  for (int steps : {1, 2}) {
    standin::configure({});
    (void)what.on_ranks({.work = plan.work, .steps = steps});
    marks[steps - 1] = standin::calls_of("ncclGroupStart") + standin::calls_of("ncclGroupEnd");
  }
  auto const expected = pipelining::detail::count_calls(plan.work).group_marks;
  return marks[1] - marks[0] == static_cast<std::uint64_t>(expected) ? "" : "calls not as planned";
}

//! Messages with headers: one is changed on the way, or is another one.
verdict unnoticed(mutant const& what, named_plan const& plan, bool graph) {
  for (standin::configuration const& how : machines()) {
    standin::configure(how);
    auto const whole = what.on_ranks({.work = plan.work, .graph = graph, .checked = true});
    verdict const found =
      first_of(first_finding(), first_of(failure_in(whole), compare(whole, plan.expected, 3)));
    if (!found.empty())
      return found;
  }
  // Rank 0 sends rank 1 three messages a step, each with its header after it, after the first use.
  using corruptions = std::vector<standin::corruption>;
  std::uint64_t const message = 2 + 2 * (3 + 1);
  auto const is_in_place = [&](std::uint64_t other) {
    return corruptions{{.message = message, .instead = other},
                       {.message = message + 1, .instead = other + 1}};
  };
  for (corruptions const& each : {corruptions{{.message = message, .byte = 0}},
                                  corruptions{{.message = message, .byte = 23}},
                                  corruptions{{.message = message + 1, .byte = 16}},
                                  is_in_place(message - 6),
                                  is_in_place(message - 2)}) {
    standin::configure({.corrupted = each});
    auto const result = what.on_ranks({.work = plan.work, .graph = graph, .checked = true});
    if (failure_in(result).find(" failed: the message with ") == std::string::npos)
      return "a corrupted message goes unnoticed";
  }
  return {};
}

killers<mutant> checks() {
  auto const plans = test_plans();
  killers<mutant> all;
  // 1F1B, V-Half, ZB-H1, interleaved; 1F1B and V-Half whose activations wait on the host;
  // breadth-first and interleaved with weights in shards
  for (std::size_t const which : {7U, 13U, 20U, 26U, 40U, 49U, 55U, 58U})
    for (bool const graph : {false, true}) {
      std::string const how = (graph ? ", graph: " : ": ") + plans[which].name;
      named_plan const plan = plans[which];
      all.add("streams" + how, [=](mutant const& m) { return on_streams(m, plan, graph); });
      all.add("ranks" + how, [=](mutant const& m) { return on_ranks(m, plan, graph, 0); });
    }
  named_plan const pair = plans[7];
  named_plan const edge = plans[8];
  named_plan const two = plans[4];
  named_plan const two_edge = plans[5];
  all.add("late set-up", [=](mutant const& m) { return set_up_late(m, pair); });
  all.add("count of calls", [=](mutant const& m) { return miscounted(m, pair); });
  all.add("a stage that throws", [=](mutant const& m) { return after_failure(m, pair); });
  all.add("a death in silence", [=](mutant const& m) { return after_death(m, pair, false); });
  all.add("a death in silence, per edge",
          [=](mutant const& m) { return after_death(m, edge, false); });
  all.add("a death and a full queue",
          [=](mutant const& m) { return after_full_queue(m, edge, 2, true); });
  all.add("a death and a full queue, without bound",
          [=](mutant const& m) { return after_full_queue(m, edge, 1000, true); });
  all.add("an endless pass and a full queue",
          [=](mutant const& m) { return after_full_queue(m, edge, 2, false); });
  all.add("an endless pass and a full queue on streams",
          [=](mutant const& m) { return after_full_queue_on_streams(m, pair); });
  all.add("a death and a group that waits for room", after_waiting_group);
  for (bool const fails : {false, true})
    all.add(fails ? "a launch of a graph that fails" : "a graph that is never begun",
            [=](mutant const& m) { return after_launch(m, fails); });
  all.add("a graph that is never begun on streams",
          [=](mutant const& m) { return after_launch_on_streams(m, pair); });
  all.add("buffered messages", closed_early);
  all.add("a capture that stays", [=](mutant const& m) { return after_lasting_capture(m, pair); });
  all.add("little room for blocks", [=](mutant const& m) { return crowded(m, two_edge); });
  all.add("registered communicators", [=](mutant const& m) { return registered(m, two_edge); });
  for (bool const graph : {false, true})
    all.add(graph ? "the checked mode, graph" : "the checked mode",
            [=](mutant const& m) { return unguarded(m, two, graph); });
  all.add("a late death", [=](mutant const& m) { return after_late_death(m, pair); });
  all.add("a graph that stays", [=](mutant const& m) { return after_lasting_graph(m, pair); });
  all.add("a death that NCCL tells", [=](mutant const& m) { return after_death(m, pair, true); });
  // No third rank that could find it.
  all.add("a death that NCCL tells the other rank",
          [=](mutant const& m) { return after_death(m, two, true); });
  all.add("a stall on streams", [=](mutant const& m) { return after_stall(m, pair); });
  all.add("a death in a graph", [=](mutant const& m) { return after_death_in_graph(m, pair); });
  all.add("room for one kernel, graph",
          [=](mutant const& m) { return on_ranks(m, edge, true, 1); });
  for (bool const graph : {false, true})
    all.add(graph ? "checked messages, graph" : "checked messages",
            [=](mutant const& m) { return unnoticed(m, two, graph); });
  all.add("a capture that fails", after_failed_capture);
  return all;
}

//! Mutants that do the same as the executor, and why; empty for the others.
std::string alike(std::string const& name) {
  if (name == "keep half a message of a step that failed")
    return "both ends of a message are enqueued one right after the other";
  if (name == "wait far beyond the deadline")
    return "the thread beside the one that waits ends the step at its deadline";
  return {};
}

} // namespace

TEST_CASE("every mutant of the executors is killed, and the executors themselves are not") {
  auto all = checks();
  auto const mutants = all_mutants();
  REQUIRE(mutants.size() > 20);
  for (std::size_t i = 0; i < mutants.size(); ++i) {
    std::string const by = all.find(mutants[i]);
    CAPTURE(mutants[i].name);
    CAPTURE(by);
    std::printf("%-50s %s\n", mutants[i].name.c_str(), by.empty() ? "survives" : by.c_str());
    std::string const reason = alike(mutants[i].name);
    if (!reason.empty())
      std::printf("%-50s (%s)\n", "", reason.c_str());
    CHECK(by.empty() == (i == 0 || !reason.empty()));
  }
}
