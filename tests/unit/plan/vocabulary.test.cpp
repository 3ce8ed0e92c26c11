// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plans of pipelines whose vocabulary is in shards: messages counted by hand, and every wait, slot
// and message that is spoiled is found.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <tests/support/sizes.hpp>
#include <tests/support/spoiled_plans.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

//! Of a microbatch: a reduce, a broadcast and an all-gather at each end, but for the all-gather at
//! the first, and a reduce back; between devices, and from stage to stage.
int messages_by_hand(pp::timetable_view table) {
  int const devices = table.over.extents.devices;
  int const chain = table.over.extents.stages() - 2 * devices;
  int neighbours = 0;
  for (int stage = devices; stage + 1 < devices + chain; ++stage)
    neighbours += pp::device_of(table, stage) == pp::device_of(table, stage + 1) ? 0 : 1;
  return table.over.extents.microbatches *
         (4 * (devices - 1) + devices * (devices - 1) + 2 * neighbours);
}

template <class Schedule>
void check_policies(Schedule const& schedule) {
  for (int const devices : {1, 2, 3, 5, 8})
    for (int const microbatches : {2, 9}) {
      auto const table = pp::make_timetable(schedule, {devices, microbatches});
      auto const check = [&](pp::plan const& work) { // made: it is proven
        int sends = 0;
        for (pp::item const& step : work.items)
          sends += step.what == pp::operation::send ? 1 : 0;
        CHECK(sends == messages_by_hand(table));
      };
      check(pp::lower<pp::communicators::per_pair>(table, support::single_words));
      check(pp::lower<pp::communicators::per_edge>(table, support::single_words));
      check(pp::lower<pp::communicators::one>(table, support::single_words));
      check(pp::lower<pp::communicators::exchanges_at_once>(table, support::single_words));
    }
}

template <int Barriers>
pp::plan small_plan() {
  return pp::lower<pp::communicators::per_edge>(
    pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, Barriers>>({3, 4}), support::single_words);
}

void check_slots(pp::plan const& whole, int expected) {
  int swapped = 0;
  for (std::size_t i = 0; i < whole.items.size(); ++i)
    swapped += support::swap_uses(whole, i);
  CHECK(swapped == expected);
}

} // namespace

TEST_CASE_TEMPLATE(
  "plans with a vocabulary in shards are proven, and have the messages that shards want",
  Schedule,
  pp::with_vocabulary<pp::OneFOneB, 1>,
  pp::with_vocabulary<pp::OneFOneB, 2>,
  pp::with_vocabulary<pp::OneFOneB, pp::interlaced>,
  pp::with_vocabulary<pp::detail::SweptVHalf, pp::interlaced>,
  pp::with_vocabulary<pp::ZeroBubbleH1, 1>,
  pp::with_vocabulary<pp::detail::SweptVHalf, 2>) {
  check_policies(Schedule{});
}

namespace {

//! The exchanges of a device, in order.
std::vector<int> exchanges_of(pp::plan const& work, int device) {
  std::vector<int> result;
  auto const steps = work.program_of(device);
  for (int first = 0; first < static_cast<int>(steps.size());
       first = pp::detail::end_of_group(steps, first))
    if (pp::item const& step = steps[static_cast<std::size_t>(first)];
        step.what != pp::operation::run && work.exchange_at(step) != pp::nothing)
      result.push_back(work.exchange_at(step));
  return result;
}

template <class Schedule>
void check_exchanges(Schedule const& schedule) {
  for (int const devices : {1, 2, 3, 5, 8}) {
    int const microbatches = 6;
    auto const table = pp::make_timetable(schedule, {devices, microbatches});
    pp::plan const work =
      pp::lower<pp::communicators::exchanges_at_once>(table, support::single_words);
    auto const all = exchanges_of(work, 0);
    // Embeddings to the first stage, its output's way back, the last stage's output, statistics,
    // and gradients for the last stage.
    CHECK(all.size() == static_cast<std::size_t>(devices > 1 ? 5 * microbatches : 0));
    CHECK(std::set<int>(all.begin(), all.end()).size() == all.size());
    for (int device = 1; device < devices; ++device)
      CHECK(exchanges_of(work, device) == all);
    CHECK(exchanges_of(pp::lower<pp::communicators::one>(table, support::single_words), 0).empty());
  }
}

pp::plan plan_with_exchanges() {
  return pp::lower<pp::communicators::exchanges_at_once>(
    pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, pp::interlaced>>({3, 4}),
    support::single_words);
}

} // namespace

TEST_CASE("what shards exchange is one step of all devices, in the same order on all") {
  check_exchanges(pp::with_vocabulary<pp::OneFOneB, pp::interlaced>{});
  check_exchanges(pp::with_vocabulary<pp::OneFOneB, 1>{});
  check_exchanges(pp::with_vocabulary<pp::ZeroBubbleH1, 2>{});
  check_exchanges(pp::with_vocabulary<pp::detail::SweptVHalf, pp::interlaced>{});
}

TEST_CASE("an exchange that is not the same step on all devices is found") {
  pp::plan const whole = plan_with_exchanges();
  REQUIRE(pp::prove(whole));
  int spoiled = 0;
  for (int device = 0; device < 3; ++device) {
    auto const first_item =
      static_cast<std::size_t>(whole.offsets[static_cast<std::size_t>(device)]);
    auto const steps = whole.program_of(device);
    for (int first = 0, end = 0; first < static_cast<int>(steps.size()); first = end) {
      end = pp::detail::end_of_group(steps, first);
      pp::item const& head = steps[static_cast<std::size_t>(first)];
      if (head.what == pp::operation::run || whole.exchange_at(head) == pp::nothing)
        continue;
      int const own = whole.exchange_at(head);
      auto const set = [&](pp::plan& broken, int from, auto change) {
        for (int i = from; i < end; ++i)
          change(broken.items[first_item + static_cast<std::size_t>(i)]);
      };
      for (int const exchange : {pp::nothing, -5, own + 1, 1 << 30}) {
        pp::plan broken = whole;
        set(broken, first, [&](pp::item const& step) {
          support::exchange_at(broken, step) = exchange;
        });
        CHECK(pp::prove(broken).broken == pp::proof::rule::bad_group);
        ++spoiled;
      }
      if (end - first > 1) {
        pp::plan broken = whole; // cut in two
        set(broken, end - 1, [](pp::item& step) { step.joins = false; });
        CHECK(pp::prove(broken).broken == pp::proof::rule::bad_group);
        ++spoiled;
      }
      // One message of it alone, at both of its ends.
      for (int i = first; i < end; ++i) {
        pp::plan broken = whole;
        pp::item const alone = steps[static_cast<std::size_t>(i)];
        pp::plan const& seen = whole;
        for (pp::item const& step : broken.items)
          if (step.what != pp::operation::run &&
              pp::detail::message_index(seen, seen.over, step) ==
                pp::detail::message_index(seen, seen.over, alone))
            support::exchange_at(broken, step) = pp::nothing;
        CHECK(pp::prove(broken).broken == pp::proof::rule::bad_group);
        if (i + 1 == end && i > first) { // in a group of its own
          broken.items[first_item + static_cast<std::size_t>(i)].joins = false;
          CHECK(pp::prove(broken).broken == pp::proof::rule::bad_group);
        }
        ++spoiled;
      }
    }
  }
  CHECK(spoiled > 3 * 20 * 4); // of every exchange on every device, and more
}

TEST_CASE("no wait of a plan with a vocabulary in shards can be left out") {
  CHECK(support::leave_out_waits(small_plan<pp::interlaced>()) > 100);
  CHECK(support::leave_out_waits(small_plan<1>()) > 100);
  CHECK(support::leave_out_waits(small_plan<2>()) > 100);
  CHECK(support::leave_out_waits(plan_with_exchanges()) > 50);
}

TEST_CASE("a shard that reads or writes what is another's is found") {
  // Per microbatch: two inputs more for the first layers, the last layers and each shard; with one
  // barrier each shard has a second output.
  check_slots(small_plan<2>(), 4 * 2 * (1 + 1 + 3));
  check_slots(small_plan<1>(), 4 * (2 * (1 + 1 + 3) + 3));
}

TEST_CASE("messages of shards that are for nobody, or for another shard, are found") {
  pp::plan const whole = small_plan<1>();
  for (std::size_t i = 0; i < whole.items.size(); ++i) {
    if (whole.items[i].what == pp::operation::run)
      continue;
    for (int const number : {-1, whole.message_of(whole.items[i]).number + 1, 1000}) {
      pp::plan broken = whole;
      support::message_of(broken, broken.items[i]).number = number;
      CHECK(!pp::prove(broken));
    }
  }
}

TEST_CASE("a device has room for one set of logits") {
  pp::plan const work = small_plan<2>();
  for (int device = 0; device < 3; ++device)
    CHECK(work.layout(device, pp::slot_class::logits).count == 1);
}

TEST_CASE("what a vocabulary in shards cannot have is refused with a sentence") {
  auto const table = pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, 2>>({2, 2});
  CHECK_THROWS_WITH(
    pp::lower<pp::communicators::exchanges_at_once>(
      pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, 2>>({34, 2}), support::single_words),
    "plan: an exchange of 34 devices may have more messages on one of them than a group, which "
    "has 64 at most; lower with one_communicator");
  CHECK_THROWS_WITH(
    pp::lower(table, pp::uniform_sizes{.tied_bytes = 8}),
    "plan: the shards of a vocabulary lie on the same device at both ends of the model, so no "
    "gradient of a tied weight travels; leave tied_bytes out, and add the gradients of both "
    "shards in gradients_ready of the first");
  CHECK_THROWS_WITH(
    pp::lower_evaluation(table, support::single_words),
    "plan: an evaluation of a flow whose stages exchange statistics has nobody who reads them; "
    "evaluate with a plan of the whole timetable, and leave its gradients alone");
}
