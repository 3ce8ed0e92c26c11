// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/schedule/stp.hpp>
#include <pipe/timetable/cost_table.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace pp = pipelining;

namespace {

using in_turn = pp::STP<pp::pairs::in_turn>;

constexpr auto compiled_stp = pp::timetable<pp::STP<>, 4, 11>;
static_assert(pp::verify(compiled_stp));

pp::uniform_cost with_all_reduce(double forward, double input, double weight, double all_reduce) {
  pp::uniform_cost cost{forward, input, weight};
  cost.all_reduce = all_reduce;
  return cost;
}

double pair_time(pp::cost_model auto const& cost, pp::pass const& first, pp::pass const& second) {
  return pp::detail::pair_duration(cost, pp::training, first, second);
}

} // namespace

TEST_CASE("STP follows its laws at random times, in pairs and in turn") {
  std::mt19937 random(2026);
  for (int devices = 1; devices <= 10; ++devices)
    for (int more = 0; more <= 12; ++more) {
      pp::pipeline_size const size{devices, 3 * devices - 1 + more};
      double times[3];
      for (double& time : times)
        time = static_cast<double>(1 + random() % 64) / 8;
      std::sort(times, times + 3);
      if (more % 3 == 0)
        times[0] = times[2] = times[1];
      auto const [weight, forward, input] = times;
      CAPTURE(devices);
      CAPTURE(size.microbatches);
      auto const table =
        pp::make_timetable<pp::STP<>>(size, with_all_reduce(forward, input, weight, 0));
      double const work = 2 * size.microbatches * (forward + input + weight);
      double const bubble = weight == forward && forward == input
                              ? (devices - 1) * (forward + input - weight)
                              : (devices - 1) * (2 * forward + 2 * input - 3 * weight);
      CHECK(pp::makespan(table) - work == bubble);
      auto const reduced =
        pp::make_timetable<pp::STP<>>(size, with_all_reduce(forward, input, weight, 0.125));
      for (int device = 0; device < devices; ++device) {
        CHECK(pp::busy(table, device) == work);
        CHECK(pp::busy(reduced, device) - work == 0.125 * (2 * devices + (device + 1) % 2));
        CHECK(pp::peak_activation_chunks(table, device) ==
              std::max(3 * devices + 1, 3 * devices + device));
      }
      auto const apart =
        pp::make_timetable<in_turn>(size, with_all_reduce(forward, input, weight, 0.125));
      CHECK(pp::busy(apart, 0) > pp::busy(reduced, 0));
    }
}

TEST_CASE("a fused backward pass and a pair hide the exchanges of a tensor parallel group") {
  pp::uniform_cost const cost = with_all_reduce(4, 3, 2, 1);
  pp::shape const extents{.devices = 2, .microbatches = 2};
  pp::cost_table table(extents, cost);
  auto const make = [](pp::pass_kind kind) { return pp::row_writer::make(kind, 0, 0); };
  auto const forward = make(pp::pass_kind::forward);
  auto const backward = make(pp::pass_kind::backward);
  auto const input = make(pp::pass_kind::backward_input);
  auto const weight = make(pp::pass_kind::backward_weight);
  auto const check = [&](auto const& of) {
    CHECK(of.duration(forward) == 5);
    CHECK(of.duration(input) == 4);
    CHECK(of.duration(weight) == 2);
    CHECK(of.duration(backward) == 5);
    CHECK(of.duration(make(pp::pass_kind::recompute)) == 5);
    CHECK(pair_time(of, forward, backward) == 9);
    CHECK(pair_time(of, forward, input) == 7);
    CHECK(pair_time(of, forward, weight) == 6);
    CHECK(pair_time(of, forward, forward) == 8);
  };
  check(cost);
  check(table);
  pp::uniform_cost fixed = cost;
  fixed.overlapped_pair = 6.5;
  CHECK(pair_time(fixed, forward, backward) == 6.5);
  table.set(pp::pass_kind::forward, 0, 0, 7);
  CHECK(pair_time(table, forward, weight) == 8);
  table.set_exchanges(pp::pass_kind::forward, 0, 0, 2);
  CHECK(pair_time(table, forward, weight) == 7);
  CHECK(table.duration(forward) == 7);
  CHECK(table.exchanges(forward) == 2);
  CHECK(table.exchanges(backward) == 0);
  pp::cost_table const hidden = table.without_exchanges();
  CHECK(hidden.duration(forward) == 5);
  CHECK(hidden.duration(backward) == 5);
  CHECK(pair_time(hidden, forward, backward) == 10);
  CHECK(hidden.exchanges(forward) == 0);
  for (double const wrong : {-1.0, 7.5})
    CHECK_THROWS_WITH_AS(
      table.set_exchanges(pp::pass_kind::forward, 0, 0, wrong),
      "cost_table::set_exchanges: exchanges are a part of the time of a pass, so they are not "
      "negative and take no longer than it",
      std::invalid_argument);
}

TEST_CASE("a microbatch has exchanges of its own where it has times of its own") {
  pp::cost_table table =
    pp::cost_table({.devices = 2, .microbatches = 3}, {4, 3, 2}).by_microbatch(3);
  auto const forward = [](int microbatch) {
    return pp::row_writer::make(pp::pass_kind::forward, 1, microbatch);
  };
  table.set_exchanges(forward(1), 2.5);
  CHECK(table.exchanges(forward(0)) == 0);
  CHECK(table.exchanges(forward(1)) == 2.5);
  CHECK(table.exchanges(forward(2)) == 0);
  CHECK(table.without_exchanges().duration(forward(1)) == 1.5);
  table.set_exchanges(pp::pass_kind::forward, 1, 0, 1); // of all
  for (int const microbatch : {0, 1, 2})
    CHECK(table.without_exchanges().duration(forward(microbatch)) == 3);
  CHECK_THROWS_AS(table.set_exchanges(forward(2), 4.5), std::invalid_argument);
}

TEST_CASE("what nothing is long enough to hide is exposed") {
  auto const check = [](auto const& of) {
    auto const pass = [](pp::pass_kind kind) { return pp::row_writer::make(kind, 0, 0); };
    auto const forward = pass(pp::pass_kind::forward);
    auto const backward = pass(pp::pass_kind::backward);
    auto const weight = pass(pp::pass_kind::backward_weight);
    CHECK(of.duration(forward) == 14);
    CHECK(of.duration(backward) == 13); // 3, and exchanges for as long as W takes and longer
    CHECK(pair_time(of, forward, forward) == 20);
    CHECK(pair_time(of, forward, weight) == 14);
    CHECK(pair_time(of, weight, forward) == 14);
    CHECK(pair_time(of, weight, weight) == 4);
    CHECK(pair_time(of, forward, backward) == 17);
  };
  pp::uniform_cost const cost = with_all_reduce(4, 3, 2, 10);
  check(cost);
  check(pp::cost_table({.devices = 2, .microbatches = 2}, cost));
}

TEST_CASE("STP refuses too few microbatches with a sentence") {
  CHECK_THROWS_WITH(
    (pp::make_timetable<pp::STP<>>({4, 10})),
    "STP: 10 microbatches are too few: its braids begin when 11 are there, 3 P - 1; "
    "take DualPipeV or VHalf for fewer");
}

TEST_CASE("every braid of STP that is taken apart, swapped or lost is found") {
  auto const good = pp::make_timetable<pp::STP<>>({3, 9});
  int found = 0;
  for (std::size_t i = 1; i < good.passes.size(); ++i) {
    if (!good.passes[i].overlapped)
      continue;
    auto apart = good; // the halves no longer start together
    apart.starts[i] += 0.5;
    CHECK_FALSE(pp::verify(apart));
    auto lone = good; // a half without the other
    lone.passes[i - 1].overlapped = true;
    CHECK_FALSE(pp::verify(lone));
    ++found;
  }
  CHECK(found > 20);
}
