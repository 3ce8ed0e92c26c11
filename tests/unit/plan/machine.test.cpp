// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The proof against a machine that tries every order in which messages can happen.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/plan/plan.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "tests/support/plan_builder.hpp"
#include "tests/support/rendezvous_machine.hpp"

namespace pp = pipelining;

namespace {

using generator = std::mt19937;

int below(generator& random, std::size_t bound) {
  return static_cast<int>(std::uniform_int_distribution<std::size_t>(0, bound - 1)(random));
}

template <class Lines>
void move_one(generator& random, Lines& lines, int farthest) {
  if (lines.size() < 2)
    return;
  auto const from = lines.begin() + below(random, lines.size());
  auto const distance = std::min<std::ptrdiff_t>(
    1 + below(random, static_cast<std::size_t>(farthest)), lines.end() - from - 1);
  std::rotate(from, from + 1, from + distance + 1);
}

//! Random messages in one order, then up to three changes of all kinds.
pp::plan random_program(generator& random) {
  int const devices = 2 + below(random, 3);
  int const messages = 1 + below(random, 7);
  std::vector<std::vector<support::line>> lines(static_cast<std::size_t>(devices));
  auto const any = [&]() -> std::vector<support::line>& {
    return lines[static_cast<std::size_t>(below(random, lines.size()))];
  };
  for (int tag = 0; tag < messages; ++tag) {
    int const from = below(random, lines.size());
    int const to = (from + 1 + below(random, lines.size() - 1)) % devices;
    auto& mine = lines[static_cast<std::size_t>(from)];
    auto& theirs = lines[static_cast<std::size_t>(to)];
    mine.push_back(support::send(support::forward(0, tag), to));
    theirs.push_back(support::receive(support::forward(0, tag), from));
    bool const together = mine.size() > 1 && theirs.size() > 1 &&
                          mine[mine.size() - 2].peer == to &&
                          theirs[theirs.size() - 2].peer == from && below(random, 2) == 0;
    mine.back().joins = theirs.back().joins = together;
  }
  for (int changes = below(random, 4); changes > 0; --changes) {
    auto& changed = any();
    if (changed.empty())
      continue;
    auto& one = changed[static_cast<std::size_t>(below(random, changed.size()))];
    switch (below(random, 8)) {
    case 0: one.joins = !one.joins; break;
    case 1: one.work.microbatch = static_cast<std::uint16_t>(below(random, 8)); break;
    case 2: changed.pop_back(); break;
    default: move_one(random, changed, 3);
    }
  }
  for (auto& each : lines)
    if (!each.empty())
      each.front().joins = false;
  return support::build<pp::communicators::one>({.devices = devices, .microbatches = 8}, lines);
}

//! A plan of the library with some messages moved.
pp::plan moved_plan(generator& random) {
  int const devices = 2 + below(random, 2);
  int const microbatches = 1 + below(random, 3);
  pp::pipeline_size const size{devices, microbatches};
  pp::dynamic_timetable const tables[] = {
    pp::make_timetable<pp::OneFOneB>(size),
    pp::make_timetable(pp::Seq1F1B<2>{}, {devices, 1 + below(random, 2)}),
    pp::make_timetable<pp::ZeroBubbleH1>(size),
    pp::make_timetable<pp::DualPipeV<>>({2, 4}),
  };
  pp::plan work = pp::lower<pp::communicators::one>(tables[below(random, std::size(tables))]);
  for (pp::item& step : work.items)
    step.wait_count = 0;
  for (int changes = below(random, 3); changes > 0; --changes) {
    auto const device = static_cast<std::size_t>(below(random, work.lanes.size()));
    auto const begin = work.items.begin() + work.offsets[device];
    std::vector<pp::item> steps(begin, work.items.begin() + work.offsets[device + 1]);
    move_one(random, steps, 4);
    std::copy(steps.begin(), steps.end(), begin);
  }
  return work;
}

struct tally {
  int good = 0;
  int bad = 0;
};

void compare(pp::plan const& work, tally& seen) {
  support::machine_program const messages = support::messages_of(work);
  support::outcome const happens = support::rendezvous_machine(messages).run();
  bool const good = happens == support::outcome::drains && support::mirrored(messages);
  pp::proof const verdict = pp::prove(work);
  // The rules of passes and slots come last; messages of these plans are all that is compared.
  bool const proven =
    verdict.broken == pp::proof::rule::none || verdict.broken > pp::proof::rule::circular;
  if (good != proven)
    FAIL_CHECK("the machine says " << static_cast<int>(happens) << ", the proof "
                                   << pp::describe(verdict, work));
  ++(good ? seen.good : seen.bad);
}

} // namespace

TEST_CASE("proof and machine agree on random programs") {
  generator random(20240607);
  tally seen;
  for (int i = 0; i < 6000; ++i)
    compare(random_program(random), seen);
  CHECK(seen.good > 1000);
  CHECK(seen.bad > 1000);
}

TEST_CASE("proof and machine agree on plans with moved messages") {
  generator random(13);
  tally seen;
  for (int i = 0; i < 1500; ++i)
    compare(moved_plan(random), seen);
  CHECK(seen.good > 200);
  CHECK(seen.bad > 200);
}

TEST_CASE("train, evaluate, train drains without a barrier") {
  for (int devices = 1; devices <= 3; ++devices)
    for (int microbatches = 1; microbatches <= 3; ++microbatches) {
      auto const table = pp::make_timetable<pp::OneFOneB>({devices, microbatches});
      auto const shorter = pp::make_timetable<pp::OneFOneB>({devices, 1});
      pp::plan const train = pp::lower(table);
      pp::plan const evaluate = pp::lower_evaluation(shorter);
      REQUIRE(pp::prove(train, evaluate));
      REQUIRE(pp::prove(evaluate, train));
      support::machine_program row = support::messages_of(train);
      support::machine_program const between = support::messages_of(evaluate);
      support::machine_program const again = support::messages_of(train);
      for (std::size_t device = 0; device < row.size(); ++device) {
        row[device].insert(row[device].end(), between[device].begin(), between[device].end());
        row[device].insert(row[device].end(), again[device].begin(), again[device].end());
      }
      CHECK(support::rendezvous_machine(row).run() == support::outcome::drains);
    }
}
