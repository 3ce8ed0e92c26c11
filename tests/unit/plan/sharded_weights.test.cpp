// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Plans with sharded weights: what the proof finds when something is taken away or moved.
#include <pipe/plan/lower.hpp>
#include <pipe/plan/prove.hpp>
#include <pipe/schedule/breadth_first.hpp>
#include <pipe/schedule/dual_pipe.hpp>
#include <pipe/schedule/interleaved.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/timetable/adapt/with_sharded_weights.hpp>
#include <pipe/timetable/make_timetable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace pp = pipelining;

namespace {

constexpr pp::uniform_cost costs{.communication = 0.25, .gather = 0.75, .scatter = 0.5};

struct sharded_sizes {
  std::int64_t tied_bytes = 0;
  std::int64_t totals_bytes = 0;

  [[nodiscard]] std::int64_t bytes(pp::slot_class of, pp::pass const& what) const {
    return of == pp::slot_class::weights          ? 1000 * (what.stage + 1)
           : of == pp::slot_class::full_gradients ? 2000 * (what.stage + 1)
                                                  : 8;
  }
};

template <class Schedule, class Rule = pp::reshard>
pp::plan plan_of(Schedule const& schedule, sharded_sizes const& sizes = {}, Rule const& rule = {}) {
  return pp::lower(
    pp::make_timetable(pp::with_sharded_weights<Schedule, Rule>{schedule, rule}, {2, 4}, costs),
    sizes);
}

//! The first item of a device that is of a kind.
std::size_t find_item(pp::plan const& work, pp::pass_kind kind, std::size_t from = 0) {
  while (work.items[from].what != pp::operation::run ||
         work.items[from].about != pp::detail::subject::pass || work.items[from].work.kind != kind)
    ++from;
  return from;
}

} // namespace

TEST_CASE("no wait of a plan with sharded weights can be left out") {
  int dropped = 0;
  auto const drop_each = [&dropped](pp::plan const& work) {
    for (std::size_t i = 0; i < work.items.size(); ++i)
      for (int k = 0; k < work.items[i].wait_count; ++k) {
        pp::plan bad = work;
        pp::item& step = bad.items[i];
        int const first = step.first_wait;
        std::swap(bad.waits[static_cast<std::size_t>(first + k)],
                  bad.waits[static_cast<std::size_t>(first + step.wait_count - 1)]);
        --step.wait_count;
        CHECK_FALSE(pp::prove(bad));
        ++dropped;
      }
  };
  drop_each(plan_of(pp::BreadthFirst<2>{}));
  drop_each(plan_of(pp::Interleaved<2>{}));
  drop_each(plan_of(pp::detail::SweptZeroBubbleV{}));
  drop_each(plan_of(pp::Interleaved<3>{}, {.totals_bytes = 8}));
  drop_each(plan_of(pp::Interleaved<2>{}, {.totals_bytes = 8}, pp::weights_on_host{}));
  CHECK(dropped > 100);
}

TEST_CASE(
  "a pass that is moved out of its visit, or out of where gradients are collected, is found") {
  pp::plan const good = plan_of(pp::BreadthFirst<2>{});
  REQUIRE(pp::prove(good));
  auto const verdict_on = [&good](pp::pass_kind moved, pp::pass_kind before) {
    pp::plan bad = good;
    auto const from = find_item(bad, moved);
    auto to = from;
    while (bad.items[to].what != pp::operation::run || bad.items[to].work.kind != before)
      --to;
    // The two change places; nothing that they wait for stands between.
    std::swap(bad.items[from].work, bad.items[to].work);
    return pp::prove(bad).broken;
  };
  CHECK(verdict_on(pp::pass_kind::release_weights, pp::pass_kind::forward) ==
        pp::proof::rule::not_there);
  CHECK(verdict_on(pp::pass_kind::request_scatter, pp::pass_kind::backward) ==
        pp::proof::rule::not_there);
  pp::plan twice = good;
  auto const gather = find_item(twice, pp::pass_kind::gather_weights);
  twice.items[find_item(twice, pp::pass_kind::gather_weights, gather + 1)].work =
    twice.items[gather].work;
  CHECK(pp::prove(twice).broken == pp::proof::rule::wrong_passes);
  pp::plan beside = good;
  beside.items[gather].lane = pp::nothing;
  CHECK(pp::prove(beside).broken == pp::proof::rule::wrong_lane);
}

TEST_CASE("slots are as large as the largest stage's weights, and lie in the arena") {
  pp::plan const work = plan_of(pp::BreadthFirst<3>{});
  pp::plan const& view = work;
  for (int device = 0; device < 2; ++device) {
    auto const& weights = view.layout(device, pp::slot_class::weights);
    auto const& gradients = view.layout(device, pp::slot_class::full_gradients);
    CHECK(weights.count == 2);
    CHECK(weights.bytes >= 1000 * (5 + device));
    CHECK(weights.bytes < 1000 * (5 + device) + 256);
    CHECK(gradients.bytes >= 2000 * (5 + device));
  }
  for (pp::item const& step : work.items)
    if (step.what == pp::operation::run && step.work.kind == pp::pass_kind::use_weights)
      CHECK(view.use_at(pp::detail::slot_place::inputs, step).bytes ==
            1000 * (step.work.stage + 1));
}

TEST_CASE("what follows complete gradients comes behind the last scatter of its stage") {
  pp::plan const work = plan_of(pp::Interleaved<2>{}, {.tied_bytes = 8, .totals_bytes = 8});
  pp::plan const& view = work;
  int followed = 0;
  for (int device = 0; device < 2; ++device) {
    std::vector<char> complete(4);
    for (pp::item const& step : view.program_of(device)) {
      if (step.completes_stage) {
        CHECK(step.work.kind == pp::pass_kind::scatter_gradients);
        complete[step.work.stage] = 1;
      }
      if (step.what == pp::operation::run && step.about != pp::detail::subject::pass &&
          step.about != pp::detail::subject::update) {
        CHECK(complete[step.work.stage] == 1);
        ++followed;
      }
    }
  }
  CHECK(followed == 8);
}

TEST_CASE("stages whose weights stay have no slot, and are complete behind their last pass") {
  pp::plan const work =
    plan_of(pp::Interleaved<2>{}, {.tied_bytes = 8, .totals_bytes = 8}, pp::weights_on_host{});
  pp::plan const& view = work;
  for (int device = 0; device < 2; ++device) {
    CHECK(view.layout(device, pp::slot_class::weights).count == 1);
    CHECK(view.layout(device, pp::slot_class::full_gradients).count == 1);
    std::vector<pp::pass_kind> completing(4, pp::pass_kind::forward);
    for (pp::item const& step : view.program_of(device))
      if (step.completes_stage)
        completing[step.work.stage] = step.work.kind;
    CHECK(completing[static_cast<std::size_t>(device)] == pp::pass_kind::backward);
    CHECK(completing[static_cast<std::size_t>(device) + 2] == pp::pass_kind::scatter_gradients);
  }
  // Who says that gradients are complete before they have been scattered, or added to, is found.
  for (int const stage : {0, 2}) {
    pp::plan early = work;
    for (pp::item& step : early.items)
      if (step.work.stage == stage)
        step.completes_stage = false;
    auto at = find_item(early, pp::pass_kind::backward);
    while (early.items[at].work.stage != stage)
      at = find_item(early, pp::pass_kind::backward, at + 1);
    for (auto next = at; stage == 2;) { // the last one, but before the scatter
      next = find_item(early, pp::pass_kind::backward, next + 1);
      if (early.items[next].work.stage == stage)
        at = next;
      if (early.items[at].work.microbatch == 3)
        break;
    }
    early.items[at].completes_stage = true;
    CHECK(pp::prove(early).broken == pp::proof::rule::incomplete);
  }
}

TEST_CASE("a schedule with two copies of every stage gathers both") {
  auto const table = pp::make_timetable(pp::with_sharded_weights<pp::DualPipe<>>{}, {4, 8}, costs);
  CHECK(pp::prove(pp::lower<pp::communicators::one>(table, sharded_sizes{})));
  CHECK(pp::prove(pp::lower<pp::communicators::per_edge>(table, sharded_sizes{})));
}
