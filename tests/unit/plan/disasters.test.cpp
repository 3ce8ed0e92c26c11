// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plans that hung, or mixed up data, in systems that people run. Each is rejected, with its circle.
#include <pipe/flow/dependencies.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <string>
#include <tests/support/spoiled_plans.hpp>
#include <vector>

#include "tests/support/plan_builder.hpp"
#include "tests/support/rendezvous_machine.hpp"

namespace pp = pipelining;
using rule = pp::proof::rule;
using support::backward;
using support::build;
using support::forward;
using support::joined;
using support::line;
using support::outcome;
using support::receive;
using support::run;
using support::send;

namespace {

outcome simulated(pp::plan const& work, std::size_t eager = 0) {
  return support::rendezvous_machine(support::messages_of(work), eager).run();
}

std::string verdict_of(pp::plan const& work) {
  return pp::describe(pp::prove(work), work);
}

//! What a trainer that thinks of one pass at a time does: receive, compute, send.
std::vector<line> receive_compute_send(pp::timetable_view table, int device) {
  std::vector<line> lines;
  for (pp::pass const& work : table.row(device)) {
    pp::detail::dependency_list const needed(table.over, work);
    for (int k = 0; k < needed.count; ++k)
      if (int const owner = pp::device_of(table, needed[k].stage); owner != device)
        lines.push_back(receive(pp::detail::pass_at(table.over, needed.index(k)), owner));
    lines.push_back(run(work));
    if (int const to = pp::detail::receiver(table.over, work); to != pp::nothing)
      lines.push_back(send(work, to));
  }
  return lines;
}

} // namespace

TEST_CASE("receives hoisted past sends on a two-way pair") {
  // Both devices want their message before they give theirs.
  pp::plan const work =
    build({.devices = 2, .microbatches = 2},
          {{run(forward(0, 1)), receive(backward(1, 0), 1), send(forward(0, 1), 1)},
           {run(backward(1, 0)), receive(forward(0, 1), 0), send(backward(1, 0), 0)}});
  CHECK(simulated(work) == outcome::hangs);
  CHECK(pp::prove(work).broken == rule::circular);
  CHECK(verdict_of(work) ==
        "plan: devices wait for each other in a circle:\n"
        "  device 0, item 1: receive what comes of the backward of stage 1, microbatch 0 from "
        "device 1\n"
        "  device 1, item 1: receive what comes of the forward of stage 0, microbatch 1 from "
        "device 0\n");
}

TEST_CASE("a V shape whose two flows on one edge are received the other way round") {
  // Device 0 holds stages 0 and 3: activations of stage 0 and gradients of stage 3 share an edge.
  pp::shape const v{
    .devices = 2, .microbatches = 2, .stages_per_device = 2, .where = pp::placement::wave};
  REQUIRE(pp::detail::receiver({v}, forward(0, 1)) == 1);
  REQUIRE(pp::detail::receiver({v}, backward(3, 0)) == 1);
  pp::plan const work = build(v,
                              {{send(forward(0, 1), 1), send(backward(3, 0), 1)},
                               {receive(backward(3, 0), 0), receive(forward(0, 1), 0)}});
  CHECK(simulated(work) == outcome::mixes_up);
  CHECK(pp::prove(work).broken == rule::fifo_differs);
  CHECK(verdict_of(work).find("forward of stage 0, microbatch 1") != std::string::npos);
}

TEST_CASE("a group on one side only") {
  pp::plan const work = build({.devices = 2, .microbatches = 2},
                              {{send(forward(0, 1), 1), joined(receive(backward(1, 0), 1))},
                               {receive(forward(0, 1), 0), send(backward(1, 0), 0)}});
  // With progress inside the group it would drain, which is what makes it a trap: nobody promises
  // that progress.
  CHECK(simulated(work) == outcome::drains);
  CHECK_FALSE(support::mirrored(support::messages_of(work)));
  CHECK(pp::prove(work).broken == rule::bad_group);
}

TEST_CASE("a group of more messages than are launched at once") {
  std::vector<line> sends;
  std::vector<line> receives;
  for (int microbatch = 0; microbatch <= pp::detail::most_group_messages; ++microbatch) {
    sends.push_back(joined(send(forward(0, microbatch), 1)));
    receives.push_back(joined(receive(forward(0, microbatch), 0)));
  }
  sends.front().joins = receives.front().joins = false;
  pp::shape const two{.devices = 2, .microbatches = 100};
  CHECK(pp::prove(build(two, {sends, receives})).broken == rule::bad_group);
  sends.pop_back();
  receives.pop_back();
  CHECK(pp::prove(build(two, {sends, receives})).broken == rule::wrong_passes);
}

TEST_CASE("receive, compute, send on 1F1B with no buffering") {
  for (int devices = 2; devices <= 5; ++devices) {
    auto const table = pp::make_timetable<pp::OneFOneB>({devices, 3});
    std::vector<std::vector<line>> programs;
    for (int device = 0; device < devices; ++device)
      programs.push_back(receive_compute_send(table, device));
    pp::plan const work = build(table.over.extents, programs);
    CHECK(simulated(work) == outcome::hangs);
    CHECK(simulated(work, 1) == outcome::drains); // one eager message hides it
    pp::proof const verdict = pp::prove(work);
    CHECK(verdict.broken == rule::circular);
    auto const at = static_cast<std::size_t>(verdict.item_index);
    CHECK(work.program_of(verdict.device)[at].work.kind == pp::pass_kind::forward);
  }
}

TEST_CASE("two devices, interleaved: the next device is the previous one too") {
  // Device 1 holds stages 1 and 3. Its forward of stage 1 goes on to stage 2, its gradient back to
  // stage 0: both to device 0, which asks for them in the order next, previous.
  pp::shape const looped{.devices = 2, .microbatches = 2, .stages_per_device = 2};
  REQUIRE(pp::detail::receiver({looped}, forward(1, 1)) == 0);
  REQUIRE(pp::detail::receiver({looped}, backward(1, 0)) == 0);
  pp::plan const grouped = build(looped,
                                 {{receive(backward(1, 0), 1), joined(receive(forward(1, 1), 1))},
                                  {send(forward(1, 1), 0), joined(send(backward(1, 0), 0))}});
  CHECK(simulated(grouped) == outcome::mixes_up);
  CHECK(pp::prove(grouped).broken == rule::fifo_differs);
  pp::plan const single = build(looped,
                                {{send(forward(0, 1), 1), receive(forward(1, 0), 1)},
                                 {send(forward(1, 0), 0), receive(forward(0, 1), 0)}});
  CHECK(simulated(single) == outcome::hangs);
  CHECK(pp::prove(single).broken == rule::circular);
}

TEST_CASE("a plan that needs one eager send") {
  pp::plan const work = build({.devices = 2, .microbatches = 2},
                              {{send(forward(0, 1), 1), receive(backward(1, 0), 1)},
                               {send(backward(1, 0), 0), receive(forward(0, 1), 0)}});
  CHECK(simulated(work, 1) == outcome::drains);
  CHECK(simulated(work) == outcome::hangs);
  CHECK(pp::prove(work).broken == rule::circular);
}

TEST_CASE("a circle through every device of a ring") {
  // Unrelated edges that share a line: each device wants to give before it takes.
  pp::shape const ring{.devices = 4, .microbatches = 1, .stages_per_device = 2};
  std::vector<std::vector<line>> programs;
  for (int device = 0; device < 4; ++device)
    programs.push_back({send(forward(device, 0), (device + 1) % 4),
                        receive(forward((device + 3) % 4, 0), (device + 3) % 4)});
  pp::plan const work = build<pp::communicators::one>(ring, programs);
  CHECK(simulated(work) == outcome::hangs);
  CHECK(pp::prove(work).broken == rule::circular);
  std::string const text = verdict_of(work);
  for (int device = 0; device < 4; ++device)
    CHECK(text.find("  device " + std::to_string(device) + ", item 0: send") != std::string::npos);
}

TEST_CASE("an exchange of three devices that drains only if one of them leaves early") {
  // Device 0 gives to 1, and 1 gives to 2, in one exchange. Device 2 wants to give to 0 before
  // that.
  pp::shape const ring{.devices = 3, .microbatches = 1, .stages_per_device = 2};
  pp::plan work = build<pp::communicators::exchanges_at_once>(
    ring,
    {{send(forward(0, 0), 1), receive(forward(2, 0), 2)},
     {receive(forward(0, 0), 0), joined(send(forward(1, 0), 2))},
     {send(forward(2, 0), 0), receive(forward(1, 0), 1)}});
  CHECK(simulated(work) == outcome::drains);
  CHECK(pp::prove(work).broken != rule::circular);
  for (pp::item& step : work.items)
    support::exchange_at(work, step) = step.work.stage == 2 ? pp::nothing : 7;
  CHECK(pp::prove(work).broken == rule::circular);
  std::string const text = verdict_of(work);
  CHECK(text.find("  device 0, item 0: send") != std::string::npos);
  CHECK(text.find("  device 2, item 0: send") != std::string::npos);
  std::swap(work.items[4], work.items[5]); // device 2 comes to the exchange first
  CHECK(pp::prove(work).broken != rule::circular);
}

TEST_CASE("an evaluation between two training steps, in another order on one device") {
  // Microbatch 0 is a training step, microbatch 1 an evaluation; device 1 evaluates first.
  pp::plan const work =
    build({.devices = 2, .microbatches = 2},
          {{send(forward(0, 0), 1), receive(backward(1, 0), 1), send(forward(0, 1), 1)},
           {receive(forward(0, 1), 0), receive(forward(0, 0), 0), send(backward(1, 0), 0)}});
  CHECK(simulated(work) == outcome::mixes_up);
  CHECK(pp::prove(work).broken == rule::fifo_differs);
}

TEST_CASE("a step that leaves its last message to the step after it") {
  // In a row of training steps this works; an evaluation in between takes the wrong message.
  pp::shape const two{.devices = 2, .microbatches = 1};
  pp::plan const work = build(two,
                              {{run(forward(0, 0)), send(forward(0, 0), 1), run(backward(0, 0))},
                               {receive(forward(0, 0), 0),
                                run(forward(1, 0)),
                                run(backward(1, 0)),
                                send(backward(1, 0), 0)}});
  pp::plan const evaluation = pp::lower_evaluation(pp::make_timetable<pp::OneFOneB>({2, 1}));
  CHECK(simulated(work) == outcome::hangs);
  CHECK(pp::prove(work, evaluation).broken == rule::unmatched);
  CHECK(pp::prove(evaluation, work).broken == rule::unmatched);
}

TEST_CASE("an evaluation on other communicators, devices or stages") {
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 4});
  pp::plan const train = pp::lower(table);
  CHECK(pp::prove(train, pp::lower_evaluation(table)));
  CHECK(pp::prove(train, pp::lower_evaluation<pp::communicators::per_edge>(table)).broken ==
        rule::seam);
  CHECK(pp::prove(train, pp::lower_evaluation<pp::communicators::one>(table)).broken == rule::seam);
  CHECK(pp::prove(train, pp::lower(pp::make_timetable<pp::OneFOneB>({2, 4}))).broken == rule::seam);
  CHECK(
    pp::describe(pp::prove(train, pp::lower(pp::make_timetable<pp::OneFOneB>({2, 4}))), train) ==
    "plan: two plans in a row differ in their devices, stages or communicators (device 0)");
}
