// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Messages with headers: the executor for NCCL finds what the stand-in changes on the way.
#include <pipe/plan/plan.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>

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

namespace pp = pipelining;

constexpr std::size_t header_bytes = 56;

//! A message of a plan, and where it is among all from its sender to its receiver.
struct sent_message {
  int from = 0;
  int to = 0;
  int sequence = 0;
  int per_step = 0; //!< messages from the one to the other in a step
  std::size_t bytes = 0;
  std::string about{};

  //! In step 0, 1, ...; one message comes before all: the first use of a peer.
  [[nodiscard]] std::uint64_t position(int step, int number) const {
    return 2 + 2 * static_cast<std::uint64_t>(step * per_step + number);
  }
  [[nodiscard]] standin::corruption payload(int step, std::size_t byte) const {
    return {.from = from, .to = to, .message = position(step, sequence), .byte = byte};
  }
  [[nodiscard]] standin::corruption header(int step, std::size_t byte) const {
    return {.from = from, .to = to, .message = position(step, sequence) + 1, .byte = byte};
  }
  //! An earlier message and its header in place of this one and its own.
  [[nodiscard]] std::vector<standin::corruption> replaced(int step, int by_step, int by) const {
    standin::corruption data = payload(step, 0);
    standin::corruption head = header(step, 0);
    data.instead = position(by_step, by);
    head.instead = data.instead + 1;
    return {data, head};
  }
};

std::vector<sent_message> messages_of(pp::plan const& work) {
  std::vector<sent_message> all;
  for (int device = 0; device < work.over.extents.devices; ++device)
    for (pp::item const& step : work.program_of(device))
      if (step.what == pp::operation::receive)
        all.push_back({.from = work.message_of(step).peer,
                       .to = device,
                       .sequence = work.message_of(step).sequence,
                       .bytes = static_cast<std::size_t>(work.uses_of(step)[0].bytes),
                       .about = pp::detail::describe_subject(step, work)});
  for (sent_message& one : all)
    one.per_step =
      static_cast<int>(std::count_if(all.begin(), all.end(), [&](sent_message const& other) {
        return other.from == one.from && other.to == one.to;
      }));
  return all;
}

// Messages of step 1 are corrupted: after the last step a rank may have closed in peace before
// another one looks.
nccl_result run(pp::plan const& work, bool graph, std::vector<standin::corruption> corrupted) {
  standin::configure({.corrupted = std::move(corrupted)});
  return run_on_ranks(
    {.work = work, .graph = graph, .checked = true, .steps = 3, .end_together = false});
}

//! All ranks end with this report of the receiver.
void check_reports(nccl_result const& result, sent_message const& sent, std::string const& found) {
  std::string const expected = "nccl: rank " + std::to_string(sent.to) +
                               " failed: the message with what comes of the " + sent.about +
                               " from rank " + std::to_string(sent.from) + ' ' + found;
  CAPTURE(expected);
  for (rank_report const& rank : result.ranks) {
    CAPTURE(rank.failure);
    CHECK(rank.failure.find(expected) == 0);
    CHECK(rank.failure.find("\n  rank " + std::to_string(sent.to) + " has found it at item ") !=
          std::string::npos);
    CHECK(rank.failed_device == sent.to);
    CHECK(rank.ended);
  }
  CHECK(!standin::found(standin::finding::misuse));
  CHECK(!standin::found(standin::finding::deadlock));
}

std::vector<named_plan> plans_to_corrupt() {
  std::vector<named_plan> plans;
  add_plans<pp::OneFOneB>(plans, "1F1B", 2, 3);
  add_plans<pp::VHalf>(plans, "V-Half", 3, 2);
  return plans;
}

} // namespace

TEST_CASE("checked messages that arrive as they were sent change nothing, on every machine") {
  auto const all = test_plans();
  // 1F1B and V-Half under all policies.
  for (std::size_t const which : {3U, 4U, 5U, 12U, 13U, 14U})
    for (bool const graph : {false, true})
      standin::for_each_machine(
        {}, 1, [&](standin::configuration const& how, std::string const& machine) {
          named_plan const& plan = all[which];
          CAPTURE(plan.name);
          CAPTURE(machine);
          CAPTURE(graph);
          standin::configure(how);
          auto const result = run_on_ranks({.work = plan.work,
                                            .graph = graph,
                                            .one_message_stream = how.resident_nccl_kernels == 1,
                                            .checked = true});
          for (rank_report const& rank : result.ranks)
            CHECK(rank.failure == "");
          for (std::size_t s = 0; s < plan.expected.gradients.size(); ++s)
            CHECK(result.gradients[s] == 3 * plan.expected.gradients[s]);
          CHECK(result.losses == 3 * plan.expected.losses);
          standin::report_leaks();
          CHECK(standin::summary() == "");
        });
}

TEST_CASE("checks set up nothing after the warm-up") {
  for (named_plan const& plan : plans_to_corrupt())
    for (bool const graph : {false, true}) {
      standin::configure({});
      CHECK(run_on_ranks({.work = plan.work, .graph = graph, .checked = true, .freeze_after = 2})
              .findings == "");
    }
}

TEST_CASE("one changed bit in any message ends all ranks, with the message") {
  for (named_plan const& plan : plans_to_corrupt())
    for (bool const graph : {false, true}) {
      std::size_t byte = 0;
      for (sent_message const& sent : messages_of(plan.work)) {
        CAPTURE(plan.name);
        CAPTURE(graph);
        byte = (byte + 5) % sent.bytes;
        check_reports(run(plan.work, graph, {sent.payload(1, byte)}), sent, "arrived corrupted: ");
      }
    }
}

TEST_CASE("another message in place of the one expected is told, with what it is") {
  for (named_plan const& plan : plans_to_corrupt())
    for (bool const graph : {false, true})
      for (sent_message const& sent : messages_of(plan.work)) {
        CAPTURE(plan.name);
        CAPTURE(graph);
        check_reports(run(plan.work, graph, sent.replaced(1, 0, sent.sequence)),
                      sent,
                      "is another one: expected it of step 2, found it of step 1\n");
        if (sent.sequence > 0)
          check_reports(run(plan.work, graph, sent.replaced(1, 1, sent.sequence - 1)),
                        sent,
                        "is another one: expected message " + std::to_string(sent.sequence) +
                          " between these ranks, found message " +
                          std::to_string(sent.sequence - 1) + ", with what comes of the ");
      }
}

TEST_CASE("every byte of a message counts, and every byte of its header") {
  // More words than the kernel has threads, and an end that is no word.
  pp::uniform_sizes sizes = message_words;
  sizes.message = 8 * 513 + 5;
  auto const work =
    pp::lower<pp::communicators::per_pair>(pp::make_timetable<pp::OneFOneB>({2, 1}), sizes);
  sent_message const sent = messages_of(work).back();
  REQUIRE(sent.bytes == 4109);
  for (std::size_t const byte : {0U, 7U, 8U, 2048U, 4095U, 4096U, 4103U, 4104U, 4108U})
    check_reports(run(work, false, {sent.payload(1, byte)}), sent, "arrived corrupted: ");
  char const* const words[] = {"arrived without its header",
                               "is another one: expected it of step 2, found it of step ",
                               "is another one: expected a message of rank ",
                               "is another one: expected a message to rank ",
                               "is another one: expected message 0 between these ranks, found ",
                               "is another one: expected 4109 bytes, found ",
                               "arrived corrupted: the checksum of its 4109 bytes is 0x"};
  for (std::size_t byte = 0; byte < header_bytes; ++byte) {
    CAPTURE(byte);
    check_reports(run(work, false, {sent.header(1, byte)}), sent, words[byte / 8]);
  }
}

TEST_CASE("without headers the same corruption goes into the gradients, and nobody notices") {
  auto const plans = plans_to_corrupt();
  sent_message const sent = messages_of(plans[1].work).back();
  standin::corruption bit = sent.payload(0, 3);
  bit.message = 2 + static_cast<std::uint64_t>(sent.sequence);
  for (bool const graph : {false, true}) {
    standin::configure({.corrupted = {bit}});
    auto const result = run_on_ranks({.work = plans[1].work, .graph = graph});
    for (rank_report const& rank : result.ranks)
      CHECK(rank.failure == "");
    CHECK(standin::summary() == "");
    bool differs = false;
    for (std::size_t s = 0; s < result.gradients.size(); ++s)
      differs = differs || result.gradients[s] != 3 * plans[1].expected.gradients[s];
    CHECK(differs);
  }
}

TEST_CASE("ranks that do not agree on headers refuse to begin") {
  standin::configure({});
  auto const result =
    run_on_ranks({.work = plans_to_corrupt()[1].work, .checked = true, .unchecked_rank = 1});
  for (rank_report const& rank : result.ranks)
    CHECK(rank.failure.find("nccl: rank 1 could not connect: devices 0 and 1 disagree: elements "
                            "'checked ' vs ''") == 0);
}
