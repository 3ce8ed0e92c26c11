// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>

namespace pp = pipelining;

namespace {

pp::plan sound() {
  return pp::lower<pp::communicator_per_edge>(pp::make_timetable<pp::OneFOneB>({2, 4}));
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
    CHECK(pp::prove(work).broken == pp::plan_rule::unordered);
  }
  SUBCASE("a wait for a later item") {
    work.waits[0] = static_cast<int>(work.items.size()) - 1;
    CHECK(pp::prove(work).broken == pp::plan_rule::waits_forward);
  }
  SUBCASE("a message of another size") {
    work.items[find(work, 0, pp::operation::send, 1)].in_bytes = 3;
    CHECK(pp::prove(work).broken == pp::plan_rule::sizes_differ);
  }
  SUBCASE("swapped receives: silent mix-up of data") {
    auto const first = find(work, 1, pp::operation::receive, 0);
    auto const second = find(work, 1, pp::operation::receive, 1);
    std::swap(work.items[first].work, work.items[second].work);
    pp::proof const verdict = pp::prove(work);
    CHECK(verdict.broken == pp::plan_rule::fifo_differs);
    CHECK(pp::describe(verdict, work)
            .find("the two ends of an edge disagree on the order of its messages") !=
          std::string::npos);
  }
  SUBCASE("a message that nobody receives") {
    auto const last = find(work, 1, pp::operation::receive, 3);
    work.items[last].what = pp::operation::run;
    CHECK(pp::prove(work).broken == pp::plan_rule::unmatched);
  }
  SUBCASE("a slot that holds something else") {
    for (pp::item& step : work.items)
      if (step.what == pp::operation::run && step.work.kind == pp::pass_kind::backward) {
        step.activation = 1 - step.activation;
        break;
      }
    CHECK(pp::prove(work).broken == pp::plan_rule::wrong_content);
  }
}

TEST_CASE("receive, compute, send in a row on 1F1B deadlocks, and the circle is printed") {
  // Device 0 runs F0 F1 B0 ..., device 1 F0 B0 ...: here device 0 wants to send F1 before it takes
  // B0's gradient, and device 1 to send that gradient before it takes F1.
  pp::plan work = pp::lower<pp::communicator_per_edge>(pp::make_timetable<pp::OneFOneB>({2, 2}));
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
  CHECK(verdict.broken == pp::plan_rule::circular);
  std::string const text = pp::describe(verdict, work);
  CHECK(text.find("plan: devices wait for each other in a circle") == 0);
  CHECK(text.find("device 0, item") != std::string::npos);
  CHECK(text.find("send what comes of the forward of stage 0, microbatch 1 to device 1") !=
        std::string::npos);
  CHECK(text.find("send what comes of the backward of stage 1, microbatch 0 to device 0") !=
        std::string::npos);
}
