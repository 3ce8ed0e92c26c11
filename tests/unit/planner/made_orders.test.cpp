// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Orders that are made once are those that would be made again.
#include <pipe/planner/registry/named_schedules.hpp>
#include <pipe/timetable/cost.hpp>
#include <pipe/timetable/timetable.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <future>
#include <string_view>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr auto searched = pp::registry::names::v_half;

pp::registry::schedule_choice choice_of(std::string_view name, pp::registry::adapter which) {
  pp::registry::schedule_choice choice;
  choice.name = name;
  choice.devices = 2;
  choice.microbatches = 5;
  choice.adapted = which;
  return choice;
}

} // namespace

TEST_CASE("adapters have the orders that they have when each schedule is made for them alone") {
  for (auto const name : {pp::registry::names::one_f_one_b, searched}) {
    pp::registry::made_orders made;
    for (double const forward : {4.0, 5.0})
      for (pp::registry::named_adapter const& each : pp::registry::named_adapter::all()) {
        if (each.which == pp::registry::adapter::attention_exchange)
          continue; // of slimpipe alone
        CAPTURE(name);
        CAPTURE(each.name);
        pp::registry::any_cost const cost(pp::uniform_cost{.forward = forward,
                                                           .backward_input = 5,
                                                           .backward_weight = 3,
                                                           .communication = 0.5,
                                                           .copy_out = 0.25,
                                                           .copy_in = 0.25});
        auto const choice = choice_of(name, each.which);
        auto const again = pp::registry::make_named_timetable(choice, cost, &made);
        auto const alone = pp::registry::make_named_timetable(choice, cost);
        CHECK(again.passes == alone.passes);
        CHECK(again.starts == alone.starts);
      }
  }
}

TEST_CASE("a schedule is made once for the times that it can ask for") {
  pp::registry::made_orders made;
  auto const plain = choice_of(searched, pp::registry::adapter::none);
  pp::uniform_cost cost{.forward = 4, .backward_input = 5, .backward_weight = 3};
  auto const* const first = &made.get(plain, cost);
  CHECK(&made.get(choice_of(searched, pp::registry::adapter::offload), cost) == first);
  cost.copy_out = 7; // of which it knows nothing
  CHECK(&made.get(plain, cost) == first);
  cost.communication = 1;
  CHECK(&made.get(plain, cost) != first);
  pp::registry::schedule_choice longer = plain;
  longer.microbatches = 7;
  CHECK(&made.get(longer, cost) != first);
  CHECK(made.get(longer, cost).over.extents.microbatches == 7);
  CHECK(
    &made.get(plain, pp::uniform_cost{.forward = 4, .backward_input = 5, .backward_weight = 3}) ==
    first);
}

TEST_CASE("threads that ask for the same orders at once get the same ones, made once") {
  pp::registry::made_orders made;
  pp::uniform_cost const cost{.forward = 4, .backward_input = 5, .backward_weight = 3};
  std::vector<std::future<pp::device_orders const*>> asked;
  for (int i = 0; i < 12; ++i)
    asked.push_back(std::async(std::launch::async, [&made, cost, i] {
      auto choice = choice_of(searched, pp::registry::adapter::none);
      choice.microbatches = i % 3 == 0 ? 4 : 5;
      return &made.get(choice, cost);
    }));
  std::vector<pp::device_orders const*> got;
  for (auto& each : asked)
    got.push_back(each.get());
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(got[i] == got[i % 3 == 0 ? 0 : 1]);
  CHECK(got[0] != got[1]);
}

TEST_CASE("a schedule that is like another one where the search is left out has its order") {
  int found = 0;
  for (pp::registry::named_schedule const& each : pp::registry::named_schedules())
    for (int const limit : {3, 4, 6, 8}) {
      if (each.traits.swept_like.empty())
        continue;
      ++found;
      CAPTURE(each.name);
      pp::registry::schedule_choice choice;
      choice.name = each.name;
      choice.devices = 4;
      choice.microbatches = 9;
      choice.memory_limit = limit;
      choice.swept = true;
      pp::registry::any_cost const cost(pp::uniform_cost{
        .forward = 10, .backward_input = 12, .backward_weight = 7, .communication = 1});
      pp::device_orders const own = pp::registry::plain_orders(choice, cost);
      choice.name = each.traits.swept_like;
      pp::device_orders const other = pp::registry::plain_orders(choice, cost);
      CHECK(own.passes == other.passes);
      CHECK(own.offsets == other.offsets);
      CHECK(own.over.extents == other.over.extents);
    }
  CHECK(found > 0);
}
