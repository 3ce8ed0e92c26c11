// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/plan_agreement.hpp>
#include <pipe/plan/fingerprint.hpp>
#include <pipe/plan/lower.hpp>
#include <pipe/plan/other_plans.hpp>
#include <pipe/schedule/gpipe.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <tests/support/spoiled_plans.hpp>
#include <utility>

namespace pp = pipelining;

namespace {

pp::detail::plan_summary of(int microbatches, std::string const& elements = "bf16") {
  return pp::detail::summarise(pp::lower(pp::make_timetable<pp::OneFOneB>({3, microbatches}),
                                         pp::uniform_sizes{.message = 64, .activation = 1000}),
                               elements);
}

std::string difference(pp::detail::plan_summary const& ones,
                       pp::detail::plan_summary const& others) {
  return pp::detail::first_difference(0, ones.lines, 2, others.lines);
}

} // namespace

TEST_CASE("the fingerprint of a plan is the same everywhere") {
  // Compiled by g++ and clang. The version is part of it: a new one gives a new number here.
  pp::plan const work = pp::lower(pp::make_timetable<pp::Seq1F1B<2>>({3, 4}));
  CHECK(pp::fingerprint::of(work, "bf16") ==
        pp::fingerprint{0x3b637a6603b3dab5u, 0xda94693400aa895eu});
}

TEST_CASE("the first difference is named") {
  CHECK(difference(of(16), of(16)).empty());
  CHECK(difference(of(16), of(12)) == "devices 0 and 2 disagree: microbatches 16 vs 12");
  CHECK(difference(of(4), of(4, "f32")) == "devices 0 and 2 disagree: elements 'bf16' vs 'f32'");
  std::string const common = "the same first 60 characters, which are shown, and no more of them";
  CHECK(difference(of(4, common + "a"), of(4, common + "b")) ==
        "devices 0 and 2 disagree on the fingerprint");
  auto const table = pp::make_timetable<pp::OneFOneB>({3, 4});
  pp::plan const work = pp::lower(table);
  pp::detail::plan_summary const mine = pp::detail::summarise(work);
  CHECK(difference(mine, pp::detail::summarise(pp::lower<pp::communicators::per_edge>(table))) ==
        "devices 0 and 2 disagree: policy pair vs edge");
  CHECK(difference(mine, pp::detail::summarise(pp::lower_evaluation(table))) ==
        "devices 0 and 2 disagree: evaluation no vs yes");
  CHECK(difference(mine, pp::detail::summarise(pp::lower(pp::make_timetable<pp::GPipe>({3, 4})))) ==
        "devices 0 and 2 disagree on the order of passes");
  CHECK(
    difference(mine, pp::detail::summarise(pp::lower(table, pp::uniform_sizes{.message = 8}))) ==
    "devices 0 and 2 disagree on the sizes of messages");
  CHECK(
    difference(mine, pp::detail::summarise(pp::lower(table, pp::uniform_sizes{.activation = 8}))) ==
    "devices 0 and 2 disagree: bytes of the largest arena 0 vs 768");
  pp::detail::plan_summary older = mine;
  older.lines.replace(0, older.lines.find('\n'), "version=4.5.6");
  pp::detail::plan_summary newer = mine;
  newer.lines.replace(0, newer.lines.find('\n'), "version=4.5.7");
  CHECK(difference(older, newer) == "devices 0 and 2 disagree: version 4.5.6 vs 4.5.7");
}

TEST_CASE("every change of a plan changes its fingerprint") {
  pp::plan const sound =
    pp::lower(pp::make_timetable<pp::OneFOneB>({2, 3}), pp::uniform_sizes{.message = 64});
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  int plans = 0;
  auto const enter = [&](pp::plan const& work) {
    pp::fingerprint const print = pp::fingerprint::of(work);
    seen.insert({print.high, print.low});
    ++plans;
  };
  enter(sound);
  for (std::size_t i = 0; i < sound.items.size(); ++i) {
    auto const change = [&](auto alter) {
      pp::plan work = sound;
      alter(work.items[i]);
      enter(work);
    };
    change([](pp::item& step) { step.work.microbatch += 100; });
    change([](pp::item& step) { step.work.kind = pp::pass_kind::backward_weight; });
    for (int k = 0; k < sound.items[i].use_count; ++k) {
      auto const change_use = [&](auto alter) {
        pp::plan work = sound;
        alter(support::uses_of(work, work.items[i])[static_cast<std::size_t>(k)]);
        enter(work);
      };
      change_use([](pp::use& one) { one.index += 7; });
      change_use([](pp::use& one) { one.at = pp::detail::slot_place::state; });
    }
    change([](pp::item& step) { step.lane += 7; });
    if (sound.items[i].wait_count > 0)
      change([](pp::item& step) { step.wait_count = 0; });
    if (sound.items[i].what == pp::operation::run)
      continue;
    change([](pp::item& step) { step.joins = !step.joins; });
    auto const change_message = [&](auto alter) {
      pp::plan work = sound;
      alter(support::message_of(work, work.items[i]));
      enter(work);
    };
    change_message([](pp::detail::message_end& end) { end.peer += 7; });
    change_message([](pp::detail::message_end& end) { end.sequence += 7; });
    pp::plan exchanged = sound;
    support::exchange_at(exchanged, exchanged.items[i]) += 7;
    enter(exchanged);
    pp::plan work = sound;
    ++support::uses_of(work, work.items[i])[0].bytes;
    enter(work);
  }
  CHECK(static_cast<int>(seen.size()) == plans);
}
