// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The executors for NCCL and for streams with one fault at one call, for every call. By default
// each test takes every n-th call of every combination, beginning elsewhere in each. With
// PIPELINING_TEST_EVERYTHING in the environment it takes every call without a queue of launches and
// with one of 16, and more of them with longer queues, whose runs have many more calls.
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <simulators/cuda/standin.hpp>
#include <string>
#include <tests/cuda/nccl.hpp>
#include <tests/cuda/schedules.hpp>
#include <tests/cuda/streams.hpp>
#include <vector>

namespace {

using namespace std::chrono_literals;
using standin::fault_action;

// Virtual time; without a fault a run takes less than two milliseconds.
constexpr std::chrono::milliseconds deadline = 50ms;
constexpr std::chrono::milliseconds abort_deadline = 15ms;

//! What is done to a call, and whether NCCL tells the others of a rank that dies.
struct deed {
  char const* name;
  fault_action action;
  bool noticed = false;
};

std::vector<deed> deeds() {
  return {{"error", fault_action::error},
          {"stall", fault_action::stall},
          {"error on the device", fault_action::asynchronous_error},
          {"death in silence", fault_action::death},
          {"death that NCCL tells", fault_action::death, true}};
}

bool everything() {
  return std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
}

//! The queue of launches of a device, how far the host runs ahead of it, and which calls are
//! broken.
struct queue_case {
  int depth = 0; //!< 0: without end
  int run_ahead = 16;
  std::uint64_t stride = 97; //!< every n-th call
  std::uint64_t whole = 1;   //!< the same where everything is
};

constexpr int unbounded = 1'000'000;

std::vector<named_plan> plans_to_break(int depth) {
  namespace pp = pipelining;
  std::vector<named_plan> plans;
  if (depth == 16)
    add_plans<pp::OneFOneB>(plans, "1F1B", 3, 2);
  // As many microbatches as fill the queue of a rank that waits for another one.
  if (depth > 16)
    add_plans<pp::OneFOneB>(plans, "1F1B", 2, depth / 9);
  if (depth > 128)
    plans.erase(plans.begin(), plans.end() - 1); // per edge
  if (depth > 0)
    return plans;
  add_plans<pp::OneFOneB>(plans, "1F1B", 2, 3);
  add_plans<pp::OneFOneB>(plans, "1F1B", 3, 2);
  add_plans<pp::Interleaved<2>>(plans, "Interleaved", 2, 2);
  add_plans<pp::VHalf>(plans, "V-Half", 3, 2);
  add_plans<pp::Seq1F1B<2>>(plans, "Seq1F1B", 2, 2);
  add_offloaded<pp::OneFOneB>(plans, "1F1B", 2, 3);
  return plans;
}

bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

//! The reports of all ranks that did not do the deed, and of the one that did.
struct tally {
  int runs = 0;
  int told = 0;    //!< runs in which the others failed
  int found = 0;   //!< of those, where they name the rank at which the fault was
  int circled = 0; //!< of the rest, where they name a circle of ranks that it is in
};

// A report has a line of its rank, which names an item of the program where the run failed in a
// step.
void check_place(std::string const& report, std::string const& who, bool in_step) {
  CHECK(has(report, who));
  if (!in_step)
    return;
  std::string const line = report.substr(report.find(who) + who.size());
  CHECK((has(line.substr(0, line.find('\n')), " item ") || has(line, "has ended all items") ||
         has(line, "waits for rank") || has(line, "communicator")));
}

// Nobody has waited for ever, but for a rank whose own GPU does not answer while it makes its
// memory, or while a test clears its own.
void check_no_deadlock(standin::fault const& fault) {
  std::string const rank = "rank " + std::to_string(fault.rank) + " waits in ";
  for (standin::report const& found : standin::reports()) {
    if (found.kind != standin::finding::deadlock)
      continue;
    CAPTURE(found.text);
    CHECK(fault.action == fault_action::stall);
    CHECK(std::all_of(found.waits.begin(), found.waits.end(), [&](std::string const& line) {
      return line.find(rank + "cudaStreamSynchronize") == 0 ||
             line.find(rank + "cudaDeviceSynchronize") == 0 ||
             has(line, " is stalled by an injected fault");
    }));
  }
}

// All ranks end in bounded time. The others, if they have not done all that they were to do, fail
// for the same reason, say where they stood, and with whom it began.
void check_ranks(nccl_result const& result,
                 standin::fault const& fault,
                 std::chrono::nanoseconds bound,
                 bool answers,
                 tally& sum) {
  ++sum.runs;
  std::string reason;
  int failed = 0;
  bool found = true;
  bool circled = true;
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    rank_report const& report = result.ranks[rank];
    CHECK((report.ended || result.outcomes[rank].threw || result.outcomes[rank].died));
    if (static_cast<int>(rank) == fault.rank)
      continue;
    CAPTURE(rank);
    CAPTURE(report.failure);
    CHECK(report.end < standin::clock::time_point(bound));
    if (report.failure.empty())
      continue;
    ++failed;
    std::string const line = report.failure.substr(0, report.failure.find('\n'));
    CHECK(line.find("nccl: rank ") == 0);
    CHECK((reason.empty() || reason == line));
    reason = line;
    check_place(report.failure, "\n  rank " + std::to_string(rank) + ' ', has(line, " failed: "));
    found = found && report.failed_device == fault.rank;
    circled = circled && has(report.failure, "\n  rank " + std::to_string(fault.rank) + ' ');
  }
  CAPTURE(reason);
  CAPTURE(result.ranks[fault.rank == 0 ? 1 : 0].failure);
  // A rank that has told the others that it has closed leaves in peace, whatever NCCL says.
  bool const closing = has(reason, " could not close: ");
  if (answers)
    CHECK((found || circled || closing));
  if (answers && (fault.action == fault_action::error || fault.action == fault_action::death))
    CHECK((found || closing));
  sum.told += failed > 0;
  sum.found += failed > 0 && found;
  sum.circled += failed > 0 && !found;
}

void break_ranks(deed const& what, queue_case const& queue = {}) {
  tally sum;
  std::uint64_t const stride = everything() ? queue.whole : queue.stride;
  std::uint64_t offset = 0;
  // A wait, the end of the streams, the first report, and the answers.
  auto bound = deadline + 3 * abort_deadline + 5ms;
  if (queue.run_ahead == unbounded)
    bound += abort_deadline; // the rank sits in a launch until the thread next to it ends that
  for (named_plan const& plan : plans_to_break(queue.depth))
    for (bool const graph : {false, true}) {
      nccl_case const work{.work = plan.work,
                           .graph = graph,
                           .checked = has(plan.name, "Seq1F1B"),
                           .run_ahead = queue.run_ahead,
                           .steps = 2,
                           .deadline = deadline,
                           .abort_deadline = abort_deadline,
                           .end_together = false};
      standin::configure({.launch_depth = queue.depth});
      (void)run_on_ranks(work);
      CHECK(standin::summary() == "");
      std::vector<std::uint64_t> calls;
      for (int rank = 0; rank < plan.work.over.extents.devices; ++rank)
        calls.push_back(standin::calls_of_rank(rank));
      for (int rank = 0; rank < plan.work.over.extents.devices; ++rank)
        for (std::uint64_t call = 1 + ++offset % stride;
             call <= calls[static_cast<std::size_t>(rank)];
             call += stride) {
          standin::fault const fault{.call = call, .rank = rank, .action = what.action};
          CAPTURE(plan.name);
          CAPTURE(graph);
          CAPTURE(call);
          CAPTURE(rank);
          CAPTURE(std::string(what.name));
          standin::configure(
            {.launch_depth = queue.depth, .peers_notice_death = what.noticed, .faults = {fault}});
          auto const result = run_on_ranks(work);
          // A rank that sits in a launch tells nobody where it stands until its deadline, and may
          // be named in place of the one with which it began.
          bool const sits = queue.run_ahead == unbounded;
          check_ranks(result, fault, bound, !sits, sum);
          check_no_deadlock(fault);
        }
    }
  std::printf("ranks, queue %4d/%-7d %-22s %6d runs, %6d told, %6d to the rank, %6d to a circle "
              "with it\n",
              queue.depth,
              queue.run_ahead,
              what.name,
              sum.runs,
              sum.told,
              sum.found,
              sum.circled);
  CHECK((sum.told > sum.runs / 16 || sum.runs < 200));
}

// One process, so an error names the call, and a report of a step every device with its item.
void check_streams(std::string const& failure,
                   std::string const& thrown,
                   bool stalls_in_graph,
                   tally& sum) {
  ++sum.runs;
  CAPTURE(failure);
  CAPTURE(thrown);
  sum.told += !failure.empty() || !thrown.empty();
  if (!failure.empty()) {
    CHECK(failure.find("cuda: ") == 0);
    bool const outside = has(failure, " all items") || has(failure, "cuda: an earlier step");
    // While a launch of a graph does not return, nothing is asked of the GPU.
    bool const in_launch = stalls_in_graph && has(failure, "\n  the launch of its graph has not ");
    CHECK((has(failure, " item ") || has(failure, " when it was to ") || outside || in_launch));
    sum.found += has(failure, " item ") || has(failure, " when it was to ");
  }
}

void break_streams(deed const& what, queue_case const& queue = {.stride = 61}) {
  tally sum;
  std::uint64_t const stride = everything() ? queue.whole : queue.stride;
  std::uint64_t offset = 0;
  for (named_plan const& plan : plans_to_break(queue.depth))
    for (bool const graph : {false, true})
      for (bool const spread : {false, true}) {
        std::vector<int> gpus;
        for (int d = 0; spread && d < plan.work.over.extents.devices; ++d)
          gpus.push_back(d);
        // A look at all devices takes milliseconds of the model: a much shorter deadline would take
        // them for a suspension.
        streams_case const work{.work = plan.work,
                                .graph = graph,
                                .run_ahead = queue.run_ahead,
                                .steps = 2,
                                .gpus = gpus,
                                .deadline_ns = std::chrono::nanoseconds(deadline).count()};
        // Devices on one GPU share its queue.
        int const depth = queue.depth * (spread ? 1 : plan.work.over.extents.devices);
        standin::configure({.launch_depth = depth});
        auto const calls = run_on_streams(work).calls;
        for (std::uint64_t call = 1 + ++offset % stride; call <= calls; call += stride) {
          CAPTURE(plan.name);
          CAPTURE(graph);
          CAPTURE(call);
          CAPTURE(std::string(what.name));
          standin::fault const fault{.call = call, .rank = 0, .action = what.action};
          standin::configure({.launch_depth = depth, .faults = {fault}});
          std::string failure;
          auto end = standin::clock::time_point(1h);
          auto const outcomes = standin::run_ranks(1, [&](int) {
            failure = run_on_streams(work).failure;
            end = standin::clock::now();
          });
          // A wait inside of CUDA in the constructor or in the test itself has no deadline.
          if (!outcomes[0].threw)
            CHECK(end < standin::clock::time_point(deadline + 15ms));
          check_streams(
            failure, outcomes[0].what, graph && what.action == fault_action::stall, sum);
          check_no_deadlock(fault);
        }
      }
  std::printf("streams, queue %4d/%-5d %-22s %6d runs, %6d told, %6d with an item\n",
              queue.depth,
              queue.run_ahead,
              what.name,
              sum.runs,
              sum.told,
              sum.found);
  CHECK((sum.told > sum.runs / 16 || sum.runs < 200));
}

} // namespace

TEST_CASE("an error at any call ends all ranks, which name its rank") {
  break_ranks(deeds()[0]);
}
TEST_CASE("a stall at any call ends all ranks at the deadline") {
  break_ranks(deeds()[1]);
}
TEST_CASE("an error on the device at any call ends all ranks") {
  break_ranks(deeds()[2]);
}
TEST_CASE("the death of a rank at any call ends the others, whether NCCL notices or not") {
  break_ranks(deeds()[3]);
  break_ranks(deeds()[4]);
}
TEST_CASE("a fault at any call of the streams of one process ends the step, with device and item") {
  for (std::size_t which : {0U, 1U, 2U})
    break_streams(deeds()[which]);
}
TEST_CASE("a fault at any call ends all ranks with a short queue of launches") {
  for (queue_case const& queue :
       {queue_case{16, 2, 397}, queue_case{128, 16, 1999, 53}, queue_case{1024, 128, 9973, 997}})
    for (deed const& each : deeds())
      break_ranks(each, queue);
}
TEST_CASE("a fault at any call ends all ranks also where one sits in a launch") {
  // Nothing ends a launch after a pass that never does, so nothing stalls here.
  for (queue_case const& queue : {queue_case{16, unbounded, 397},
                                  queue_case{128, unbounded, 1999, 53},
                                  queue_case{1024, unbounded, 9973, 997}})
    for (deed const& each : deeds())
      if (each.action != fault_action::stall)
        break_ranks(each, queue);
}
TEST_CASE("a fault at any call of streams ends the step with a short queue of launches") {
  for (queue_case const& queue :
       {queue_case{16, 2, 97}, queue_case{128, 16, 997, 13}, queue_case{1024, 128, 9973, 97}})
    for (std::size_t which : {0U, 1U, 2U})
      break_streams(deeds()[which], queue);
}
