// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <tests/support/spoiled_plans.hpp>
#include <utility>

namespace pp = pipelining;

namespace {

pp::plan sound() {
  return pp::lower<pp::communicators::per_edge>(pp::make_timetable<pp::OneFOneB>({2, 4}));
}

//! Changes one thing of a plan to something near it, or to what another item has.
void corrupt(pp::plan& work, std::minstd_rand& random) {
  auto const below = [&random](std::size_t end) {
    return static_cast<std::size_t>(random()) % end;
  };
  pp::item& one = work.items[below(work.items.size())];
  pp::use& used = work.uses[below(work.uses.size())];
  pp::detail::message_end& end = work.messages[below(work.messages.size())];
  pp::item const& other = work.items[below(work.items.size())];
  int const by = static_cast<int>(below(9)) - 2;
  switch (below(26)) {
  case 0: one = other; break;
  case 1: one.work = other.work; break;
  case 2: std::swap(one, work.items[below(work.items.size())]); break;
  case 3: end.peer += by; break;
  case 4: one.lane += by; break;
  case 5: one.joins = !one.joins; break;
  case 6: end.sequence += by; break;
  case 7: used.index += by; break;
  case 8: used.of = static_cast<pp::slot_class>(below(pp::detail::slot_classes)); break;
  case 9:
    used.at = static_cast<pp::detail::slot_place>(
      below(static_cast<int>(pp::detail::slot_place::outputs) + 1));
    break;
  case 10: used.count = static_cast<std::uint16_t>(used.count + by); break;
  case 11: one.first_use += by; break;
  case 12: one.wait_count /= 2; break;
  case 13: one.what = static_cast<pp::operation>(below(3)); break;
  case 14: one.about = static_cast<pp::detail::subject>(below(5)); break;
  case 15: one.work.stage = static_cast<std::uint16_t>(one.work.stage + by); break;
  case 16: end.number += by; break;
  case 17: used.bytes += by; break;
  case 18: one.use_count = static_cast<std::uint16_t>(one.use_count + by); break;
  case 19: work.layouts[below(work.layouts.size())].count += by; break;
  case 20: work.waits[below(work.waits.size())] += by; break;
  case 21: one.message += by; break;
  case 22:
    work.exchanges.resize(work.messages.size(), pp::nothing);
    work.exchanges[below(work.exchanges.size())] += by;
    break;
  case 23: one.first_wait += by; break;
  case 24: used = work.uses[below(work.uses.size())]; break;
  default: work.lanes[below(work.lanes.size())] += by; break;
  }
}

std::size_t find(pp::plan const& work, int device, pp::operation what, int nth) {
  auto i = static_cast<std::size_t>(work.offsets[static_cast<std::size_t>(device)]);
  for (;; ++i)
    if (work.items[i].what == what && nth-- == 0)
      return i;
}

} // namespace

TEST_CASE("what a plan must not do is found") {
  pp::plan work = sound();
  REQUIRE(pp::prove(work));
  SUBCASE("a dropped wait") {
    for (pp::item& step : work.items)
      if (step.wait_count > 0) {
        step.wait_count = 0;
        break;
      }
    CHECK(pp::prove(work).broken == pp::proof::rule::unordered);
  }
  SUBCASE("a class of less than no slots") {
    work.layouts[static_cast<std::size_t>(pp::slot_class::output)].count = -1000;
    CHECK(pp::prove(work).broken == pp::proof::rule::slots_overlap);
  }
  SUBCASE("a wait for a later item") {
    work.waits[0] = static_cast<int>(work.items.size()) - 1;
    CHECK(pp::prove(work).broken == pp::proof::rule::waits_forward);
  }
  SUBCASE("a message of another size") {
    support::uses_of(work, work.items[find(work, 0, pp::operation::send, 1)])[0].bytes = 3;
    CHECK(pp::prove(work).broken == pp::proof::rule::sizes_differ);
  }
  SUBCASE("swapped receives: silent mix-up of data") {
    auto const first = find(work, 1, pp::operation::receive, 0);
    auto const second = find(work, 1, pp::operation::receive, 1);
    std::swap(work.items[first].work, work.items[second].work);
    pp::proof const verdict = pp::prove(work);
    CHECK(verdict.broken == pp::proof::rule::fifo_differs);
    CHECK(pp::describe(verdict, work)
            .find("the two ends of an edge disagree on the order of its messages") !=
          std::string::npos);
  }
  SUBCASE("a message that is not the next of its edge, at both ends") {
    pp::item const& received = work.items[find(work, 1, pp::operation::receive, 3)];
    support::message_of(work, work.items[find(work, 0, pp::operation::send, 3)]).sequence += 1;
    support::message_of(work, received).sequence += 1;
    CHECK(pp::prove(work).broken == pp::proof::rule::fifo_differs);
    // Of two mistakes the first in the order of the rules is told.
    support::uses_of(work, work.items[find(work, 1, pp::operation::receive, 0)])[0].bytes += 1;
    CHECK(pp::prove(work).broken == pp::proof::rule::sizes_differ);
  }
  SUBCASE("a message that nobody receives") {
    auto const last = find(work, 1, pp::operation::receive, 3);
    work.items[last].what = pp::operation::run;
    CHECK(pp::prove(work).broken == pp::proof::rule::unmatched);
  }
  SUBCASE("a slot that holds something else") {
    for (pp::item& step : work.items)
      if (step.what == pp::operation::run && step.work.kind == pp::pass_kind::backward) {
        int& kept = support::uses_at(work, step, pp::detail::slot_place::activation)[0]->index;
        kept = 1 - kept;
        break;
      }
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_content);
  }
}

TEST_CASE("what a plan must hold beside its messages is found") {
  pp::plan work = pp::lower<pp::communicators::per_edge>(pp::make_timetable<pp::OneFOneB>({2, 4}),
                                                         pp::uniform_sizes{.message = 300});
  REQUIRE(pp::prove(work));
  SUBCASE("a pass twice and another not at all") {
    auto const first = find(work, 1, pp::operation::run, 0);
    auto const second = find(work, 1, pp::operation::run, 2);
    REQUIRE(work.items[second].work.kind == pp::pass_kind::forward);
    work.items[second].work = work.items[first].work;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_passes);
  }
  SUBCASE("a pass that no device runs") {
    auto const last = find(work, 0, pp::operation::run, 7);
    work.items.erase(work.items.begin() + static_cast<std::ptrdiff_t>(last));
    --work.offsets[1];
    --work.offsets[2];
    pp::proof const verdict = pp::prove(work);
    CHECK(pp::describe(verdict, work) ==
          "plan: a pass does not run exactly once on the device of its stage (device 0: backward "
          "of stage 0, microbatch 3)");
  }
  SUBCASE("backward passes in an evaluation") {
    work.evaluates = true;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_passes);
  }
  SUBCASE("two directions on the lane of one") {
    for (pp::item& step : work.items)
      step.lane = step.lane == pp::nothing ? step.lane : 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_lane);
  }
  SUBCASE("a lane that does not exist") {
    work.lanes[1] = 1;
    CHECK(pp::prove(work).broken == pp::proof::rule::wrong_lane);
  }
  SUBCASE("slots too small for their messages") {
    work.layouts[static_cast<std::size_t>(pp::slot_class::output)].bytes = 256;
    CHECK(pp::prove(work).broken == pp::proof::rule::slots_overlap);
  }
  SUBCASE("classes over one another") {
    work.layouts[static_cast<std::size_t>(pp::slot_class::received_gradient)].offset = 0;
    CHECK(pp::prove(work).broken == pp::proof::rule::slots_overlap);
  }
  SUBCASE("an arena that ends too early") {
    work.arena_bytes[1] -= 1;
    CHECK(pp::prove(work).broken == pp::proof::rule::slots_overlap);
  }
}

TEST_CASE("what starts together does not order itself") {
  // 1F1B under the pair policy posts activation and gradient as one group in its steady state.
  pp::plan work =
    pp::lower(pp::make_timetable<pp::OneFOneB>({2, 4}, pp::uniform_cost{1, 0.5, 0.5, 0}));
  REQUIRE(pp::prove(work));
  auto grouped = static_cast<std::size_t>(work.offsets[1]);
  auto const all = work.items.size();
  while (grouped + 1 < all && !work.items[grouped + 1].joins)
    ++grouped;
  REQUIRE(grouped + 1 < all);
  SUBCASE("a wait inside the group") {
    pp::item& second = work.items[grouped + 1];
    second.first_wait = static_cast<int>(work.waits.size());
    second.wait_count = 1;
    work.waits.push_back(static_cast<int>(grouped) - work.offsets[1]);
    CHECK(pp::prove(work).broken == pp::proof::rule::waits_forward);
  }
  SUBCASE("one member writes what the other sends") {
    pp::item& first = work.items[grouped];
    pp::item& second = work.items[grouped + 1];
    pp::item& sends = first.what == pp::operation::send ? first : second;
    pp::item& receives = first.what == pp::operation::send ? second : first;
    pp::use const sent = support::uses_of(work, sends)[0];
    pp::use& received = support::uses_of(work, receives)[0];
    received.of = sent.of;
    received.index = sent.index;
    CHECK_FALSE(pp::prove(work));
  }
}

TEST_CASE("receive, compute, send in a row on 1F1B deadlocks, and the circle is printed") {
  // Device 0 runs F0 F1 B0 ..., device 1 F0 B0 ...: here device 0 wants to send F1 before it takes
  // B0's gradient, and device 1 to send that gradient before it takes F1.
  pp::plan work = pp::lower<pp::communicators::per_edge>(pp::make_timetable<pp::OneFOneB>({2, 2}));
  auto const first = static_cast<std::size_t>(work.offsets[1]);
  auto const receive = find(work, 1, pp::operation::receive, 1);
  auto const send = find(work, 1, pp::operation::send, 0);
  REQUIRE(receive > first);
  REQUIRE(receive < send);
  std::rotate(work.items.begin() + static_cast<std::ptrdiff_t>(receive),
              work.items.begin() + static_cast<std::ptrdiff_t>(receive) + 1,
              work.items.begin() + static_cast<std::ptrdiff_t>(send) + 1);
  for (auto i = first; i < work.items.size(); ++i)
    work.items[i].wait_count = 0;
  pp::proof const verdict = pp::prove(work);
  CHECK(verdict.broken == pp::proof::rule::circular);
  std::string const text = pp::describe(verdict, work);
  CHECK(text.find("plan: devices wait for each other in a circle") == 0);
  CHECK(text.find("device 0, item") != std::string::npos);
  CHECK(text.find("send what comes of the forward of stage 0, microbatch 1 to device 1") !=
        std::string::npos);
  CHECK(text.find("send what comes of the backward of stage 1, microbatch 0 to device 0") !=
        std::string::npos);
}

TEST_CASE("a message to another device than the one that has its other end is found") {
  pp::plan const whole =
    pp::lower<pp::communicators::one>(pp::make_timetable<pp::OneFOneB>({3, 4}));
  for (pp::item const& step : whole.items)
    if (step.what != pp::operation::run) {
      pp::plan broken = whole; // at that number the other device may run a pass
      int& peer = support::message_of(broken, step).peer;
      peer = (peer + 1) % 3;
      CHECK(pp::prove(broken).broken <= pp::proof::rule::unmatched);
      CHECK_FALSE(pp::prove(broken));
    }
}

TEST_CASE("a message with what no pass makes is refused, though its slot has held nothing") {
  pp::plan work = pp::lower(pp::make_timetable<pp::OneFOneB>({2, 1}));
  pp::pass const last{pp::pass_kind::forward, false, 1, 0, 0}; // nobody reads what it makes
  auto const append = [&](int device, pp::operation what) {
    pp::item step;
    for (pp::item const& before : work.program_of(device))
      step = before.what == what ? before : step;
    pp::detail::message_end end = work.message_of(step);
    ++end.sequence;
    bool const sends = what == pp::operation::send;
    step.work = last;
    step.message = static_cast<int>(work.messages.size());
    step.first_use = static_cast<int>(work.uses.size());
    step.wait_count = 0;
    work.messages.push_back(end);
    work.uses.push_back({pp::slot_class::copied_gradient,
                         sends ? pp::detail::slot_place::inputs : pp::detail::slot_place::outputs,
                         1,
                         0});
    auto const at = static_cast<std::size_t>(device);
    work.items.insert(work.items.begin() + work.offsets[at + 1], step);
    for (std::size_t next = at + 1; next < work.offsets.size(); ++next)
      ++work.offsets[next];
    work
      .layouts[at * pp::detail::slot_classes +
               static_cast<std::size_t>(pp::slot_class::copied_gradient)]
      .count = 1;
  };
  CHECK(pp::prove(work));
  append(0, pp::operation::receive);
  append(1, pp::operation::send);
  CHECK(pp::prove(work).broken == pp::proof::rule::wrong_content);
}

TEST_CASE("a step whose lists do not exist is named without them") {
  pp::plan const whole =
    pp::lower(pp::make_timetable<pp::OneFOneB>({3, 4}), pp::uniform_sizes{.totals_bytes = 32});
  std::size_t checked = 0;
  for (std::size_t i = 0; i < whole.items.size(); ++i) {
    pp::plan broken = whole;
    pp::item& step = broken.items[i];
    step.first_use = 1 << 30;
    step.message = step.what == pp::operation::run ? step.message : 1 << 30;
    pp::proof const verdict = pp::prove(broken);
    if (step.use_count == 0 && step.what == pp::operation::run)
      continue;
    ++checked;
    CHECK(verdict.broken == pp::proof::rule::wrong_content);
    CHECK(pp::describe(verdict, broken).starts_with("plan: a step reads a slot that holds "));
    CHECK(pp::describe(step, broken).find("device") == std::string::npos);
  }
  CHECK(checked > 0);
}

TEST_CASE("a plan is judged whatever has become of it") {
  pp::uniform_sizes const sizes{.tied_bytes = 64, .totals_bytes = 32};
  for (pp::plan const& whole :
       {pp::lower(pp::make_timetable<pp::Seq1F1B<2>>({3, 4}), sizes),
        pp::lower<pp::communicators::one>(pp::make_timetable<pp::DualPipeV<>>({2, 6}), sizes)}) {
    std::minstd_rand random;
    int found = 0;
    for (int turn = 0; turn < 500; ++turn) {
      pp::plan work = whole;
      for (int i = 0; i <= turn % 3; ++i)
        corrupt(work, random);
      pp::proof const verdict = pp::prove(work);
      if (verdict)
        continue;
      ++found;
      CAPTURE(turn);
      REQUIRE(verdict.device >= 0);
      REQUIRE(verdict.device < whole.over.extents.devices);
      auto const end = static_cast<int>(work.program_of(verdict.device).size());
      REQUIRE(verdict.item_index < end);
    }
    CHECK(found > 250);
  }
}
