// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What follows complete gradients: where it stands in a plan, and that the proof wants it there.
#include <pipe/cluster/plan_agreement.hpp>
#include <pipe/plan/fingerprint.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/chimera.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/view/plan_tables.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <tests/support/spoiled_plans.hpp>
#include <utility>
#include <vector>

#include "tests/support/rendezvous_machine.hpp"

namespace pp = pipelining;
using pp::detail::subject;

namespace {

constexpr pp::uniform_sizes both{
  .message = 64, .tied_bytes = 1000, .totals_bytes = 12, .copied_gradient = 500};

//! Everything of a device that is not about passes, a line each.
std::vector<std::string> hooks_of(pp::plan const& work, int device) {
  std::vector<std::string> lines;
  for (pp::item const& step : work.program_of(device))
    if (step.about != subject::pass)
      lines.push_back(pp::describe(step, work));
  return lines;
}

//! The nth item of a device about a subject that runs, sends or receives.
pp::item& find(pp::plan& work, int device, pp::operation what, subject about, int nth = 0) {
  auto i = static_cast<std::size_t>(work.offsets[static_cast<std::size_t>(device)]);
  for (;; ++i)
    if (work.items[i].what == what && work.items[i].about == about && nth-- == 0)
      return work.items[i];
}

template <class Policy>
void check_sound(pp::timetable_view table, bool drain_in_all_orders) {
  pp::plan const work = pp::lower<Policy>(table, both); // throws unless it is proven
  int const stages = table.over.extents.stages();
  int const last = pp::device_of(table.over.extents, stages - 1);
  bool const apart = stages > 1 && last != pp::device_of(table.over.extents, 0);
  int tied = 0;
  int updates = 0;
  for (pp::item const& step : work.items) {
    tied += step.about == subject::tied_gradient && step.what == pp::operation::send ? 1 : 0;
    updates += step.about == subject::update ? 1 : 0;
  }
  CHECK(tied == (apart ? 2 : 0));
  CHECK(updates == stages);
  CHECK(pp::prove(work, pp::lower_evaluation<Policy>(table, both)));
  CHECK(pp::prove(work, work));
  if (!drain_in_all_orders)
    return;
  auto const row = support::messages_of(work);
  CHECK(support::rendezvous_machine(row).run() == support::outcome::drains);
  CHECK(support::mirrored(row));
}

//! What two copies of every stage have in a plan; both ends of a tie are on one device.
template <class Policy>
void check_copied(pp::timetable_view table) {
  pp::plan const work = pp::lower<Policy>(table, both); // throws unless it is proven
  int const stages = table.over.extents.stages();
  int sent[2]{};
  int ran[3]{};
  for (pp::item const& step : work.items) {
    bool const sends = step.what == pp::operation::send;
    bool const runs = step.what == pp::operation::run;
    sent[0] += sends && step.about == subject::copied_gradient ? 1 : 0;
    sent[1] += sends && step.about == subject::tied_gradient ? 1 : 0;
    ran[0] += runs && step.about == subject::add_copies ? 1 : 0;
    ran[1] += runs && step.about == subject::contribution ? 1 : 0;
    ran[2] += runs && step.about == subject::update ? 1 : 0;
  }
  CHECK(sent[0] == 2 * stages);
  CHECK(sent[1] == 0);
  CHECK(ran[0] == 2 * stages);
  CHECK(ran[1] == stages);
  CHECK(ran[2] == 2 * stages);
  CHECK(pp::prove(work, pp::lower_evaluation<Policy>(table, both)));
  CHECK(pp::prove(work, work));
}

template <class Schedule>
void check_schedule() {
  for (int devices = 1; devices <= 5; ++devices)
    for (int microbatches = 1; microbatches <= 7; microbatches += 2) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      auto const table = pp::make_timetable<Schedule>({devices, microbatches});
      bool const few = devices <= 3 && microbatches == 1;
      check_sound<pp::communicators::per_pair>(table, few);
      check_sound<pp::communicators::per_edge>(table, few);
      check_sound<pp::communicators::one>(table, few);
    }
}

} // namespace

TEST_CASE("plans with tied weights and totals are proven, whatever schedule and policy") {
  check_schedule<pp::OneFOneB>();
  check_schedule<pp::Interleaved<3>>();
  check_schedule<pp::VHalf>();
  check_schedule<pp::ZeroBubbleH1>();
  check_schedule<pp::Seq1F1B<2>>();
}

TEST_CASE("the last stage hands over its tied gradient while earlier stages still run") {
  pp::plan work = pp::lower(pp::make_timetable<pp::OneFOneB>({3, 4}), both);
  CHECK(hooks_of(work, 0) ==
        std::vector<std::string>{"receive the tied gradient of stage 2 from device 2",
                                 "run the tied gradient of stage 0",
                                 "send the tied gradient of stage 0 to device 2",
                                 "run the addition of the tied gradients on stage 0",
                                 "receive the totals of stages 1 to 2 from device 1",
                                 "run the totals of stage 0",
                                 "send the totals of all stages to device 1",
                                 "run the optimizer step of stage 0"});
  CHECK(hooks_of(work, 2) ==
        std::vector<std::string>{"run the tied gradient of stage 2",
                                 "send the tied gradient of stage 2 to device 0",
                                 "receive the tied gradient of stage 0 from device 0",
                                 "run the addition of the tied gradients on stage 2",
                                 "run the totals of stage 2",
                                 "send the totals of stage 2 to device 1",
                                 "receive the totals of all stages from device 1",
                                 "run the optimizer step of stage 2"});
  // Device 0 posts the receive before its last two backward passes.
  auto const steps = work.program_of(0);
  auto const* const received = &find(work, 0, pp::operation::receive, subject::tied_gradient);
  int passes_after = 0;
  for (auto const* step = received; step != steps.data() + steps.size(); ++step)
    passes_after += step->what == pp::operation::run && step->about == subject::pass ? 1 : 0;
  CHECK(passes_after == 2);
}

TEST_CASE("a plan without hooks is as it was, and one with hooks has another fingerprint") {
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 4});
  pp::plan const plain = pp::lower(table, pp::uniform_sizes{.message = 64});
  CHECK(pp::detail::summarise(plain) ==
        pp::detail::summarise(pp::lower(table, pp::uniform_sizes{.message = 64})));
  auto const difference = [&](pp::uniform_sizes const& sizes) {
    return pp::detail::first_difference(0,
                                        pp::detail::summarise(plain).lines,
                                        1,
                                        pp::detail::summarise(pp::lower(table, sizes)).lines);
  };
  CHECK(difference({.message = 64, .tied_bytes = 8}) ==
        "devices 0 and 1 disagree: messages 16 vs 18");
  CHECK(difference({.message = 64, .totals_bytes = 8}) ==
        "devices 0 and 1 disagree: messages 16 vs 20");
  pp::plan const sound = pp::lower(table, both);
  for (std::size_t i = 0; i < sound.items.size(); ++i) {
    if (sound.items[i].about == subject::pass)
      continue;
    pp::plan changed = sound;
    changed.items[i].about = subject::pass;
    CHECK(pp::detail::summarise(changed) != pp::detail::summarise(sound));
    changed = sound;
    support::uses_of(changed, changed.items[i])[0].index += 1;
    CHECK(pp::detail::summarise(changed) != pp::detail::summarise(sound));
    if (pp::detail::rows_of(sound, sound.items[i]) > 0) {
      changed = sound;
      support::uses_of(changed, changed.items[i])[0].count += 1;
      CHECK(pp::detail::summarise(changed) != pp::detail::summarise(sound));
    }
    if (sound.items[i].what == pp::operation::run)
      continue;
    changed = sound;
    support::message_of(changed, changed.items[i]).number += 1;
    CHECK(pp::detail::summarise(changed) != pp::detail::summarise(sound));
  }
}

TEST_CASE("tables show what follows the gradients") {
  pp::plan const work = pp::lower(pp::make_timetable<pp::OneFOneB>({3, 4}), both);
  std::string const memory = pp::describe_memory(work);
  CHECK(memory.find("     0  tied_gradient          2             1024") != std::string::npos);
  CHECK(memory.find("     1  tied_gradient") == std::string::npos);
  CHECK(memory.find("     1  totals                 3              256") != std::string::npos);
  CHECK(pp::describe_calls(work).find("3 communicators") != std::string::npos);
  CHECK(pp::detail::count_calls(work).passes == 24);
  CHECK(pp::detail::count_calls(work).messages == 2 * (16 + 2 + 4));
}

TEST_CASE("a tied gradient that does not fit is named") {
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 4});
  CHECK_THROWS_WITH_AS(
    pp::lower(table, both, {.memory_limit = 3000}),
    "plan: an arena is over the memory limit (device 0: 3584 of 3000 bytes; most "
    "of it for class tied_gradient, 2 slots of 1024 bytes, first in use together "
    "at the tied gradient of stage 2)",
    std::length_error);
}

TEST_CASE("two copies of every stage add up their gradients, then tie and total them") {
  pp::plan work = pp::lower(pp::make_timetable(pp::DualPipe<>{}, {2, 4}), both);
  CHECK(hooks_of(work, 0) == std::vector<std::string>{
                               "run the gradient of a copy of stage 1",
                               "send the gradient of a copy of stage 1 to device 1",
                               "receive the gradient of a copy of stage 1 from device 1",
                               "run the addition of the gradients of all copies of stage 1",
                               "run the gradient of a copy of stage 0",
                               "send the gradient of a copy of stage 0 to device 1",
                               "receive the gradient of a copy of stage 0 from device 1",
                               "run the addition of the gradients of all copies of stage 0",
                               "run the tied gradient of stage 0", // both ends are here: no message
                               "run the tied gradient of stage 1",
                               "run the addition of the tied gradients on stage 0",
                               "run the addition of the tied gradients on stage 1",
                               "receive the totals of stage 1 from device 1",
                               "run the totals of stage 0",
                               "send the totals of all stages to device 1",
                               "run the optimizer step of stage 0",
                               "run the optimizer step of stage 1"});
  CHECK(work.layout(0, pp::slot_class::copied_gradient).count == 2);
  CHECK(work.layout(0, pp::slot_class::copied_gradient).bytes == 512);
  // Each copy adds the gradients once, and all of them the same rows.
  auto const refused = [&](auto spoil) {
    pp::plan changed = work;
    spoil(changed);
    return pp::prove(changed).broken;
  };
  auto const add = [](pp::plan& of) -> pp::item& {
    return find(of, 0, pp::operation::run, subject::add_copies, 1);
  };
  auto const hand_over = [](pp::plan& of) -> pp::item& {
    return find(of, 1, pp::operation::run, subject::copied_gradient, 1);
  };
  CHECK(refused([](pp::plan&) {}) == pp::proof::rule::none);
  auto const use_of = [](pp::plan& of, pp::item const& step) -> pp::use& {
    return support::uses_of(of, step)[0];
  };
  CHECK(refused([&](pp::plan& of) { use_of(of, add(of)).count = 1; }) ==
        pp::proof::rule::wrong_content);
  CHECK(refused([&](pp::plan& of) { use_of(of, add(of)).index = 1; }) ==
        pp::proof::rule::wrong_content);
  CHECK(refused([&](pp::plan& of) { use_of(of, hand_over(of)).index = 0; }) ==
        pp::proof::rule::wrong_content);
  CHECK(refused([&](pp::plan& of) { hand_over(of).work.microbatch = 0; }) !=
        pp::proof::rule::none); // that is the other copy
  CHECK(refused([&](pp::plan& of) { add(of).about = subject::update; }) != pp::proof::rule::none);
  CHECK(refused([&](pp::plan& of) { add(of).work.stage = 1; }) != pp::proof::rule::none);
  CHECK(refused([&](pp::plan& of) {
          std::swap(add(of), find(of, 0, pp::operation::run, subject::tied_gradient));
        }) == pp::proof::rule::incomplete);
  CHECK(refused([&](pp::plan& of) { add(of).wait_count = 0; }) == pp::proof::rule::unordered);
}

TEST_CASE("copies of every stage are proven, whatever schedule, policy and size") {
  for (int devices = 2; devices <= 8; devices += 2)
    for (int microbatches = devices; microbatches <= 4 * devices; microbatches += devices) {
      CAPTURE(devices);
      CAPTURE(microbatches);
      std::vector<pp::dynamic_timetable> tables{
        pp::make_timetable<pp::Chimera>({devices, microbatches}),
        pp::make_timetable<pp::BitPipe>({devices, microbatches})};
      if (microbatches >= 2 * devices)
        tables.push_back(pp::make_timetable<pp::DualPipe<>>({devices, microbatches}));
      for (pp::dynamic_timetable const& table : tables) {
        check_copied<pp::communicators::per_pair>(table);
        check_copied<pp::communicators::per_edge>(table);
        check_copied<pp::communicators::one>(table);
      }
    }
}

TEST_CASE("copies are added up while other stages still run") {
  pp::plan const work = pp::lower(pp::make_timetable<pp::Chimera>({8, 8}), both);
  int passes_after = 0;
  for (int device = 0; device < 8; ++device) {
    bool added = false;
    for (pp::item const& step : work.program_of(device)) {
      added = added || step.about == subject::add_copies;
      passes_after += added && step.what == pp::operation::run && step.about == subject::pass;
    }
  }
  CHECK(passes_after > 0);
}

TEST_CASE("early steps of copies, and negative sizes, are refused") {
  auto const table = pp::make_timetable(pp::DualPipe<>{}, {2, 4});
  CHECK_THROWS_WITH_AS(
    pp::lower_post_validated(table, both),
    "plan: early steps of the optimizer need one copy of every stage, but this placement keeps "
    "several, which add up their gradients first; lower with step_validation::at_once",
    std::invalid_argument);
  CHECK_NOTHROW(pp::lower_evaluation(table, pp::uniform_sizes{.totals_bytes = 8}));
  CHECK_THROWS_WITH_AS(pp::lower(table, pp::uniform_sizes{.totals_bytes = -8}),
                       "plan: tied_bytes and totals_bytes must not be negative",
                       std::invalid_argument);
}

TEST_CASE("totals and tied weights of stages that nobody gives a gradient are refused") {
  // A microbatch stays on its device and has a stage for each group of layers whose weights come
  // by; or a stage is only ever run forward.
  std::string const sentence =
    "plan: totals_bytes is for a row of every stage once its gradients are complete, but no pass "
    "completes those of stage 0; leave it out, and add up totals after the iteration";
  std::string const tied =
    "plan: tied weights need a pass that completes the gradients of each end, but none completes "
    "those of stage 0; leave tied_bytes out, and add up both gradients after the iteration";
  for (pp::dynamic_timetable const& table : {pp::make_timetable(pp::WeiPipe{}, {4, 8}),
                                             pp::make_timetable(pp::RoundPipe<2, 6>{}, {4, 8})}) {
    CHECK_THROWS_WITH_AS(pp::lower(table, pp::uniform_sizes{.totals_bytes = 8}),
                         sentence.c_str(),
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(
      pp::lower(table, pp::uniform_sizes{.tied_bytes = 8}), tied.c_str(), std::invalid_argument);
  }
}

TEST_CASE("what a plan must not do behind its gradients is found") {
  pp::plan work =
    pp::lower<pp::communicators::per_edge>(pp::make_timetable<pp::OneFOneB>({3, 4}), both);
  REQUIRE(pp::prove(work));
  auto const drop = [&work](int device, pp::item const& step) {
    work.items.erase(work.items.begin() + (&step - work.items.data()));
    for (std::size_t d = static_cast<std::size_t>(device) + 1; d < work.offsets.size(); ++d)
      --work.offsets[d];
  };
  auto const last_pass = [&work](int device) -> pp::item& {
    pp::item* found = nullptr;
    for (int i = work.offsets[static_cast<std::size_t>(device)];
         i < work.offsets[static_cast<std::size_t>(device) + 1];
         ++i)
      if (pp::item& step = work.items[static_cast<std::size_t>(i)];
          step.what == pp::operation::run && step.about == subject::pass)
        found = &step;
    return *found;
  };
  SUBCASE("a stage whose optimizer does not step") {
    drop(1, find(work, 1, pp::operation::run, subject::update));
    pp::proof const verdict = pp::prove(work);
    CHECK(verdict.broken == pp::proof::rule::wrong_passes);
    CHECK(pp::describe(verdict, work) ==
          "plan: a pass does not run exactly once on the device of its stage (device 1: optimizer "
          "step of stage 1)");
  }
  SUBCASE("a stage that steps twice") {
    find(work, 2, pp::operation::run, subject::contribution).about = subject::update;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_passes);
  }
  SUBCASE("a step on the device of another stage") {
    find(work, 1, pp::operation::run, subject::update).work.stage = 2;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_passes);
  }
  SUBCASE("an update that does not wait for the totals") {
    find(work, 2, pp::operation::run, subject::update).wait_count = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::unordered);
  }
  SUBCASE("an addition that does not wait for the other gradient") {
    find(work, 2, pp::operation::run, subject::add_tied).wait_count = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::unordered);
  }
  SUBCASE("rows that are sent before they are written") {
    find(work, 1, pp::operation::send, subject::gather).wait_count = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::unordered);
  }
  SUBCASE("a row in the place of another stage") {
    support::uses_of(work, find(work, 1, pp::operation::run, subject::contribution))[0].index = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_content);
  }
  SUBCASE("a message with a row too few") {
    for (pp::item* step : {&find(work, 1, pp::operation::send, subject::gather),
                           &find(work, 0, pp::operation::receive, subject::gather)})
      support::uses_of(work, *step)[0].count = 1;
    CHECK_FALSE(pp::prove(work));
  }
  SUBCASE("the two tied gradients in each other's places") {
    support::uses_of(work, find(work, 2, pp::operation::receive, subject::tied_gradient))[0].index =
      1;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_content);
  }
  SUBCASE("a tied gradient that is sent too early") {
    pp::item& complete = last_pass(0);
    REQUIRE(complete.completes_stage);
    complete.completes_stage = false;
    pp::proof const verdict = pp::prove(work);
    CHECK(verdict.broken == pp::proof::rule::incomplete);
    CHECK(pp::describe(verdict, work)
            .find("plan: a step uses gradients that are not complete when "
                  "it runs (device 0, item ") == 0);
    CHECK(pp::describe(verdict, work).find(": run the tied gradient of stage 0)") !=
          std::string::npos);
  }
  SUBCASE("gradients that grow after they are complete") {
    pp::item& first = find(work, 1, pp::operation::run, subject::pass, 2);
    REQUIRE(first.work.kind == pp::pass_kind::backward);
    first.completes_stage = true;
    CHECK(pp::prove(work).broken == pp::proof::rule::incomplete);
  }
  SUBCASE("totals that leave a stage without its tied gradient") {
    pp::item& added = find(work, 0, pp::operation::run, subject::add_tied);
    pp::item& row = find(work, 0, pp::operation::run, subject::contribution);
    std::swap(added.about, row.about);
    CHECK_FALSE(pp::prove(work));
  }
  SUBCASE("a message that nobody receives") {
    for (pp::item& step : work.items)
      step.wait_count = 0;
    drop(0, find(work, 0, pp::operation::receive, subject::gather));
    CHECK(pp::prove(work).broken == pp::proof::rule::unmatched);
  }
  SUBCASE("two messages of one number") {
    for (int const device : {1, 2})
      support::message_of(work, find(work, device, pp::operation::send, subject::gather)).number =
        3;
    CHECK(pp::prove(work).broken == pp::proof::rule::unmatched);
  }
  SUBCASE("a message of no number") {
    support::message_of(work, find(work, 1, pp::operation::send, subject::gather)).number =
      pp::nothing;
    CHECK(pp::prove(work).broken == pp::proof::rule::unmatched);
  }
  SUBCASE("hooks in a plan that has none") {
    work.totals_bytes = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::unmatched);
    work = pp::lower(pp::make_timetable<pp::VHalf>({1, 4}), both);
    work.tied_bytes = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_passes);
  }
}
