// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The mistakes that families of schedules make possible, each planted in a timetable or a plan that
// was sound, and the sentence that names it: before the run, whatever wrote the rows.
#include <pipe/cluster/plan_agreement.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/chunk_flow.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/round_pipe.hpp>
#include <pipe/schedule/slim_pipe.hpp>
#include <pipe/schedule/stp.hpp>
#include <pipe/schedule/wei_pipe.hpp>
#include <pipe/timetable/adapt/with_offload.hpp>
#include <pipe/timetable/adapt/with_recompute.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/adapt/with_vocabulary.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/report.hpp>
#include <pipe/timetable/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tests/support/sizes.hpp>
#include <tests/support/spoiled_plans.hpp>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

using pp::pass_kind;

//! Where a row has its first pass that `wanted` says yes to.
template <class Wanted>
std::size_t find(pp::dynamic_timetable const& table, int row, Wanted const& wanted) {
  auto const from = table.passes.begin() + table.offsets[static_cast<std::size_t>(row)];
  auto const to = table.passes.begin() + table.offsets[static_cast<std::size_t>(row) + 1];
  auto const at = std::find_if(from, to, wanted);
  REQUIRE(at != to);
  return static_cast<std::size_t>(at - table.passes.begin());
}

//! Where any row has it.
template <class Wanted>
std::size_t find(pp::dynamic_timetable const& table, Wanted const& wanted) {
  auto const at = std::find_if(table.passes.begin(), table.passes.end(), wanted);
  REQUIRE(at != table.passes.end());
  return static_cast<std::size_t>(at - table.passes.begin());
}

void start_at(pp::dynamic_timetable& table, std::size_t at, double start) {
  table.ends[at] += start - table.starts[at];
  table.starts[at] = start;
}

//! Without a pass.
void leave_out(pp::dynamic_timetable& table, std::size_t at) {
  auto const offset = static_cast<std::ptrdiff_t>(at);
  table.passes.erase(table.passes.begin() + offset);
  table.starts.erase(table.starts.begin() + offset);
  table.ends.erase(table.ends.begin() + offset);
  for (int& first : table.offsets)
    first -= first > static_cast<int>(at) ? 1 : 0;
}

std::string verdict_on(pp::dynamic_timetable const& table) {
  pp::report const found = pp::verify(table);
  return found ? std::string() : pp::describe(found, table.over);
}
std::string verdict_on(pp::plan const& work) {
  pp::proof const found = pp::prove(work);
  return found ? std::string() : pp::describe(found, work);
}

} // namespace

TEST_CASE("a copy that comes back before it has left is found") {
  pp::uniform_cost const cost{
    .forward = 2, .backward_input = 2, .backward_weight = 2, .copy_out = 0.5, .copy_in = 0.5};
  auto table = pp::make_timetable(pp::with_offload<pp::OneFOneB>{}, {4, 8}, cost);
  REQUIRE(verdict_on(table).empty());
  auto const out = static_cast<std::size_t>(table.offsets[5]) - 1; // the last that device 0 moves
  REQUIRE(table.passes[out].kind == pass_kind::copy_out);
  auto const back = find(table, 8, [&](pp::pass const& what) {
    return what.kind == pass_kind::copy_in && what.microbatch == table.passes[out].microbatch;
  });
  start_at(table, out, table.starts[back] - 0.5);
  CHECK(verdict_on(table).empty()); // just in time
  start_at(table, out, table.starts[back] - 0.25);
  CHECK(verdict_on(table) == "timetable: a pass starts before a pass that it depends on has ended "
                             "and arrived (device 0, entry 22: copy_request of stage 0, microbatch "
                             "7; in conflict with copy_out of stage 0, microbatch 7)");
}

TEST_CASE("a pass that is not recomputed is found") {
  auto table = pp::make_timetable(pp::with_recompute<pp::OneFOneB>{}, {3, 4});
  REQUIRE(verdict_on(table).empty());
  leave_out(table, find(table, 1, [](pp::pass const& what) {
              return what.kind == pass_kind::recompute && what.microbatch == 2;
            }));
  CHECK(verdict_on(table) ==
        "timetable: a pass is missing (device 1: recompute of stage 1, microbatch 2)");
}

namespace {

//! A device posts a group of messages after the step that was after it so far, `count` steps on.
void post_later(pp::plan& work, int device, int first, int count) {
  auto const at = work.items.begin() + work.offsets[static_cast<std::size_t>(device)];
  int const end = pp::detail::end_of_group(work.program_of(device), first);
  auto const place_of = [=](int index) {
    return index < first || index >= end + count ? index
           : index < end                         ? index + count
                                                 : index - (end - first);
  };
  std::rotate(at + first, at + end, at + end + count);
  int const items = work.offsets[static_cast<std::size_t>(device) + 1] -
                    work.offsets[static_cast<std::size_t>(device)];
  std::map<std::pair<int, pp::operation>, int> gone;
  for (int i = 0; i < items; ++i) {
    pp::item& step = at[i];
    if (step.what != pp::operation::run) {
      pp::detail::message_end& message = support::message_of(work, step);
      message.sequence = gone[{message.peer, step.what}]++;
    }
    for (int k = 0; k < step.wait_count; ++k) {
      int& wait = work.waits[static_cast<std::size_t>(step.first_wait + k)];
      wait = place_of(wait);
    }
  }
}

} // namespace

TEST_CASE("two collectives that a device runs the other way round are found") {
  auto const table = pp::make_timetable<pp::with_vocabulary<pp::OneFOneB, pp::interlaced>>({3, 4});
  pp::plan work = pp::lower<pp::communicators::exchanges_at_once>(table, support::single_words);
  REQUIRE(verdict_on(work).empty());
  // Its shard of the embedding for microbatch 0, and for microbatch 1.
  auto const steps = work.program_of(1);
  REQUIRE((work.exchange_at(steps[1]) != pp::nothing && work.exchange_at(steps[3]) != pp::nothing));
  SUBCASE("one is later than it could be") {
    post_later(work, 1, 1, 1);
    CHECK(verdict_on(work).empty());
  }
  SUBCASE("the other way round") {
    post_later(work, 1, 1, 2);
    CHECK(verdict_on(work) ==
          "plan: the two ends of an edge disagree on the order of its messages (device 0, item 1: "
          "receive what comes of the embed of stage 1, microbatch 0 from device 1; with device 1, "
          "item 3: send what comes of the embed of stage 1, microbatch 0 to device 0)");
  }
}

TEST_CASE("an exchange of attention with a third device is found") {
  pp::SlimPipeExchange<8> const schedule{};
  auto table = pp::make_timetable(schedule, {4, 4});
  REQUIRE(verdict_on(table).empty());
  auto const stage_of = [&](pp::pass const& what) {
    return schedule.stage_at(table.over.extents, what.stage);
  };
  auto const taken = [&](pp::pass const& what) {
    return stage_of(what).part == pp::layer_part::taken_attention && stage_of(what).taken > 0;
  };
  SUBCASE("that runs it") {
    pp::pass const moved = table.passes[find(table, taken)];
    int const peer = pp::device_of(table.view(), moved.stage);
    int const third = 3 - peer == stage_of(moved).layer ? (peer + 1) % 4 : 3 - peer;
    REQUIRE(third != stage_of(moved).layer);
    table.passes[static_cast<std::size_t>(table.offsets[static_cast<std::size_t>(third)])] = moved;
    CHECK(verdict_on(table) == "timetable: a pass is on a device that does not hold its stage "
                               "(device 3, entry 0: forward of stage 55, microbatch 0)");
  }
  SUBCASE("that a message goes to") {
    pp::plan work = pp::lower<pp::communicators::one>(table);
    REQUIRE(verdict_on(work).empty());
    auto const sent = std::find_if(work.items.begin(), work.items.end(), [&](pp::item const& step) {
      return step.what == pp::operation::send && taken(step.work);
    });
    REQUIRE(sent != work.items.end());
    int& peer = support::message_of(work, *sent).peer;
    peer = 3 - peer;
    CHECK(verdict_on(work) ==
          "plan: a message is not sent once and received once (device 0, item 55: send what comes "
          "of the forward of stage 55, microbatch 0 to device 2)");
  }
}

TEST_CASE("a braid of a pass with its own input is found") {
  auto table = pp::make_timetable<pp::STP<>>({3, 9});
  REQUIRE(verdict_on(table).empty());
  // Stages 2 and 3 meet on the last device: what the first makes, the second reads.
  std::size_t const at =
    find(table, 2, [](pp::pass const& what) { return what.stage == 3 && !what.overlapped; });
  pp::pass const& before = table.passes[at - 1];
  REQUIRE((before.kind == pass_kind::forward && before.stage == 2));
  REQUIRE(before.microbatch == table.passes[at].microbatch);
  table.passes[at].overlapped = true;
  table.starts[at] = table.starts[at - 1];
  table.ends[at - 1] = table.ends[at];
  CHECK(verdict_on(table) == "timetable: a pass starts before a pass that it depends on has ended "
                             "and arrived (device 2, entry 1: forward of stage 3, microbatch 0; in "
                             "conflict with forward of stage 2, microbatch 0)");
}

TEST_CASE("weights that are used before they arrive are found") {
  SUBCASE("those that travel") {
    auto table = pp::make_timetable<pp::WeiPipe>({3, 6}, pp::uniform_cost{1, 1, 1, 0.5});
    REQUIRE(verdict_on(table).empty());
    start_at(table, static_cast<std::size_t>(table.offsets[1]), 1.25); // sent at 1
    CHECK(verdict_on(table) ==
          "timetable: a pass starts before a pass that it depends on has ended and arrived (device "
          "1, entry 0: forward of stage 1, microbatch 0, chunk 0; in conflict with forward of "
          "stage 0, microbatch 0, chunk 0)");
  }
  SUBCASE("those from the host") {
    auto table = pp::make_timetable(pp::with_sharded_weights<pp::RoundPipe<>>{{1, 2}},
                                    {3, 4},
                                    pp::uniform_cost{.gather = 2, .scatter = 2});
    REQUIRE(verdict_on(table).empty());
    auto const first =
      find(table, 0, [](pp::pass const& what) { return what.kind == pass_kind::use_weights; });
    start_at(table, first, 1.75); // a load takes 2
    CHECK(verdict_on(table) ==
          "timetable: a pass starts before a pass that it depends on has ended and arrived (device "
          "0, entry 1: use_weights of stage 0, microbatch 0; in conflict with gather_weights of "
          "stage 0, microbatch 0)");
  }
}

TEST_CASE("numbers of chunks that differ between devices are found") {
  struct counts {
    std::vector<int> of;
    int operator()(int microbatch) const { return of[static_cast<std::size_t>(microbatch)]; }
  };
  auto const made = [](std::vector<int> of) {
    return pp::make_timetable(pp::ChunkFlow<counts>{{std::move(of)}, 4}, {2, 3});
  };
  auto const one = made({1, 2, 3});
  auto const other = made({2, 1, 3});
  REQUIRE(verdict_on(one).empty());
  SUBCASE("in a timetable") {
    auto table = one; // the last device has read other lengths
    auto const first = table.offsets[1];
    REQUIRE(first == other.offsets[1]);
    std::copy(other.passes.begin() + first, other.passes.end(), table.passes.begin() + first);
    CHECK(verdict_on(table) ==
          "timetable: a pass names a stage, microbatch or chunk that the pipeline does not have "
          "(device 1, entry 1: forward of stage 1, microbatch 0, chunk 1)");
  }
  SUBCASE("between plans of ranks") {
    CHECK(pp::detail::first_difference(0,
                                       pp::detail::summarise(pp::lower(one)).lines,
                                       1,
                                       pp::detail::summarise(pp::lower(other)).lines) ==
          "devices 0 and 1 disagree on the order of passes");
  }
}
